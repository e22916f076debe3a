"""What ends an answer: the tokens that config.json, generation_config.json, the tokenizer and the chat template call
so, all together."""
import json, os, shutil, subprocess, tempfile, unittest

import serving

MODEL = os.path.join(serving.ROOT, "tests/models/llama")  # 0 is <|endoftext|>, 1 <|im_start|>, 2 <|im_end|>


def changed(folder, name, **fields):
    path = os.path.join(folder, name)
    value = json.load(open(path, encoding="utf-8")) if os.path.exists(path) else {}
    value.update(fields)
    json.dump({k: v for k, v in value.items() if v is not None}, open(path, "w", encoding="utf-8"))


class Ends(unittest.TestCase):
    def folder(self, template=None, tokens=(), config=0, generation=0, **words):
        """The story model, whose configs name `config` and `generation`, with some of its tokens renamed, and a
        tokenizer_config.json of words alone."""
        out = tempfile.TemporaryDirectory()
        self.addCleanup(out.cleanup)
        for name in ("config.json", "generation_config.json", "tokenizer.json"):
            if os.path.exists(os.path.join(MODEL, name)):
                shutil.copy(os.path.join(MODEL, name), out.name)
        changed(out.name, "config.json", eos_token_id=config)
        changed(out.name, "generation_config.json", eos_token_id=generation)
        changed(out.name, "tokenizer_config.json", chat_template=template, **words)
        path = os.path.join(out.name, "tokenizer.json")
        t = json.load(open(path, encoding="utf-8"))
        for i, text in tokens:
            old = [a["content"] for a in t["added_tokens"] if a["id"] == i]
            t["added_tokens"] = [a for a in t["added_tokens"] if a["id"] != i
                                 ] + [{"id": i, "content": text, "special": True}]
            for name in old:
                t["model"]["vocab"].pop(name, None)
            t["model"]["vocab"] = {k: v for k, v in t["model"]["vocab"].items() if v != i}
            t["model"]["vocab"][text] = i
        json.dump(t, open(path, "w", encoding="utf-8"))
        return out.name

    def said(self, folder):
        p = subprocess.run([serving.GYRE, "info", folder, "--output", "json"], capture_output=True, text=True,
                           timeout=60)
        self.assertEqual(p.returncode, 0, p.stderr)
        return sorted(json.loads(p.stdout)["tokens"]["eos"])

    def run_ends(self, folder, token):
        ask = json.dumps({"prompt": "Once", "max_tokens": 6, "temperature": 0, "allowed_token_ids": [token]})
        p = subprocess.run([serving.GYRE, "run", folder, "--batch", "--device", "toy"], input=ask, capture_output=True,
                           text=True, timeout=60)
        self.assertEqual(p.returncode, 0, p.stderr)
        a = json.loads(p.stdout)
        self.assertEqual((a["finish_reason"] == "stop", len(a["ids"])),
                         (len(a["ids"]) == 1, 1 if a["finish_reason"] == "stop" else 6))
        return a["finish_reason"] == "stop"

    def test_all_files_count_together(self):
        folder = self.folder(config=[0, 5], generation=[0, 7], eos_token="<|im_end|>")
        self.assertEqual(self.said(folder), [0, 2, 5, 7])
        self.assertEqual([t for t in (0, 1, 2, 3, 5, 7) if self.run_ends(folder, t)], [0, 2, 5, 7])

    def test_a_wrapper_and_its_text_model_both_say(self):
        for outer, inner, want in ((5, 7, [3, 5, 7]), (None, [7, 8], [3, 7, 8]), ([5, 7], 7, [3, 5, 7])):
            folder = self.folder(generation=3)
            path = os.path.join(folder, "config.json")
            config = json.load(open(path, encoding="utf-8"))
            text = dict(config, model_type="mistral", eos_token_id=inner)
            del text["architectures"]
            json.dump({"model_type": "mistral3", "eos_token_id": outer, "text_config": text},
                      open(path, "w", encoding="utf-8"))
            self.assertEqual(self.said(folder), want)

    def test_there_may_be_many(self):
        many = list(range(20, 400))
        folder = self.folder(config=[0, 5], generation=many, eos_token="<|im_end|>")
        self.assertEqual(self.said(folder), [0, 2, 5] + many)
        self.assertEqual([t for t in (3, 19, 20, 36, 399, 400) if self.run_ends(folder, t)], [20, 36, 399])
        folder = self.folder(generation=list(range(1025)))
        p = subprocess.run([serving.GYRE, "info", folder], capture_output=True, text=True, timeout=60)
        self.assertEqual((p.returncode, p.stderr.count("\n")), (1, 1))
        self.assertIn('"eos_token_id" has 1025 ids, at most 1024 are supported', p.stderr)

    def test_a_server_ends_at_the_tokenizers_eos(self):
        server = serving.Server(self.folder(template="{{ messages }}", eos_token={"content": "<|im_end|>"}), "--device",
                                "toy")
        try:
            ask = dict(max_tokens=6, temperature=0, allowed_token_ids=[2])
            _, r = server.post("/v1/completions", prompt="Once", **ask)
            self.assertEqual((r["choices"][0]["finish_reason"], r["usage"]["completion_tokens"]), ("stop", 1))
            _, r = server.post("/v1/completions", prompt="Once", ignore_eos=True, **ask)
            self.assertEqual((r["choices"][0]["finish_reason"], r["usage"]["completion_tokens"]), ("length", 6))
            _, r = server.post("/v1/chat/completions", messages=[{"role": "user", "content": "x"}], **ask)
            self.assertEqual((r["choices"][0]["finish_reason"], r["usage"]["completion_tokens"]), ("stop", 1))
        finally:
            server.stop()

    def test_turns_end_where_the_template_says(self):
        self.assertEqual(self.said(self.folder(eot_token="<|im_end|>")), [0, 2])
        for key in ("extra_special_tokens", "model_specific_special_tokens"):
            self.assertEqual(self.said(self.folder(**{key: {"eot_token": "<|im_end|>"}})), [0, 2], key)
        old = self.folder()  # the name stands in the file of older folders
        changed(old, "special_tokens_map.json", eos_token="<|im_end|>")
        self.assertEqual(self.said(old), [0, 2])
        changed(old, "tokenizer_config.json", eos_token="<|im_start|>")
        self.assertEqual(self.said(old), [0, 2])  # as in transformers: there it decides
        changed(old, "tokenizer_config.json", added_tokens_decoder={})
        self.assertEqual(self.said(old), [0, 1])  # and here it is not read
        for name in ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<turn|>", "<|end|>"):
            written = self.folder(template="{% for m in messages %}{{ m.content + '" + name + "' }}{% endfor %}",
                                  tokens=[(2, name)])
            self.assertEqual(self.said(written), [0, 2], name)
            self.assertTrue(self.run_ends(written, 2))
            unused = self.folder(template="{% for m in messages %}{{ m.content }}{% endfor %}", tokens=[(2, name)])
            self.assertEqual(self.said(unused), [0], name)
            self.assertFalse(self.run_ends(unused, 2))

    def test_a_message_within_a_turn_ends_nothing(self):
        template = "{% for m in messages %}{{ m.content + '<|end|>' }}{% endfor %}<|return|>"
        self.assertEqual(self.said(self.folder(template=template, tokens=[(1, "<|return|>"), (2, "<|end|>")])), [0, 1])


if __name__ == "__main__":
    unittest.main()
