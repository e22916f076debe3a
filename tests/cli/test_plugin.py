"""A backend's library that is missing, empty, cut short or another's: one sentence, and never a crash."""
import os
import subprocess
import tempfile
import unittest

GYRE = os.path.abspath(os.environ["GYRE"])
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
STORY = os.path.join(ROOT, "models/story")


def start(folder):
    return subprocess.run([GYRE, "run", STORY, "-p", "x", "-n", "1", "--device", "cuda"], capture_output=True, text=True, timeout=60,
                          env=dict(os.environ, GYRE_PLUGINS=folder))


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

    def test_a_folder_without_it_says_where_was_looked(self):
        with tempfile.TemporaryDirectory() as folder:
            p = start(folder)
        if p.returncode == 1 and "there is no libgyre-cuda.so" in p.stderr:  # else one stands beside the program
            self.assertIn(folder, p.stderr)
            self.assertIn("make cuda", p.stderr)


if __name__ == "__main__":
    unittest.main()
