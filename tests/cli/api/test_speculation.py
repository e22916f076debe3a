"""--speculative-config from outside: the same answers, fewer steps, and what is refused."""
import json
import os
import subprocess
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor

from brief import slow
from serving import GYRE, ROOT, SMALL, Server

PROMPT = "The big dog ran. The big dog ran. The big dog ran. The big"
NGRAM = json.dumps({"method": "ngram", "num_speculative_tokens": 6, "adaptive": False})
SAMPLING = ({"temperature": 0}, {"temperature": 0.8, "seed": 3})


def answers(*flags):
    """The choices, and steps, guesses, right guesses."""
    server = Server(SMALL, *flags)
    try:
        choices = [server.post("/v1/completions", prompt=PROMPT, max_tokens=100, logprobs=2, ignore_eos=True,
                               **s)[1]["choices"]
                   for s in SAMPLING]
        return choices, *(server.metric(name) for name in ("gyre:steps_total",
                                                           "vllm:spec_decode_num_draft_tokens_total",
                                                           "vllm:spec_decode_num_accepted_tokens_total"))
    finally:
        assert server.stop() == 0


class Speculation(unittest.TestCase):
    def test_answers_are_the_same_in_fewer_steps(self):
        plain, steps, none, neither = answers()
        guessed, fewer, n_guessed, n_right = answers("--speculative-config", NGRAM)
        self.assertEqual(guessed, plain)
        self.assertEqual((none, neither), (0, 0))
        self.assertLessEqual(n_right, n_guessed)
        self.assertGreater(n_right, 10)
        self.assertLess(fewer, steps - n_right / 2)

    def test_a_draft_model_changes_no_answer(self):
        draft = {"method": "draft_model", "model": os.path.join(ROOT, SMALL), "num_speculative_tokens": 3,
                 "adaptive": False}
        plain, steps, _, _ = answers()
        guessed, fewer, n_guessed, n_right = answers("--speculative-config", json.dumps(draft))
        self.assertEqual(guessed, plain)
        self.assertGreater(n_right, 0.9 * n_guessed)
        self.assertLess(fewer, steps / 3)

    def test_trees_change_no_answer(self):
        draft = {"method": "draft_model", "model": os.path.join(ROOT, "tests/models/qwen3"), "adaptive": False,
                 "num_speculative_tokens": 4, "eagle_topk": 3, "num_draft_tokens": 9}
        plain, steps, _, _ = answers()
        guessed, fewer, n_guessed, n_right = answers("--speculative-config", json.dumps(draft))
        self.assertEqual(guessed, plain)
        self.assertGreater(n_right, 10)
        self.assertGreater(n_guessed, 6 * fewer)  # of eight at most
        self.assertLess(fewer, steps - n_right / 2)

    def test_a_draft_model_with_other_tokens_changes_no_answer(self):
        draft = {"model": os.path.join(ROOT, "models/story"), "num_speculative_tokens": 3, "adaptive": False}
        plain, steps, _, _ = answers()
        guessed, fewer, n_guessed, n_right = answers("--speculative-config", json.dumps(draft))
        self.assertEqual(guessed, plain)
        self.assertGreater(n_right, 10)
        self.assertLessEqual(fewer, steps - n_right / 2)

    def test_other_tokens_take_tokenizers(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("config.json", "model.safetensors"):
                os.symlink(os.path.join(ROOT, "tests/models/llama", name), os.path.join(folder, name))
            rc, said = self.said_with(folder)
        self.assertNotEqual(rc, 0)
        self.assertIn("both folders have a tokenizer", said)

    def said_with(self, folder):
        p = subprocess.run([GYRE, "run", os.path.join(ROOT, "models/story"), "-p", "x", "-n", "1", "--allow-links",
                            "--speculative-config", json.dumps({"model": folder})], capture_output=True, text=True)
        return p.returncode, p.stderr

    def test_who_guesses_through_the_text_says_so(self):
        rc, said = self.said_with(os.path.join(ROOT, "tests/models/llama"))
        self.assertEqual((rc, said.count("guesses through the text")), (0, 1), said)
        with tempfile.TemporaryDirectory() as folder:  # the model itself, with another name of a special token
            for name in ("config.json", "model.safetensors"):
                os.symlink(os.path.join(ROOT, "models/story", name), os.path.join(folder, name))
            with open(os.path.join(ROOT, "models/story/tokenizer.json")) as f:
                tokenizer = f.read()
            self.assertIn("<|im_end|>", tokenizer)
            with open(os.path.join(folder, "tokenizer.json"), "w") as f:
                f.write(tokenizer.replace("<|im_end|>", "<|another|>"))
            rc, said = self.said_with(folder)
        self.assertEqual((rc, said.count("through the text")), (0, 0), said)

    def test_the_tokenizer_of_a_head_is_not_read(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(ROOT, "tests/models/llama/config.json")) as f:
                config = json.load(f)
            with open(os.path.join(folder, "config.json"), "w") as f:
                json.dump({**config, "architectures": ["LlamaForCausalLMEagle3"]}, f)
            with open(os.path.join(folder, "tokenizer.json"), "w") as f:
                f.write("{")
            rc, said = self.said_with(folder)
        self.assertNotEqual(rc, 0)
        self.assertNotIn("tokenizer.json", said)

    def test_what_a_client_predicts_changes_no_answer(self):
        server = Server(SMALL)
        try:
            def ask(**more):
                status, body = server.post("/v1/chat/completions", messages=[{"role": "user", "content": PROMPT}],
                                           max_tokens=60, temperature=0, **more)
                self.assertEqual(status, 200, body)
                return body["choices"][0]["message"]["content"], body["usage"]["completion_tokens_details"]
            text, plain = ask()
            for content in (text, [{"type": "text", "text": text[:20]}, {"type": "text", "text": text[20:]}]):
                again, details = ask(prediction={"type": "content", "content": content})
                self.assertEqual(again, text)
                self.assertGreater(details["accepted_prediction_tokens"], 5)
            self.assertEqual(plain["accepted_prediction_tokens"], 0)
            for wrong in ({"type": "image"}, {"type": "content", "content": 5},
                          {"content": [{"type": "x", "text": ""}]}):
                status, body = server.post("/v1/chat/completions", messages=[{"role": "user", "content": "x"}],
                                           prediction=wrong)
                self.assertEqual(status, 400, wrong)
                self.assertIn("prediction", body["error"]["message"])
            # far more than any answer: cut, within a character
            again, details = ask(prediction={"type": "content", "content": text + "é" * (5 << 20)})
            self.assertEqual(again, text)
            self.assertGreater(details["accepted_prediction_tokens"], 5)
        finally:
            self.assertEqual(server.stop(), 0)

    @slow("three servers; the next test has masks and guesses too")
    def test_grammars_and_guesses_go_together(self):
        schema = {"type": "object", "properties": {"dogs": {"type": "array", "items": {"enum": ["big dog", "old dog"]},
                                                            "minItems": 6, "maxItems": 9}}, "required": ["dogs"]}
        asked = ({"guided_regex": r"( The big dog ran\.){2,9}"}, {"guided_json": schema},
                 {"guided_regex": r"[a-z ]{30,60}\."}, {"guided_choice": ["The big dog ran.", "The big cat"]})
        draft = {"method": "draft_model", "model": os.path.join(ROOT, SMALL), "adaptive": False}
        told = []
        for config in (None, NGRAM, json.dumps(draft)):
            server = Server(SMALL, *(("--speculative-config", config) if config else ()))
            try:
                told.append([server.post("/v1/completions", prompt=PROMPT, max_tokens=120, logprobs=1, **a, **s)[1]
                             ["choices"] for a in asked for s in SAMPLING])
                if config:
                    self.assertGreater(server.metric("vllm:spec_decode_num_accepted_tokens_total"), 20)
            finally:
                self.assertEqual(server.stop(), 0)
        self.assertEqual(told[1], told[0])
        self.assertEqual(told[2], told[0])

    def test_guesses_that_find_no_room_in_a_step(self):
        """Masks of a grammar are of the guesses that they were made for."""
        pattern, n = r"(a[0-9]b[0-9][0-9]c[x-z]d[p-t]e[0-9]{2}f){12}", 6
        server = Server("tests/models/llama", "--max-num-batched-tokens", "16", "--max-num-seqs", str(n),
                        "--speculative-config", NGRAM)
        try:
            def ask(i, **more):
                status, body = server.post("/v1/chat/completions", max_tokens=250, temperature=0, seed=i, **more,
                                           messages=[{"role": "user", "content": f"hello number {i}"}],
                                           structured_outputs={"regex": pattern})
                return (status, body["choices"][0]["message"]["content"]) if status == 200 else (status, body)
            with ThreadPoolExecutor(n) as pool:
                plain = [ask(i) for i in range(n)]
                for _ in range(3):
                    told = list(pool.map(lambda i: ask(i, prediction={"type": "content", "content": plain[i][1]}),
                                         range(n)))
                    self.assertEqual(told, plain)
            for status, text in plain:
                self.assertEqual(status, 200, text)
                self.assertRegex(text, f"^{pattern}$")
        finally:
            self.assertEqual(server.stop(), 0)

    def test_pipelines_and_xla_refuse_trees(self):
        draft = {"model": os.path.join(ROOT, SMALL), "eagle_topk": 2}
        for device, flags in (("cpu", ("--pipeline-parallel-size", "2")), ("xla", ("--device", "xla"))):
            p = subprocess.run([GYRE, "run", os.path.join(ROOT, SMALL), "-p", "x", "-n", "1", "--speculative-config",
                                json.dumps(draft), *flags], capture_output=True, text=True, timeout=60)
            self.assertNotEqual(p.returncode, 0)
            self.assertRegex(p.stderr, "^gyre: a tree .*eagle_topk.* device %s computes chains alone.*\n$" % device)

    def test_what_is_not_known_is_refused_by_name(self):
        for config, word in (({"method": "medusa"}, "medusa"), ({"method": "ngram", "model": "x"}, "model"),
                             ({"method": "ngram", "num_speculative_tokens": 99}, "num_speculative_tokens"),
                             ({"method": "ngram", "prompt_lookup_min": 4, "prompt_lookup_max": 2}, "prompt_lookup_min"),
                             ({"method": "ngram", "eagle_topk": 2}, "tree"),
                             ({"model": os.path.join(ROOT, SMALL), "num_draft_tokens": 8}, "eagle_topk"),
                             ({"model": os.path.join(ROOT, SMALL), "eagle_topk": 9}, "eagle_topk"),
                             ([], "JSON object"), ({}, "method")):
            p = subprocess.run([GYRE, "run", os.path.join(ROOT, SMALL), "-p", "x", "-n", "1",
                                "--speculative-config", json.dumps(config)], capture_output=True, text=True, timeout=60)
            self.assertNotEqual(p.returncode, 0, config)
            self.assertIn(word, p.stderr)


if __name__ == "__main__":
    unittest.main()
