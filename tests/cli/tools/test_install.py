"""What make install puts in place, and programs that use it. Not in make test-fast: libraries are linked."""
import os
import re
import subprocess
import tempfile
import unittest

from places import ROOT

GYRE = os.path.abspath(os.environ["GYRE"])


def gyre(*words):
    return subprocess.run([GYRE, *words], capture_output=True, text=True, timeout=60)


PROGRAM = r"""
#include <gyre.h>
#include <stdio.h>

int main(int argc, char **argv) {
    struct gyre *g;
    struct gyre_error err;
    struct gyre_options o = {.model = argc == 2 ? argv[1] : NULL, .backend = &backend_cpu, .n_threads = 1};
    if (argc != 2 || gyre_open(&o, &g, &err) != 0)
        return puts(err.text), 1;
    struct gyre_request r = gyre_request_default(g);
    int32_t prompt[] = {1, 2, 3};
    r.prompt = prompt, r.n_prompt = 3, r.max_tokens = 4, r.ignore_eos = true;
    uint64_t id;
    if (gyre_submit(g, &r, &id, &err) != 0)
        return puts(err.text), 1;
    int n_tokens = 0, n_done = 0;
    while (gyre_busy(g)) {
        struct gyre_event e[8];
        for (int i = 0, n = gyre_poll(g, e, 8); i < n; i++)
            n_tokens += e[i].kind == GYRE_TOKEN, n_done += e[i].kind == GYRE_DONE;
    }
    printf("%d tokens, %d done\n", n_tokens, n_done);
    gyre_close(g);
    return 0;
}
"""


@unittest.skipUnless(os.path.basename(os.path.dirname(GYRE)) == "release", "what is installed is the release build")
class Installed(unittest.TestCase):
    """make install, and a program that uses what was installed."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
        cls.made = subprocess.run(["make", "install", "DESTDIR=" + cls.folder.name, "PREFIX=/opt/gyre"], cwd=ROOT,
                                  env=env, capture_output=True, text=True, timeout=250)
        cls.root = cls.folder.name + "/opt/gyre"

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_an_installed_tree_is_whole(self):
        self.assertEqual(self.made.returncode, 0, self.made.stdout + self.made.stderr)
        found = sorted(
            os.path.relpath(os.path.join(d, f), self.root) for d, _, files in os.walk(self.root) for f in files)
        for_gpus = ["lib/gyre/libgyre-cuda.so"] if os.path.exists(
            os.path.join(os.path.dirname(os.path.abspath(GYRE)), "libgyre-cuda.so")) else []  # make cuda
        self.assertEqual(
            found,
            sorted(for_gpus + [
                "bin/gyre", "include/gyre.h", "include/gyre_text.h", "lib/libgyre.a", "lib/libgyre.so",
                "lib/libgyre.so.0", "lib/libgyre.so.0.1.0", "lib/pkgconfig/gyre.pc", "share/man/man1/gyre.1",
                "share/bash-completion/completions/gyre", "share/zsh/site-functions/_gyre",
                "share/fish/vendor_completions.d/gyre.fish"
            ]))
        p = subprocess.run([self.root + "/bin/gyre", "version"], capture_output=True, text=True, timeout=60)
        self.assertEqual(p.stdout, "gyre 0.1.0\n")

    def test_the_libraries_show_the_names_of_the_headers_only(self):
        header = ""
        for name in ("gyre.h", "gyre_text.h"):
            with open(os.path.join(ROOT, "include", name)) as f:
                header += f.read()
        for library in (["-D", self.root + "/lib/libgyre.so"], ["-g", self.root + "/lib/libgyre.a"]):
            p = subprocess.run(["nm", "--defined-only", "--format=posix", *library], capture_output=True, text=True,
                               timeout=60)
            names = [line.split()[0] for line in p.stdout.splitlines() if len(line.split()) >= 3]
            self.assertGreater(len(names), 5)
            self.assertEqual([n for n in names if n not in header], [])

    def run_with_either_library(self, text, talk=""):
        """Compiles a program and runs it, with the static and the shared library; what it says each time."""
        source = self.folder.name + "/program.c"
        with open(source, "w") as f:
            f.write(text)
        flags = [
            "-std=gnu17", "-Wall", "-Wextra", "-Werror", "-I" + self.root + "/include", source, "-o",
            self.folder.name + "/program"
        ]
        with open(self.root + "/lib/pkgconfig/gyre.pc") as f:
            needs = [line.split(":")[1].split() for line in f if line.startswith("Requires.private")][0]
        static = [self.root + "/lib/libgyre.a"] + ["-l" + n.removeprefix("lib") for n in needs] + ["-lpthread", "-lm"]
        shared = ["-L" + self.root + "/lib", "-lgyre"]
        for libraries in (static, shared):
            p = subprocess.run(["cc", *flags, *libraries], capture_output=True, text=True, timeout=100)
            self.assertEqual(p.returncode, 0, p.stderr)
            p = subprocess.run(
                [self.folder.name + "/program", os.path.join(ROOT, "models/story")], input=talk, capture_output=True,
                text=True, timeout=60, env={"LD_LIBRARY_PATH": self.root + "/lib"})
            self.assertEqual((p.returncode, p.stderr), (0, ""))
            yield p.stdout

    def test_a_program_runs_with_either_library(self):
        self.assertEqual(list(self.run_with_either_library(PROGRAM)), ["4 tokens, 1 done\n"] * 2)

    def test_the_chat_of_the_manual_talks(self):
        with open(os.path.join(ROOT, "docs/c.md")) as f:
            program = re.search(r"^```c\n(.*?)^```$", f.read(), re.M | re.S).group(1)
        self.assertLess(len(program.splitlines()), 42)  # forty, and how it is compiled
        first = gyre("run", os.path.join(ROOT, "models/story"), "--chat", "-p", "Tell me a story about a fox.", "-n",
                     "200", "--temperature", "0")
        for said in self.run_with_either_library(program, "Tell me a story about a fox.\nAnd then?\n"):
            self.assertTrue(said.startswith(first.stdout), said)
            self.assertGreater(len(said), len(first.stdout) + 20)


if __name__ == "__main__":
    unittest.main()
