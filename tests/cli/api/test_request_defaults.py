"""What requests ask for where they say nothing: the model's generation_config.json, --generation-config,
--override-generation-config."""

import json
import os
import shutil
import subprocess
import tempfile
import unittest

from serving import GYRE, ROOT, SMALL, Server

ASK = {"messages": [{"role": "user", "content": "Tell me a story about a fox."}], "max_tokens": 30}


class Defaults(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.model = os.path.join(folder.name, "model")
        shutil.copytree(os.path.join(ROOT, SMALL), self.model)
        self.config({})

    def config(self, fields):
        with open(os.path.join(self.model, "generation_config.json"), "w") as f:
            json.dump(dict({"eos_token_id": 0}, **fields), f)

    def serve(self, *flags):
        s = Server(self.model, *flags)
        self.addCleanup(s.stop)
        return s

    def text(self, server, **body):
        status, r = server.post("/v1/chat/completions", **{**ASK, "seed": 1, **body})
        self.assertEqual(status, 200, r)
        return r["choices"][0]["message"]["content"]

    def greedy(self, server):
        """Whether three seeds give the most probable text."""
        texts = {self.text(server, seed=seed) for seed in (1, 2, 3)}
        return texts == {self.text(server, temperature=0)}

    def test_a_model_that_says_nothing_draws_at_1(self):
        s = self.serve()
        self.assertEqual(self.text(s), self.text(s, temperature=1))

    def test_the_models_temperature_is_taken_unless_told(self):
        self.config({"do_sample": True, "temperature": 0.01})
        self.assertTrue(self.greedy(self.serve()))
        self.assertFalse(self.greedy(self.serve("--generation-config", "vllm")))

    def test_the_line_is_over_the_model_and_the_request_over_the_line(self):
        self.config({"do_sample": True, "temperature": 0.01})
        s = self.serve("--override-generation-config", '{"temperature": 1.5, "top_k": 40}')
        self.assertEqual(self.text(s), self.text(s, temperature=1.5, top_k=40))
        self.assertFalse(self.greedy(s))
        self.assertEqual(self.text(s, temperature=0), self.text(self.serve(), temperature=0))
        s = self.serve("--override-generation-config", '{"top_k": 1}')
        self.assertTrue(self.greedy(s))
        for path, body in (
            ("/v1/completions", {"prompt": "Once", "max_tokens": 20}),
            ("/v1/responses", {"input": "A story.", "max_output_tokens": 20}),
            ("/v1/messages", {"messages": ASK["messages"], "max_tokens": 20}),
        ):

            def said(**more):
                r = s.post(path, **dict(body, **more))[1]
                return r.get("choices") or [p for i in r.get("output", []) for p in i["content"]] or r["content"]

            self.assertEqual(said(), said(temperature=0), path)

    def test_max_new_tokens_bounds_every_answer(self):
        s = self.serve("--override-generation-config", '{"max_new_tokens": 5}')
        for path, body in (
            ("/v1/chat/completions", dict(ASK, max_tokens=None)),
            ("/v1/chat/completions", ASK),
            ("/v1/completions", {"prompt": ["A", "B"], "max_tokens": 9}),
        ):
            r = s.post(path, **dict(body, ignore_eos=True))[1]
            self.assertEqual(
                (r["usage"]["completion_tokens"], r["choices"][0]["finish_reason"]), (5 * len(r["choices"]), "length")
            )
        self.assertEqual(
            s.post("/v1/completions", prompt="A", max_tokens=3, ignore_eos=True)[1]["usage"]["completion_tokens"], 3
        )
        self.assertIn(
            "prompt is too long",
            s.post("/v1/chat/completions", messages=[{"role": "user", "content": "fox " * 3000}])[1]["error"][
                "message"
            ],
        )

    def test_what_is_not_understood_ends_the_line(self):
        for value, words in (
            ("{", "JSON"),
            ("5", "object"),
            ('{"temprature": 1}', "temprature"),
            ('{"top_p": 7}', "top_p"),
            ('{"temperature": "hot"}', "temperature"),
            ('{"max_new_tokens": 0}', "max_new_tokens"),
        ):
            p = subprocess.run(
                [GYRE, "serve", self.model, "--port", "0", "--override-generation-config", value],
                capture_output=True,
                text=True,
                timeout=60,
            )
            self.assertEqual(p.returncode, 1, value)
            self.assertIn("--override-generation-config", p.stderr)
            self.assertIn(words, p.stderr)


if __name__ == "__main__":
    unittest.main()
