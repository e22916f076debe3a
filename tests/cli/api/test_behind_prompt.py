"""An answer's text is what decoding prompt and answer gives, without what decoding the prompt gives: with a tokenizer
of Llama 2's kind, whose decoder takes a space off the beginning of a text. And echo is the text that was sent."""
import json, os, subprocess, unittest

import serving

MODEL = "tests/data/tokenizers/llama-2-small"
PROMPTS = [
    "Once upon a time", "Hello,", "a", "The fox said:  ", "\n", "日本", "🦊 x", "two  spaces", " led by one", "</s>",
    "<s>The", "Zoé était", "ﬁn\u00a0d"
]


def setUpModule():
    global server
    server = serving.Server(MODEL, "--device", "toy")


def tearDownModule():
    assert server.stop() == 0


def token(text):
    vocab = json.load(open(os.path.join(serving.ROOT, MODEL, "tokenizer.json"), encoding="utf-8"))["model"]["vocab"]
    return vocab[text]


def decode(ids):
    """As a reader sees it: special tokens are left out."""
    p = subprocess.run([serving.GYRE, "detokenize",
                        os.path.join(serving.ROOT, MODEL), "--skip-special", "--batch"], input=json.dumps(ids) + "\n",
                       capture_output=True, text=True, timeout=60)
    return json.loads(p.stdout)


class Case(unittest.TestCase):
    def complete(self, **ask):
        status, r = server.post(
            "/v1/completions",
            **dict({"max_tokens": 12, "temperature": 0, "ignore_eos": True, "return_token_ids": True}, **ask))
        self.assertEqual(status, 200, r)
        return r["choices"]

    def streamed(self, path, **ask):
        return "".join(
            c.get("text") or c.get("delta", {}).get("content") or ""
            for e in server.stream(path, **ask)[:-1]
            for c in e["choices"])

    def right(self, choice, prompt_ids=None):
        prompt = prompt_ids or choice["prompt_token_ids"]
        whole, before = decode(prompt + choice["token_ids"]), decode(prompt)
        return whole[len(before):] if whole.startswith(before) else None  # bytes that spoil those of the prompt


class Completions(Case):
    def test_a_word_keeps_its_space(self):
        ask = dict(prompt="Once", allowed_token_ids=[token("▁the")], max_tokens=3)
        self.assertEqual(self.complete(**ask)[0]["text"], " the the the")
        self.assertEqual([c["text"] for c in self.complete(n=3, **ask)], [" the the the"] * 3)
        self.assertEqual(self.streamed("/v1/completions", temperature=0, ignore_eos=True, **ask), " the the the")
        self.assertEqual(
            self.complete(prompt=[1], allowed_token_ids=[token("▁the")], max_tokens=3)[0]["text"],
            "the the the")  # nothing is before

    def test_texts_are_the_rest_of_the_whole(self):
        for prompt in PROMPTS:
            for ask in (dict(), dict(n=2, temperature=1, seed=3), dict(use_beam_search=True, n=2)):
                choices = self.complete(prompt=prompt,
                                        **(dict(ask, ignore_eos=False) if "use_beam_search" in ask else ask))
                for c in choices:
                    c.setdefault("prompt_token_ids", choices[0]["prompt_token_ids"])
                    self.assertIn(self.right(c), (c["text"], None), (prompt, ask))
            self.assertEqual(
                self.streamed("/v1/completions", prompt=prompt, max_tokens=12, temperature=0, ignore_eos=True),
                self.complete(prompt=prompt)[0]["text"])

    def test_a_character_that_is_cut_by_the_border_is_the_answers(self):
        fox = [token("<0x%02X>" % b) for b in "🦊".encode()]
        for cut in (1, 2, 3):
            c = self.complete(prompt=[1, token("a")] + fox[:cut], allowed_token_ids=[fox[cut]], max_tokens=1)[0]
            ids = [1, token("a")] + fox
            self.assertEqual(self.complete(prompt=ids, allowed_token_ids=[token("a")], max_tokens=1)[0]["text"],
                             "a")  # the fox is the prompt's
        self.assertEqual(c["text"], "🦊")

    def test_stop_strings_see_the_space(self):
        ask = dict(prompt="Once", allowed_token_ids=[token("▁the")], max_tokens=5)
        c = self.complete(stop=[" the the"], **ask)[0]
        self.assertEqual((c["text"], c["finish_reason"], len(c["token_ids"])), ("", "stop", 2))
        self.assertEqual(self.complete(stop=["Once the"], **ask)[0]["finish_reason"],
                         "length")  # the prompt is no part of it


