"""tools/beside.py with stand-ins for gyre and PyTorch: rounds alternate, medians are of the rounds, a fault is told."""
import os
import subprocess
import tempfile
import unittest

from places import PLAIN, ROOT


GYRE = """#!%s
import json, sys
a = sys.argv
open("log", "a").write("gyre ")
n = open("log").read().count("gyre")
rows = [{"batch": int(b), "tokens_per_s": {"median": int(b) * 100.0 * n}, "floor_ms": 2.0, "ladder_ms": 4.0}
        for b in a[a.index("--batch") + 1].split(",")]
json.dump({"decode": rows}, open(a[a.index("--output-json") + 1], "w"))
assert a[1:4] == ["bench", "decode", "model.json"], a
""" % " ".join(PLAIN)

TORCH = """import sys
open("log", "a").write("torch ")
for b in sys.argv[sys.argv.index("--batch") + 1].split(","):
    print("N %4d  %8.3f ms a step (1.000 to 2.000)  %10.1f tokens/s" % (int(b), 10, int(b) * 50))
"""


class Beside(unittest.TestCase):
    def beside(self, gyre, *words):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (("gyre", gyre), ("torch.py", TORCH)):
                with open(os.path.join(folder, name), "w") as f:
                    f.write(text)
            os.chmod(os.path.join(folder, "gyre"), 0o755)
            p = subprocess.run([
                *PLAIN,
                os.path.join(ROOT, "tools/beside.py"), "model.json", "--gyre", "./gyre", "--yardstick", "./torch.py",
                *words
            ], capture_output=True, text=True, cwd=folder, timeout=60)
            log = os.path.join(folder, "log")
            return p, open(log).read() if os.path.exists(log) else ""

    def test_rounds_alternate_and_their_median_is_told(self):
        p, log = self.beside(GYRE, "--batch", "1,8", "--rounds", "3")
        self.assertEqual((p.returncode, log), (0, "gyre torch " * 3), p.stderr)
        rows = [line.split() for line in p.stdout.splitlines()[1:]]
        self.assertEqual([row[0] for row in rows], ["1", "8"])
        for n, row in zip((1, 8), rows):  # 100, 200 and 300 a sequence; a step takes 5 ms
            self.assertEqual(row[1:5], ["%.1f" % (200 * n), "(%.1f" % (100 * n), "to", "%.1f)" % (300 * n)])
            self.assertEqual(row[5:9], ["40.0", "%", "80.0", "%"])
            self.assertEqual((row[9], row[-1]), ("%.1f" % (50 * n), "4.00"))

    def test_a_program_that_fails_ends_it(self):
        p, _ = self.beside("#!/bin/sh\necho no GPU >&2\nexit 1\n")
        self.assertEqual((p.returncode, p.stdout), (1, ""))
        self.assertIn("no GPU", p.stderr)


if __name__ == "__main__":
    unittest.main()
