"""Two engines behind one server, of the CPU. Loopback only."""
import concurrent.futures
import os
import re
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from serving import Server  # noqa: E402

BEGINNING = "Once upon a time there was a little fox who lived in a forest. " * 6


class Engines(unittest.TestCase):
    def setUp(self):
        self.server = Server("tests/models/llama", "--served-model-name", "m", "--data-parallel-size", "2",
                             "--threads", "2", "--block-size", "16")

    def tearDown(self):
        self.assertEqual(self.server.stop(), 0)

    def ask(self, prompt):
        status, r = self.server.post("/v1/completions", model="m", prompt=prompt, max_tokens=8, temperature=0)
        self.assertEqual(status, 200, r)
        return r

    def test_answers_are_those_of_one_and_metrics_are_of_both(self):
        prompts = [f"{i} {BEGINNING[:40 + i]}" for i in range(12)]
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(self.ask, prompts))
        alone = [self.ask(p) for p in prompts]
        for a, b in zip(answers, alone):
            self.assertEqual(a["choices"][0]["text"], b["choices"][0]["text"])
        self.assertEqual(self.server.metric("gyre:engines"), 2)
        self.assertEqual(self.server.metric("gyre:engines_failed"), 0)
        self.assertEqual(self.server.metric("vllm:prompt_tokens_total"),
                         sum(a["usage"]["prompt_tokens"] for a in answers + alone))

    def test_a_prompt_goes_where_its_beginning_lies(self):
        texts = [f"{i} {BEGINNING}" for i in range(4)]
        for t in texts:
            self.ask(t)
        for t in texts:
            r = self.ask(t + "The end")
            self.assertGreater(r["usage"]["prompt_tokens_details"]["cached_tokens"], 32)


if __name__ == "__main__":
    unittest.main()
