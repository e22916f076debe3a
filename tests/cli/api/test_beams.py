"""Beam search over HTTP: what transformers makes of the small models, under load too, and what is refused."""
import json
import os
import socket
import threading
import time
import unittest

from brief import part_of
from patience import PATIENCE
from serving import ROOT, Server

with open(os.path.join(ROOT, "build/data/beams/beams.json")) as f:
    GOLDEN = json.load(f)


def ask(server, case, **extra):
    body = dict(prompt=case["ids"], use_beam_search=True, beam_width=case["width"], n=case["width"],
                length_penalty=case["length_penalty"], early_stopping=case["early_stopping"],
                max_tokens=case["max_tokens"], return_token_ids=True, logprobs=0, **extra)
    if "stop" in case:
        body["stop_token_ids"] = [case["stop"]]
    status, r = server.post("/v1/completions", **body)
    assert status == 200, r
    return r


class Transformers(unittest.TestCase):
    def compare(self, case, r):
        self.assertEqual([c["token_ids"] for c in r["choices"]], case["sequences"])
        for choice, score in zip(r["choices"], case.get("scores", [])):
            logprobs = choice["logprobs"]["token_logprobs"]
            self.assertAlmostEqual(
                sum(logprobs) / len(logprobs)**case["length_penalty"], score, delta=1e-3 * max(1, abs(score)))
            self.assertEqual(
                choice["finish_reason"], "stop"
                if len(logprobs) < case["max_tokens"] or choice["token_ids"][-1] == case.get("stop") else "length")

    def check(self, family):
        server = Server(os.path.join("tests/models", family))
        try:
            for number, case in enumerate(GOLDEN[family]):
                with self.subTest(family=family, case=number):
                    self.compare(case, ask(server, case))
        finally:
            self.assertEqual(server.stop(), 0)

    def test_all_searches_at_once_are_the_same(self):
        server = Server("tests/models/qwen3", "--max-num-seqs", "16")
        answers = [None] * len(GOLDEN["qwen3"])

        def one(i):
            answers[i] = ask(server, GOLDEN["qwen3"][i])
        try:
            threads = [threading.Thread(target=one, args=(i,)) for i in range(len(answers))]
            [t.start() for t in threads]
            [t.join() for t in threads]
            for case, r in zip(GOLDEN["qwen3"], answers):
                self.compare(case, r)
        finally:
            self.assertEqual(server.stop(), 0)


for name in GOLDEN:
    setattr(Transformers, "test_beams_of_" + name, lambda self, name=name: self.check(name))
Transformers = part_of(1 / 4)(Transformers)


