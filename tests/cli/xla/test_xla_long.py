"""Long contexts over a PJRT plugin for the CPU: int8 caches, which are written by tiles.

Not in make test-fast: XLA compiles some dozens of programs."""
import json, os, subprocess, unittest

from packages import ROOT
from xla_plugin import environment

GYRE = os.path.abspath(os.environ["GYRE"])
PROMPT = "Once upon a time there was a" * 6


class Int8(unittest.TestCase):
    def ids(self, model, *flags):
        p = subprocess.run([GYRE, "run", os.path.join(ROOT, "tests/models", model), "--prompt", PROMPT, "--no-chat",
                            "--output", "json", "--device", "xla", "--temperature", "0", "--ignore-eos", *flags],
                           capture_output=True, text=True, timeout=500, env=environment(self))
        self.assertEqual(p.returncode, 0, p.stderr)
        return json.loads(p.stdout)["ids"]

    def test_rows_leave_the_same_in_whatever_steps_they_come(self):
        """A row is rounded by itself: whole prompts, pieces that end within tiles, blocks of one tile and of two."""
        how = ("-n", "40", "--kv-cache-dtype", "int8")
        whole = self.ids("gemma4", *how)
        for steps in (("--max-num-batched-tokens", "5"), ("--max-num-batched-tokens", "33", "--block-size", "16"),
                      ("--block-size", "32")):
            self.assertEqual(self.ids("gemma4", *how, *steps), whole)


if __name__ == "__main__":
    unittest.main()
