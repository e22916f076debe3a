"""A model over several ranks of the CPU, served and run. Loopback only."""
import json
import os
import re
import subprocess
import unittest

from serving import GYRE, ROOT, Server

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

    def loads(self, *flags):
        """The text of an answer, its usage, and how many tokens each expert was sent for it."""
        server = Server("tests/models/qwen3_moe", "--served-model-name", "m", "--threads", "4", *flags)
        try:
            status, r = server.post("/v1/completions", model="m", prompt=PROMPT, max_tokens=16, temperature=0,
                                    ignore_eos=True)
            self.assertEqual(status, 200, r)
            found = re.findall(r'^gyre:expert_tokens_total\{expert="(\d+)"\} (\d+)$',
                               server.request("GET", "/metrics")[1], re.M)
        finally:
            self.assertEqual(server.stop(), 0)
        self.assertEqual([int(e) for e, _ in found], list(range(len(found))))
        return r["choices"][0]["text"], r["usage"], [int(n) for _, n in found]

    def test_what_experts_are_sent_is_counted(self):
        with open(os.path.join(ROOT, "tests/models/qwen3_moe/config.json")) as f:
            config = json.load(f)
        text, usage, one = self.loads()
        n_tokens = usage["prompt_tokens"] + usage["completion_tokens"] - 1  # nobody computes the last one
        self.assertEqual(len(one), config["num_local_experts"])
        self.assertEqual(sum(one), n_tokens * config["num_experts_per_tok"] * config["num_hidden_layers"])
        for flags in (("-tp", "2", "--enable-expert-parallel"), ("-tp", "4", "--enable-expert-parallel"), ("-pp", "2"),
                      ("-tp", "2", "--enable-expert-parallel", "-pp", "2")):
            with self.subTest(flags=flags):
                self.assertEqual(self.loads(*flags), (text, usage, one))
        server = Server("tests/models/llama")
        try:
            self.assertNotIn("expert_tokens", server.request("GET", "/metrics")[1])
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
