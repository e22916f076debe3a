"""A model over several ranks of the CPU, served and run. Loopback only."""
import json
import os
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from serving import GYRE, ROOT, Server  # noqa: E402

PROMPT = "Once upon a time there was a"


def run(model, *flags):
    line = [GYRE, "run", os.path.join(ROOT, model), "--prompt", PROMPT, "--no-chat", "--max-tokens", "16"]
    line += ["--output", "json", "--temperature", "0"]
    return subprocess.run([*line, *flags], capture_output=True, text=True, timeout=120)


class Ranks(unittest.TestCase):
    def test_the_answer_is_that_of_one(self):
        for model, flags in (("tests/models/llama", []), ("tests/models/qwen3_moe", ["--enable-expert-parallel"])):
            one, two = run(model), run(model, "--tensor-parallel-size", "2", *flags)
            self.assertEqual(two.returncode, 0, two.stderr)
            self.assertEqual(json.loads(two.stdout)["text"], json.loads(one.stdout)["text"])

    def test_it_is_served(self):
        server = Server("tests/models/llama", "--served-model-name", "m", "-tp", "2", "--max-num-batched-tokens", "64")
        try:
            wanted = json.loads(run("tests/models/llama").stdout)["text"]
            for _ in range(2):
                status, r = server.post("/v1/completions", model="m", prompt=PROMPT, max_tokens=16, temperature=0)
                self.assertEqual(status, 200, r)
                self.assertEqual(r["choices"][0]["text"], wanted)
            text = ""
            for event in server.stream("/v1/completions", model="m", prompt=PROMPT, max_tokens=16, temperature=0):
                text += event["choices"][0]["text"] if isinstance(event, dict) and event.get("choices") else ""
            self.assertEqual(text, wanted)
        finally:
            self.assertEqual(server.stop(), 0)

    def test_what_cannot_be_cut_is_refused_at_start(self):
        said = run("tests/models/llama", "--tensor-parallel-size", "3")
        self.assertNotEqual(said.returncode, 0)
        self.assertIn("4 heads, or pairs of them, cannot be split over 3 devices", said.stderr)
        said = run("tests/models/llama", "--device", "toy", "--tensor-parallel-size", "2")
        self.assertNotEqual(said.returncode, 0)
        self.assertIn("device toy cannot share a model", said.stderr)


if __name__ == "__main__":
    unittest.main()
