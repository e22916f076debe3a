"""A backend's library that is missing, empty, cut short or another's: one sentence, and never a crash."""
import os
import subprocess
import tempfile
import unittest

from places import ROOT

GYRE = os.path.abspath(os.environ["GYRE"])
STORY = os.path.join(ROOT, "models/story")


def start(folder):
    return subprocess.run([GYRE, "run", STORY, "-p", "x", "-n", "1", "--device", "cuda"], capture_output=True,
                          text=True, timeout=60, env=dict(os.environ, GYRE_PLUGINS=folder))


class Plugin(unittest.TestCase):
    def refused(self, content, *parts):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "libgyre-cuda.so")
            with open(path, "wb") as f:
                f.write(content)
            p = start(folder)
        self.assertEqual((p.returncode, p.stdout, p.stderr.count("\n")), (1, "", 1), p.stderr)
        for part in ("--device cuda", path) + parts:
            self.assertIn(part, p.stderr)

    def test_what_is_no_library_is_refused(self):
        for content in (b"", b"x", b"#!/bin/sh\n" * 100, b"\x7fELF" + b"\xff" * 200):
            self.refused(content, "cut short", "make cuda")

    def test_a_library_that_was_cut_short_is_refused(self):
        with open(GYRE, "rb") as f:
            whole = f.read()
        for n in (64, 4096, len(whole) // 2, len(whole) - 1):
            self.refused(whole[:n], "cut short")

    def test_another_program_is_refused(self):
        with open(GYRE, "rb") as f:
            self.refused(f.read(), "make cuda")

    def built_as(self, version, interface):
        """A library of a gyre of that version and interface, without a backend."""
        with tempfile.TemporaryDirectory() as folder:
            source = os.path.join(folder, "plugin.c")
            with open(source, "w") as f:
                f.write(
                    "#include <stdint.h>\n"
                    "struct { const char *version; uint64_t interface; const char *built; const void *ops; }\n"
                    'gyre_plugin = {"%s", %d, "nothing", 0};\n' % (version, interface))
            path = os.path.join(folder, "libgyre-cuda.so")
            subprocess.run(["cc", "-shared", "-fPIC", "-o", path, source], check=True)
            with open(path, "rb") as f:
                return f.read()

    def test_a_library_of_another_version_is_refused_with_both(self):
        here = subprocess.run([GYRE, "version"], capture_output=True, text=True).stdout.split()[1]
        self.refused(self.built_as("0.0.9", 1), "0.0.9", here, "make cuda")

    def test_the_current_folder_is_nowhere_where_proc_is_not_mounted(self):
        hide = ["unshare", "--mount", "--map-root-user", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"]
        if subprocess.run(hide + ["true"], capture_output=True).returncode != 0:
            self.skipTest("no file systems can be mounted here")
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "libgyre-cuda.so"), "wb") as f:
                f.write(self.built_as("0.0.9", 1))
            env = {k: v for k, v in os.environ.items() if k != "GYRE_PLUGINS"}
            p = subprocess.run(hide + [GYRE, "run", STORY, "-p", "x", "-n", "1", "--device", "cuda"],
                               capture_output=True, text=True, timeout=60, cwd=folder, env=env)
        self.assertEqual((p.returncode, p.stdout), (1, ""), p.stderr)
        self.assertIn("not known without /proc", p.stderr)
        self.assertNotIn("0.0.9", p.stderr)

    def test_a_library_of_other_sources_of_this_version_is_refused(self):
        here = subprocess.run([GYRE, "version"], capture_output=True, text=True).stdout.split()[1]
        self.refused(self.built_as(here, 1), "other sources", "make cuda")

    def test_a_folder_without_it_is_refused_whatever_stands_beside_the_program(self):
        with tempfile.TemporaryDirectory() as folder:
            p = start(folder)
        self.assertEqual((p.returncode, p.stdout, p.stderr.count("\n")), (1, "", 1), p.stderr)
        for part in ("there is no libgyre-cuda.so", folder, "make cuda"):
            self.assertIn(part, p.stderr)


if __name__ == "__main__":
    unittest.main()
