"""Runs one module of the folders here and says how each test went in a line of its own, in cmocka's words. Modules
find those of every folder by name: rig/ is what they share.

    python3 tests/cli/run_module.py test_serve.py

unittest's own -v leaves a line open while a test runs, and whatever is written meanwhile (a warning, a server's last
words) tears it, so that the test could not be counted. A test with subtests counts once.
"""
import os
import sys
import unittest


class Lines(unittest.TestResult):
    def say(self, word, test):
        name = getattr(test, "_testMethodName", None)
        name = "%s.%s" % (type(test).__name__, name) if name else str(test)  # setUpClass and setUpModule have no method
        print("\n[%s] %s" % (word, name.replace(" ", "_")), flush=True)

    def wrong(self, test, text):
        print(text, end="", flush=True)
        self.say("  FAILED  ", test)

    def addError(self, test, err):
        super().addError(test, err)
        self.wrong(test, self.errors[-1][1])

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.wrong(test, self.failures[-1][1])

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            kind = self.failures if issubclass(err[0], test.failureException) else self.errors
            self.wrong(test, "%s\n%s" % (subtest, kind[-1][1]))

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.wrong(test, "it was expected to fail\n")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.say("  SKIPPED ", test)
        print(reason, flush=True)

    def addSuccess(self, test):
        super().addSuccess(test)
        self.say("       OK ", test)

    def addExpectedFailure(self, test, err):
        super().addExpectedFailure(test, err)
        self.say("       OK ", test)


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:0] = [os.path.join(here, "rig")] + sorted(f.path for f in os.scandir(here) if f.is_dir())
    import patience
    patience.stretch_timeouts()
    suite = unittest.defaultTestLoader.loadTestsFromName(os.path.splitext(sys.argv[1])[0])
    result = Lines()
    suite.run(result)
    sys.exit(0 if result.wasSuccessful() else 1)


if __name__ == "__main__":
    main()
