"""The command line as a whole: verbs, help, exit codes; and what the build promises about the sources."""
import functools, glob, os, pty, re, shutil, subprocess, tempfile, unittest

from brief import slow
from places import PLAIN, ROOT

GYRE = os.path.abspath(os.environ["GYRE"])
VERBS = [
    line.split("(")[1].split(")")[0].replace("bench_", "bench ").replace("_", "-")
    for line in open(os.path.join(ROOT, "src/main/verbs.def"))
    if line.startswith("VERB(")
]


def gyre(*words, **more):
    return subprocess.run([GYRE, *words], capture_output=True, text=True, timeout=60, **more)


class Verbs(unittest.TestCase):
    def test_help_lists_every_verb_once(self):
        p = gyre("--help")
        self.assertEqual((p.returncode, p.stderr), (0, ""))
        self.assertEqual([line[2:].split("  ")[0] for line in p.stdout.splitlines() if line.startswith("  ")], VERBS)

    def test_every_verb_explains_itself(self):
        for verb in VERBS:
            with self.subTest(verb=verb):
                p = gyre(*verb.split(), "--help")
                self.assertEqual((p.returncode, p.stderr), (0, ""))
                self.assertTrue(p.stdout.startswith("usage: gyre " + verb), p.stdout)
                self.assertEqual(p.stdout, gyre("help", *verb.split()).stdout)

    def test_a_misspelt_verb_is_suggested(self):
        p = gyre("verison")
        self.assertEqual((p.returncode, p.stdout), (2, ""))
        self.assertIn("did you mean version?", p.stderr)

    def test_a_misspelt_flag_is_suggested_by_every_verb(self):
        for verb in VERBS:
            with self.subTest(verb=verb):
                p = gyre(*verb.split(), "--hepl")
                self.assertEqual((p.returncode, p.stdout), (2, ""))
                self.assertIn("did you mean --help?", p.stderr)

    def test_options_of_a_device_are_those_that_it_tells_of(self):
        model = os.path.join(ROOT, "tests/models/llama")
        run = ["run", model, "--no-chat", "-p", "Once", "-n", "2", "--temperature", "0", "--output", "ids"]
        p = gyre(*run, "--device-option", "kernel=portable")
        self.assertEqual((p.returncode, p.stdout), (1, ""))
        self.assertRegex(p.stderr, 'has no "kernel=portable"; it has: .*kernels=portable')
        p = gyre(*run, "--device-index", "1")
        self.assertEqual((p.returncode, p.stdout), (1, ""))
        self.assertIn("there is one CPU", p.stderr)
        usual = gyre(*run)
        plain = gyre(*run, "--device-option", "shared-kv=0", "--device-option", "kernels=portable")
        self.assertEqual((plain.returncode, plain.stdout), (0, usual.stdout), plain.stderr)

    def test_no_verb_is_misuse(self):
        p = gyre()
        self.assertEqual((p.returncode, p.stdout), (2, ""))
        self.assertIn("usage: gyre VERB", p.stderr)

    def test_output_that_cannot_be_written_is_a_fault(self):
        with open("/dev/full", "w") as full:
            p = subprocess.run([GYRE, "version"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
        self.assertEqual(p.returncode, 1)
        self.assertEqual(p.stderr, "gyre: standard output: cannot write: No space left on device\n")


class Written(unittest.TestCase):
    """The manual page and the completions, which gyre writes about itself."""

    def test_the_manual_names_every_verb_and_flag(self):
        page = gyre("help", "--format", "man").stdout.replace("\\-", "-")
        for verb in VERBS:
            self.assertIn(".SS gyre " + verb, page)
            for line in gyre(*verb.split(), "--help").stdout.splitlines():
                if line.startswith(("  -", "      --")):
                    self.assertIn(line.split("--")[1].split()[0], page)

    def test_the_environment_does_not_change_the_manual(self):
        self.assertEqual(gyre("help", "--format", "man").stdout, gyre("help", env={"GYRE_FORMAT": "man"}).stdout)

    def complete(self, *words):
        script = gyre(
            "help", "--format",
            "bash").stdout + "\nCOMP_WORDS=(%s) COMP_CWORD=%d\n_gyre\nprintf '%%s\\n' \"${COMPREPLY[@]}\"\n" % (
                " ".join("'%s'" % w for w in words), len(words) - 1)
        p = subprocess.run(["bash"], input=script, capture_output=True, text=True, timeout=60, cwd=ROOT)
        self.assertEqual((p.returncode, p.stderr), (0, ""))
        return p.stdout.split()

    def test_bash_completes_verbs_flags_choices_and_files(self):
        self.assertEqual(sorted(self.complete("gyre", "")), sorted(v for v in VERBS if " " not in v))
        self.assertEqual(self.complete("gyre", "vers"), ["version"])
        self.assertEqual(sorted(self.complete("gyre", "help", "--")), ["--format", "--help"])
        self.assertEqual(self.complete("gyre", "help", "--format", "z"), ["zsh"])
        self.assertEqual(self.complete("gyre", "help", "LIC"), ["LICENSE"])
        self.assertEqual(self.complete("gyre", "bench", "serve", "--burst"), ["--burstiness"])
        self.assertEqual(self.complete("gyre", "bench", "--read"), ["--read-size"])
        self.assertEqual(self.complete("gyre", "bench", "lat"), ["latency"])
        self.assertEqual(self.complete("gyre", "bench", "serve", "lat"), [])

    def test_zsh_and_fish_can_read_their_scripts(self):
        for shell in ("zsh", "fish"):
            script = gyre("help", "--format", shell).stdout
            for verb in VERBS:
                self.assertIn(verb.split()[-1], script) # of two words fish has the second alone
            if shutil.which(shell):
                p = subprocess.run([shell, "-n", "/dev/stdin"], input=script, capture_output=True, text=True,
                                   timeout=60)
                self.assertEqual((p.returncode, p.stderr), (0, ""))


@slow("a bar is shown for what takes a second or more")
class Progress(unittest.TestCase):
    """The bar of a long piece of work: on a terminal, and nowhere else."""

    @classmethod
    def setUpClass(cls):
        cls.file = tempfile.NamedTemporaryFile("w", suffix=".txt")
        with open(os.path.join(ROOT, "models/story/heldout.txt")) as f:
            text = f.read()
        cls.file.write(text[:len(text) // 2])  # two seconds: a bar keeps quiet for the first half of one
        cls.file.flush()
        cls.words = [
            "perplexity",
            os.path.join(ROOT, "models/story"), "-f", cls.file.name, "--window", "64", "--stride", "64"
        ]

    @classmethod
    def tearDownClass(cls):
        cls.file.close()

    def test_a_terminal_shows_a_bar_that_is_wiped(self):
        ours, theirs = pty.openpty()
        p = subprocess.Popen([GYRE, *self.words], stdout=subprocess.PIPE, stderr=theirs)
        os.close(theirs)
        seen = b""
        try:
            while chunk := os.read(ours, 4096):
                seen += chunk
        except OSError:  # how Linux says that the other end is closed
            pass
        out = p.communicate(timeout=200)[0].decode()
        os.close(ours)
        self.assertEqual(p.returncode, 0, seen)
        self.assertRegex(out, r"^perplexity [0-9.]+ over [0-9]+ tokens\n$")
        self.assertRegex(seen.decode(), r"\r\x1b\[Kperplexity  \[=*> *\] +[0-9]+%.* left")
        self.assertNotIn(b"%", seen.split(b"\r\x1b[K")[-1])

    def test_a_pipe_shows_none(self):
        p = gyre(*self.words)
        self.assertEqual((p.returncode, p.stderr), (0, ""))


class Tree(unittest.TestCase):
    @unittest.skipUnless(os.path.exists(os.path.join(ROOT, ".git")) and shutil.which("git"), "not a checkout")
    def test_the_tree_stays_under_64_mib(self):
        p = subprocess.run(["git", "-c", "safe.directory=*", "ls-files", "-z"], cwd=ROOT, capture_output=True,
                           text=True, timeout=60)
        names = [n for n in p.stdout.split("\0") if n and os.path.exists(os.path.join(ROOT, n))]
        self.assertGreater(len(names), 100)
        self.assertLess(sum(os.lstat(os.path.join(ROOT, n)).st_size for n in names), 64 << 20)


@functools.cache
def headers_of(path):
    """What it includes of the tree; whether it includes a header of CUDA's."""
    with open(path) as f:
        text = f.read()
    places = [os.path.join(ROOT, folder) for folder in ("src", "include", "tests/rig")] + [os.path.dirname(path)]
    names = [os.path.normpath(os.path.join(place, name))
             for name in re.findall(r'^#include "([^"]+)"', text, re.M) for place in places]
    return [name for name in names if os.path.exists(name)], re.search(r"#\s*include <cu(da|blas)", text)


class Tests(unittest.TestCase):
    def test_none_of_make_test_wants_cudas_headers(self):
        """A fresh machine has no toolkit: what our tests in C include of the CUDA room has none of its headers."""
        tests = [t for t in glob.glob(os.path.join(ROOT, "tests", "*", "test_*.c"))
                 if os.path.basename(os.path.dirname(t)) not in ("cuda", "ptx")]
        self.assertGreater(len(tests), 50)
        for test in tests:
            seen, todo = {test}, [test]
            while todo:
                path = todo.pop()
                found, wants_cuda = headers_of(path)
                self.assertIsNone(wants_cuda, "%s reaches %s" % (test, path))
                todo += set(found) - seen
                seen.update(found)


class Rooms(unittest.TestCase):
    def rooms(self, *where):
        return subprocess.run([*PLAIN, os.path.join(ROOT, "tools/rooms.py"), *where], capture_output=True,
                              text=True, timeout=60)

    def test_no_room_includes_upwards_or_sideways(self):
        p = self.rooms()
        self.assertEqual((p.returncode, p.stderr), (0, ""))
        self.assertIn("base", p.stdout)

    def check_edge(self, path, include, sentence):
        with tempfile.TemporaryDirectory() as root:
            for name in (path, include, "base/leaf.h"):
                full = os.path.join(root, "src", name)
                os.makedirs(os.path.dirname(full), exist_ok=True)
                with open(full, "w") as f:
                    f.write('#include "%s"\n' % include if name == path else "")
            p = self.rooms(root)
            self.assertEqual(p.returncode, 1 if sentence else 0, p.stderr)
            self.assertIn(sentence, p.stderr)

    def test_a_large_circle_is_found(self):
        def circle(n):
            with tempfile.TemporaryDirectory() as root:
                os.makedirs(os.path.join(root, "src", "base"))
                for i in range(n):
                    with open(os.path.join(root, "src", "base", "f%d.h" % i), "w") as f:
                        f.write("void call_%c(void);\n" % (97 + i))
                    with open(os.path.join(root, "src", "base", "f%d.c" % i), "w") as f:
                        f.write("void call_%c(void) {\n    call_%c();\n}\n" % (97 + i, 97 + (i + 1) % n))
                p = self.rooms(root)
                return p.returncode, p.stderr

        self.assertEqual(circle(3), (0, ""))
        self.assertEqual(
            circle(4),
            (1, "rooms: 4 files of base need one another in a circle (--circles says for what): f0, f1, f2, f3\n"))

    def test_a_function_that_is_there_twice_is_found(self):
        with tempfile.TemporaryDirectory() as root:
            for name in ("base/a.c", "core/b.c"):
                os.makedirs(os.path.dirname(os.path.join(root, "src", name)))
                with open(os.path.join(root, "src", name), "w") as f:
                    f.write("static int own(void) {\n    return 1;\n}\n\nint shared(void) {\n    return own();\n}\n")
            p = self.rooms(root)
        self.assertEqual((p.returncode, p.stderr),
                         (1, "rooms: shared is defined in src/base/a.c and in src/core/b.c\n"))

    def test_a_bad_edge_is_found(self):
        self.check_edge("core/a.h", "model/b.h", "core -> model points up")
        self.check_edge("jinja/a.c", "core/b.h", "jinja -> core points sideways")
        self.check_edge("text/a.c", "core/b.h", "text -> core is not in the plan")
        self.check_edge("client/a.c", "console/b.h", "client -> console points sideways")
        self.check_edge("bench/a.c", "main/b.h", "bench -> main points up")
        self.check_edge("backend/cpu/a.c", "backend/cuda/b.h", "backend/cpu -> backend/cuda points sideways")
        self.check_edge("engine/a.c", "backend/cpu/b.h", "engine -> backend/cpu is not in the plan")
        self.check_edge("model/a.c", "core/b.h", "")
        self.check_edge("attic/a.c", "base/leaf.h", "src/attic/a.c is in no room")
        self.check_edge("core/a.c", "b.h", "no file of ours")


if __name__ == "__main__":
    unittest.main()