class Echo(Case):
    def test_it_is_the_text_that_was_sent(self):
        for prompt in PROMPTS:
            plain = self.complete(prompt=prompt)[0]["text"]
            self.assertEqual(self.complete(prompt=prompt, echo=True)[0]["text"], prompt + plain)
            self.assertEqual(
                self.streamed("/v1/completions", prompt=prompt, echo=True, max_tokens=12, temperature=0,
                              ignore_eos=True), prompt + plain)
        self.assertEqual([c["text"] for c in self.complete(prompt=["a", "the b"], echo=True, max_tokens=0)],
                         ["a", "the b"])
        self.assertEqual(self.complete(prompt=[1, token("▁the")], echo=True, max_tokens=0)[0]["text"],
                         "<s> the")  # of ids, what they decode to

    def check(self, text, l, prompt):
        offsets = l["text_offset"] + [len(text)]
        self.assertEqual(offsets, sorted(offsets), prompt)
        for name, begin, end in zip(l["tokens"], offsets, offsets[1:]):
            if len(name) > 1 and "\ufffd" not in text[begin:end] and not (name in ("<s>", "</s>", "<unk>")
                                                                          and begin == end):  # not tokens of a byte
                self.assertEqual(text[begin:end], name, (prompt, l))

    def test_offsets_are_places_in_the_text(self):
        for prompt in PROMPTS:
            c = self.complete(prompt=prompt, echo=True, logprobs=2)[0]
            self.check(c["text"], c["logprobs"], prompt)
            n = len(c["prompt_token_ids"])
            self.assertEqual(c["logprobs"]["text_offset"][n], len(prompt), prompt)
            alone = self.complete(prompt=prompt, logprobs=2)[0]
            self.check(alone["text"], alone["logprobs"], prompt)
            self.assertEqual([o + len(prompt) for o in alone["logprobs"]["text_offset"]],
                             c["logprobs"]["text_offset"][n:])

    def test_the_token_itself_is_among_the_most_probable_by_its_name(self):
        l = self.complete(prompt="the the", echo=True, logprobs=1, max_tokens=2)[0]["logprobs"]
        self.assertEqual(l["tokens"][:3], ["<s>", "the", " the"])
        self.assertEqual(l["text_offset"][:4], [0, 0, 3, 7])
        for name, top in zip(l["tokens"][1:], l["top_logprobs"][1:]):
            self.assertIn(name, top)


class Chats(Case):
    MESSAGES = [{"role": "user", "content": "Tell me a story"}]

    def test_all_dialects_give_the_same_text(self):
        ask = dict(messages=self.MESSAGES, max_tokens=10, temperature=0)
        _, chat = server.post("/v1/chat/completions", return_token_ids=True, **ask)
        text = chat["choices"][0]["message"]["content"]
        self.assertIn(self.right(chat["choices"][0], chat["prompt_token_ids"]), (text, None))
        self.assertEqual(self.streamed("/v1/chat/completions", **ask), text)
        _, m = server.post("/v1/messages", **ask)
        self.assertEqual(m["content"][0]["text"], text)
        _, r = server.post("/v1/responses", input=self.MESSAGES, max_output_tokens=10, temperature=0)
        self.assertEqual(r["output"][-1]["content"][0]["text"], text)
        word = dict(ask, logit_bias={str(token("▁the")): 100}, logprobs=True)
        _, chat = server.post("/v1/chat/completions", **word)
        self.assertTrue(chat["choices"][0]["message"]["content"].startswith(" the the"))
        self.assertEqual([t["token"] for t in chat["choices"][0]["logprobs"]["content"]], [" the"] * 10)


class Run(Case):
    def test_gyre_run_prints_the_rest_of_the_whole(self):
        for prompt in PROMPTS[:6]:
            flags = [
                "-p", prompt, "-n", "12", "--temperature", "0", "--ignore-eos", "--device", "toy", "--no-chat",
                "--output", "json"
            ]
            p = subprocess.run([serving.GYRE, "run", os.path.join(serving.ROOT, MODEL), *flags], capture_output=True,
                               text=True, timeout=60)
            a = json.loads(p.stdout)
            self.assertIn(self.right({"prompt_token_ids": a["prompt_ids"], "token_ids": a["ids"]}), (a["text"], None),
                          prompt)


if __name__ == "__main__":
    unittest.main()
