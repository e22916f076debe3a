"""tools/turns.py with a stand-in for gyre: sides take turns behind a run that does not count, each with its own folder
and variables; medians are of the turns; what a fault leaves is told.

Not in make test-fast: it is of a tool of measurements, which it starts forty times."""
import os
import subprocess
import tempfile
import unittest

from places import PLAIN, ROOT


# The n-th run of a side of FACTOR has 100 n FACTOR tokens/s a sequence.
GYRE = """#!%s
import json, os, sys
a, side = sys.argv, os.path.basename(os.environ["GYRE_PLUGINS"]) + os.environ.get("MORE", "")
open("log", "a").write(side + " ")
n = open("log").read().split().count(side) * int(os.environ.get("FACTOR", 1))
rows = [{"batch": int(b), "tokens_per_s": {"median": int(b) * 100.0 * n}}
        for b in a[len(a) - a[::-1].index("--batch")].split(",")] # the last
prompts = [{"input_len": 128, "first_token_ms": {"median": 10.0 * n}}]
json.dump({"device": "a card", "decode": rows, "prefill": prompts}, open(a[a.index("--output-json") + 1], "w"))
assert a[1:4] == ["bench", "decode", "model.json"], a
""" % " ".join(PLAIN)


class Turns(unittest.TestCase):
    def turns(self, *words, gyre=GYRE):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "gyre"), "w") as f:
                f.write(gyre)
            os.chmod(os.path.join(folder, "gyre"), 0o755)
            for name in ("old", "new"):
                os.mkdir(os.path.join(folder, name))
            p = subprocess.run(
                [*PLAIN, os.path.join(ROOT, "tools/turns.py"), "--gyre", "./gyre", *words], capture_output=True,
                text=True, cwd=folder, timeout=60)
            log = os.path.join(folder, "log")
            if not os.path.exists(log):
                return p, ""
            with open(log) as f:
                return p, f.read()

    def test_sides_alternate_and_medians_are_of_the_turns(self):
        p, log = self.turns("a=old", "b=new,FACTOR=3", "c=new,MORE=!,FACTOR=2", "--rounds", "2", "--", "model.json",
                            "--batch", "1,8")
        self.assertEqual((p.returncode, log), (0, "old " + "old new new! " * 2), p.stderr)
        lines = [line.split() for line in p.stdout.splitlines()]
        self.assertEqual(lines[0], ["a", "card"])
        # Of a the first run does not count: 200 and 300; of b 300 and 600; of c 200 and 400.
        for first, what, unit in ((1, ["1", "sequences,",
                                       "tokens/s"], 1), (5, ["8", "sequences,",
                                                             "tokens/s"], 8), (9, ["prompt", "of", "128,", "ms"], 0.1)):
            self.assertEqual(lines[first], what)
            told = lambda *values: ["{:,.1f}".format(v * unit) for v in values]
            self.assertEqual(lines[first + 1], ["a", *told(250, 200, 300)])
            self.assertEqual(lines[first + 2], ["b", *told(450), "+80.0", "%", *told(300, 600)])
            self.assertEqual(lines[first + 3], ["c", *told(300), "+20.0", "%", *told(200, 400)])

    def test_what_it_cannot_take_is_told(self):
        for words, told in ((["a=old", "--rounds", "0", "--",
                              "model.json"], "'0' is not a number from 1 on"), (["a=nowhere", "--", "model.json"],
                                                                                "a: there is no folder nowhere"),
                            (["old", "--", "model.json"], "'old' is not NAME=FOLDER"), (["a=old,b", "--", "model.json"],
                                                                                        "'a=old,b' is not NAME=FOLDER"),
                            (["a=old"], "behind -- stands the model")):
            p, log = self.turns(*words)
            self.assertEqual((p.returncode, log), (2, ""))
            self.assertIn(told, p.stderr)

    def test_a_run_that_fails_ends_it(self):
        p, _ = self.turns("a=old", "--", "model.json", gyre="#!/bin/sh\necho no GPU >&2\nexit 1\n")
        self.assertEqual((p.returncode, p.stdout), (1, ""))
        self.assertIn("a: no GPU", p.stderr)
        p, _ = self.turns("a=old", "--", "model.json", gyre="#!/bin/sh\n")
        self.assertIn("turns.py: a: ./gyre bench decode: [Errno 2]", p.stderr)

    def test_whole_rounds_before_a_fault_are_told(self):
        late = GYRE.replace("rows =",
                            "assert n < 4 or side != 'new', 'too hot'\nrows =")  # in the second round, of FACTOR 2
        p, _ = self.turns("a=old", "b=new,FACTOR=2", "--", "model.json", "--batch", "1", gyre=late)
        self.assertEqual(p.returncode, 1)
        self.assertIn("too hot", p.stderr)
        lines = [line.split() for line in p.stdout.splitlines()]
        self.assertEqual(lines[2:4], [["a", "200.0", "200.0"], ["b", "200.0", "+0.0", "%", "200.0"]])

    def test_flags_that_are_given_come_behind_its_own(self):
        flags = GYRE.replace(
            "assert a[1:4]",
            "assert [a[i + 1] for i, word in enumerate(a) if word == '--device'] == ['cuda', 'cpu'], a\nassert a[1:4]")
        p, _ = self.turns("a=old", "--rounds", "1", "--", "model.json", "--device", "cpu", gyre=flags)
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertIn("512 sequences", p.stdout)


if __name__ == "__main__":
    unittest.main()
