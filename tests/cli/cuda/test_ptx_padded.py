"""Steps that are padded to more rows than a step may have tokens, on the CUDA backend without a GPU:
tests/ptx/machine.h, which ends a program that reads outside of an allocation."""
import json
import os
import subprocess
import unittest

from ptx_machine import MACHINE, ROOT, needs_machine
from serving import GYRE


@needs_machine
class Padded(unittest.TestCase):
    def test_as_many_sequences_as_a_step_has_tokens(self):
        for model in ("llama", "gemma4"):  # heads of 16, and of 32 and 128
            lines = "".join(
                json.dumps({"prompt": "Once upon", "max_tokens": 3, "temperature": 0}) + "\n" for _ in range(33))
            p = subprocess.run([
                GYRE, "run",
                os.path.join(ROOT, "tests/models", model), "--device", "cuda", "--enforce-eager", "--batch",
                "--no-chat", "--max-num-batched-tokens", "25", "--max-num-seqs", "25"
            ], input=lines, capture_output=True, text=True, env=os.environ | {"GYRE_PLUGINS": MACHINE})
            self.assertEqual(p.returncode, 0, p.stderr[-500:])
            answers = [json.loads(line) for line in p.stdout.splitlines()]
            self.assertEqual([len(a.get("ids", [])) for a in answers], [3] * 33)


if __name__ == "__main__":
    unittest.main()