class Fields(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("tests/models/llama")

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def test_a_width_of_one_is_greedy(self):
        ask = dict(prompt="Once upon a time", max_tokens=100, return_token_ids=True)
        _, beam = self.server.post("/v1/completions", use_beam_search=True, **ask)
        _, greedy = self.server.post("/v1/completions", temperature=0, **ask)
        self.assertEqual(beam["choices"], greedy["choices"])

    def test_chat_and_many_prompts(self):
        _, r = self.server.post("/v1/chat/completions", messages=[{"role": "user", "content": "Tell me a story."}],
                                max_tokens=12, use_beam_search=True, n=2, beam_width=4)
        self.assertEqual([c["index"] for c in r["choices"]], [0, 1])
        self.assertEqual(r["usage"]["completion_tokens"], 24)
        prompts = ["The dog", "Once upon a time", "A cat"]
        ask = dict(max_tokens=10, use_beam_search=True, beam_width=3, n=2)
        _, many = self.server.post("/v1/completions", prompt=prompts, **ask)
        alone = [self.server.post("/v1/completions", prompt=p, **ask)[1]["choices"] for p in prompts]
        self.assertEqual([c["text"] for c in many["choices"]], [c["text"] for a in alone for c in a])
        self.assertEqual([c["index"] for c in many["choices"]], list(range(6)))

    def test_a_salt_lasts_as_long_as_the_search(self):
        ask = dict(prompt="A bird sat in a big old tree. " * 20, max_tokens=70, use_beam_search=True, beam_width=3,
                   ignore_eos=True)
        plain, salted, again = (self.server.post("/v1/completions", **dict(ask, **salt))[1] for salt in
                                ({}, {"cache_salt": "mine" * 50}, {"cache_salt": "mine" * 50}))
        self.assertEqual(salted["choices"], plain["choices"])
        self.assertEqual(salted["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        self.assertGreater(again["usage"]["prompt_tokens_details"]["cached_tokens"], 64)

    def test_beams_share_the_prompt(self):
        prompt = "There was a small house by the sea. " * 40

        def computed():
            info = self.server.request("GET", "/server_info")[1]
            return info["prompt_tokens"] - info["cached_tokens"]
        before = computed()
        _, r = self.server.post("/v1/completions", prompt=prompt, max_tokens=8, use_beam_search=True, beam_width=8)
        n = r["usage"]["prompt_tokens"]
        self.assertEqual((r["usage"]["prompt_tokens_details"]["cached_tokens"], n > 300), (0, True))
        self.assertLess(computed() - before, n + 7 * 8 * (64 + 8))  # what is past the last whole block of 64

    def test_what_cannot_be_is_refused_by_name(self):
        def refused(param, path="/v1/completions", **body):
            prompt = {"prompt": "x"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "x"}]}
            body = dict(dict(prompt, max_tokens=2), **body)
            status, r = self.server.post(path, **body)
            self.assertEqual((status, r["error"]["param"] if status != 200 else r), (400, param), r)
        for path in ("/v1/completions", "/v1/chat/completions"):
            for field, bad in (("beam_width", 0), ("beam_width", 20), ("beam_width", 1.5), ("length_penalty", "x"),
                               ("length_penalty", 1000), ("early_stopping", "x"), ("early_stopping", 1),
                               ("stream", True), ("stop", "x"), ("temperature", 0.5), ("top_k", 5), ("top_p", 0.5),
                               ("min_p", 0.5), ("repetition_penalty", 1.1), ("presence_penalty", 1),
                               ("frequency_penalty", 1), ("logit_bias", {"5": 1}), ("bad_words", ["x"]),
                               ("allowed_token_ids", [5]), ("min_tokens", 1), ("prompt_logprobs",
                                                                               1), ("n", 3), ("max_tokens", 0)):
                with self.subTest(path=path, field=field):
                    refused(field, path, **dict({"use_beam_search": True, "beam_width": 2}, **{field: bad}))
            for field, alone in (("beam_width", 2), ("length_penalty", 0.5), ("early_stopping", True)):
                refused(field, path, **{field: alone})
        refused("best_of", use_beam_search=True, best_of=3)
        refused("echo", use_beam_search=True, echo=True, logprobs=0)
        _, r = self.server.post("/v1/completions", prompt="Once", use_beam_search=True, echo=True, max_tokens=3)
        self.assertTrue(r["choices"][0]["text"].startswith("Once"))
        refused("beam_width", use_beam_search=True, beam_width=10, stop_token_ids=list(range(5, 16)))
        for prompt in ("", [5] * 2044, [99999]):
            self.assertEqual(
                self.server.post("/v1/completions", prompt=prompt, max_tokens=10, use_beam_search=True)[0], 400)
        status, _ = self.server.post("/v1/completions", prompt="x", max_tokens=1, length_penalty=1.0,
                                     early_stopping=False, use_beam_search=False)
        self.assertEqual(status, 200)

    def test_a_client_that_leaves_stops_the_search(self):
        s = socket.create_connection(("127.0.0.1", self.server.port))
        body = json.dumps(
            {"prompt": "Once", "max_tokens": 900, "use_beam_search": True, "beam_width": 8,
             "ignore_eos": True}).encode()
        s.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s"
            % (len(body), body))
        time.sleep(0.3)
        s.close()
        deadline = time.time() + PATIENCE
        quiet = 0
        while quiet < 20 and time.time() < deadline:
            quiet = quiet + 1 if self.server.request("GET", "/server_info")[1]["running"] == 0 else 0
            time.sleep(0.01)
        self.assertEqual(quiet, 20)

    def test_a_server_that_ends_lets_a_search_finish(self):
        own = Server("tests/models/llama")
        got = []
        t = threading.Thread(target=lambda: got.append(
            own.post("/v1/completions", prompt="Once", max_tokens=150, use_beam_search=True, beam_width=3, ignore_eos=
                     True)))
        t.start()
        while own.request("GET", "/server_info")[1]["running"] == 0 and t.is_alive():
            time.sleep(0.01)
        self.assertEqual(own.stop(), 0)
        t.join()
        self.assertEqual((got[0][0], got[0][1]["usage"]["completion_tokens"]), (200, 150))


if __name__ == "__main__":
    unittest.main()
