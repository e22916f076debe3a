"""Log-probabilities of all tokens: -1, bounded by --max-logprobs, whole, echoed, of a prompt, in chat and in
streams."""

import math
import unittest

from serving import Server

VOCAB = 1024
CHAT = [{"role": "user", "content": "Tell me a story about a fox."}]
GO_ON = {"prompt": "Once upon a time", "max_tokens": 3, "temperature": 0}


def setUpModule():
    global server, wide
    server = Server("tests/models/llama")
    wide = Server(
        "tests/models/llama", "--max-logprobs", "-1", "--max-num-batched-tokens", "8"
    )  # a prompt takes several steps


def tearDownModule():
    assert (server.stop(), wide.stop()) == (0, 0)


class All(unittest.TestCase):
    def test_they_are_a_distribution_that_begins_with_the_few(self):
        few = server.post(
            "/v1/chat/completions", messages=CHAT, max_tokens=4, temperature=0, logprobs=True, top_logprobs=20
        )[1]
        status, r = wide.post(
            "/v1/chat/completions", messages=CHAT, max_tokens=4, temperature=0, logprobs=True, top_logprobs=-1
        )
        self.assertEqual(status, 200, r)
        for one, all_ in zip(few["choices"][0]["logprobs"]["content"], r["choices"][0]["logprobs"]["content"]):
            self.assertEqual(len(all_["top_logprobs"]), VOCAB)
            self.assertAlmostEqual(sum(math.exp(t["logprob"]) for t in all_["top_logprobs"]), 1, places=3)
            values = [t["logprob"] for t in all_["top_logprobs"]]
            self.assertEqual(values, sorted(values, reverse=True))
            self.assertEqual(all_["top_logprobs"][:20], one["top_logprobs"])
            self.assertEqual((all_["token"], all_["logprob"]), (one["token"], one["logprob"]))

    def test_more_than_twenty_and_fewer_than_all(self):
        all_ = wide.post("/v1/completions", **GO_ON, logprobs=-1, return_tokens_as_token_ids=True)[1]["choices"][0][
            "logprobs"
        ]
        some = wide.post("/v1/completions", **GO_ON, logprobs=100, return_tokens_as_token_ids=True)[1]["choices"][0][
            "logprobs"
        ]
        for a, s in zip(all_["top_logprobs"], some["top_logprobs"]):
            self.assertEqual(len(a), VOCAB)
            self.assertEqual(list(s.items()), list(a.items())[:100])

    def test_streams_and_drawn_answers_have_them_too(self):
        ask = dict(GO_ON, logprobs=-1, seed=3, temperature=1, n=2, stop=["zzz"])
        whole = wide.post("/v1/completions", **ask)[1]["choices"]
        tops = [[], []]
        for e in wide.stream("/v1/completions", **ask)[:-1]:
            for c in e["choices"]:
                tops[c["index"]] += c["logprobs"]["top_logprobs"]
        self.assertEqual(tops, [c["logprobs"]["top_logprobs"] for c in whole])

    def test_a_prompt_has_them(self):
        prompt = "The fox ran over the hill and met a dog who sat in the sun."
        few = server.post("/v1/completions", prompt=prompt, max_tokens=1, temperature=0, prompt_logprobs=20)[1][
            "choices"
        ][0]["prompt_logprobs"]
        r = wide.post("/v1/completions", prompt=prompt, max_tokens=1, temperature=0, prompt_logprobs=-1)[1]["choices"][
            0
        ]["prompt_logprobs"]
        self.assertEqual((len(r), r[0]), (len(few), None))
        for one, all_ in zip(few[1:], r[1:]):
            self.assertEqual(len(all_), VOCAB)
            self.assertEqual(sorted(v["rank"] for v in all_.values()), list(range(1, VOCAB + 1)))
            for id, value in one.items():
                self.assertEqual(all_[id], value)
        echoed = wide.post("/v1/completions", prompt=prompt, max_tokens=0, echo=True, logprobs=-1)[1]["choices"][0][
            "logprobs"
        ]["top_logprobs"]
        self.assertTrue(all(len(t) > VOCAB * 0.8 for t in echoed[1:]))  # some ids have the same text

    def test_who_asks_for_few_beside_them_gets_few(self):
        r = wide.post("/v1/completions", **GO_ON, logprobs=-1, prompt_logprobs=1)[1]["choices"][0]
        self.assertTrue(all(len(p) <= 2 for p in r["prompt_logprobs"][1:]))
        r = wide.post("/v1/completions", **GO_ON, logprobs=1, prompt_logprobs=-1)[1]["choices"][0]
        self.assertTrue(all(len(t) <= 2 for t in r["logprobs"]["top_logprobs"]))


class Bounds(unittest.TestCase):
    def test_all_are_more_than_a_server_gives_unless_told(self):
        for path, body in (
            ("/v1/completions", dict(GO_ON, logprobs=-1)),
            ("/v1/completions", dict(GO_ON, prompt_logprobs=-1)),
            ("/v1/chat/completions", {"messages": CHAT, "logprobs": True, "top_logprobs": -1}),
        ):
            status, r = server.post(path, **body)
            self.assertEqual(status, 400)
            self.assertIn("--max-logprobs", r["error"]["message"])
            self.assertIn(r["error"]["param"], body)

    def test_numbers_that_are_none_are_refused(self):
        for s in (server, wide):
            for n in (-2, VOCAB + 1):
                self.assertEqual(s.post("/v1/completions", **GO_ON, logprobs=n)[0], 400)
                self.assertEqual(s.post("/v1/completions", **GO_ON, prompt_logprobs=n)[0], 400)
        self.assertEqual(server.post("/v1/completions", **GO_ON, logprobs=21)[0], 400)

    def test_so_many_that_memory_would_be_at_stake_are_refused(self):
        status, r = wide.post("/v1/completions", prompt="A", max_tokens=900, n=100, logprobs=-1)
        self.assertEqual((status, r["error"]["param"]), (400, "logprobs"))


if __name__ == "__main__":
    unittest.main()
