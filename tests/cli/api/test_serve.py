"""The server over HTTP: what it answers, streams, refuses, and how it ends. Loopback only."""
import json
import os
import socket
import subprocess
import threading
import time
import unittest

from patience import PATIENCE
from serving import GYRE, ROOT, Server

CHAT = [{"role": "user", "content": "Tell me a story about a fox."}]


def setUpModule():
    global server
    server = Server("models/story", "--served-model-name", "story", "--served-model-name", "tales/story")


def tearDownModule():
    assert server.stop() == 0


def text_of(events):
    return "".join(
        c.get("text") or c.get("delta", {}).get("content") or "" for e in events if e != "[DONE]" for c in e["choices"])


class Answers(unittest.TestCase):
    def test_a_completion_has_the_tokens_of_the_command_line(self):
        run = subprocess.run([
            GYRE, "run",
            os.path.join(ROOT, "models/story"), "--no-chat", "-p", "Once upon a time", "-n", "40", "--temperature", "0",
            "--output", "json"
        ], capture_output=True, text=True, timeout=60)
        status, r = server.post("/v1/completions", prompt="Once upon a time", max_tokens=40, temperature=0)
        self.assertEqual(status, 200)
        self.assertEqual(r["choices"][0]["text"], json.loads(run.stdout)["text"])
        self.assertEqual(r["object"], "text_completion")

    def test_completions_give_16_tokens_unless_told(self):
        _, r = server.post("/v1/completions", prompt="Once upon a time", temperature=0)
        self.assertEqual(r["usage"]["completion_tokens"], 16)
        self.assertEqual(r["choices"][0]["finish_reason"], "length")

    def test_a_stream_says_what_the_whole_says(self):
        for path, body in (("/v1/completions", {"prompt": "The little dog"}), ("/v1/chat/completions",
                                                                               {"messages": CHAT})):
            _, whole = server.post(path, max_tokens=60, temperature=0, **body)
            events = server.stream(path, max_tokens=60, temperature=0, **body)
            choice = whole["choices"][0]
            self.assertEqual(events[-1], "[DONE]")
            self.assertEqual(text_of(events), choice.get("text") or choice["message"]["content"])
            self.assertEqual([c["finish_reason"] for e in events[:-1] for c in e["choices"]][-1],
                             choice["finish_reason"])

    def test_the_first_chunk_of_a_chat_has_the_role_and_the_last_the_usage(self):
        events = server.stream("/v1/chat/completions", messages=CHAT, max_tokens=8,
                               stream_options={"include_usage": True})
        self.assertEqual(events[0]["choices"][0]["delta"], {"role": "assistant", "content": ""})
        self.assertEqual(events[-2]["choices"], [])
        self.assertEqual(events[-2]["usage"]["completion_tokens"], 8)
        self.assertTrue(all("usage" not in e for e in events[:-2]))
        self.assertEqual({e["object"] for e in events[:-1]}, {"chat.completion.chunk"})

    def test_prompts_may_be_texts_or_ids_and_many(self):
        _, ids = server.post("/tokenize", prompt="Once upon a time")
        _, one = server.post("/v1/completions", prompt=ids["tokens"], temperature=0)
        _, many = server.post("/v1/completions", prompt=["Once upon a time", "The cat"], temperature=0, n=2)
        self.assertEqual([c["index"] for c in many["choices"]], [0, 1, 2, 3])
        self.assertEqual(many["choices"][0]["text"], one["choices"][0]["text"])
        self.assertEqual(many["choices"][2]["text"], many["choices"][3]["text"])
        self.assertNotEqual(many["choices"][0]["text"], many["choices"][2]["text"])

    def test_a_stop_string_is_not_shown_and_named(self):
        _, free = server.post("/v1/completions", prompt="Once upon a time", temperature=0, max_tokens=40)
        stop = free["choices"][0]["text"][25:32]
        for extra, end in (({}, ""), ({"include_stop_str_in_output": True}, stop)):
            _, r = server.post("/v1/completions", prompt="Once upon a time", temperature=0, max_tokens=40,
                               stop=["@@", stop], **extra)
            self.assertEqual(r["choices"][0]["text"], free["choices"][0]["text"].split(stop)[0] + end)
            self.assertEqual((r["choices"][0]["finish_reason"], r["choices"][0]["stop_reason"]), ("stop", stop))
        events = server.stream("/v1/completions", prompt="Once upon a time", temperature=0, max_tokens=40, stop=stop)
        self.assertEqual(text_of(events), free["choices"][0]["text"].split(stop)[0])

    def test_a_seed_repeats_and_choices_differ(self):
        ask = dict(prompt="Once upon a time", temperature=1.2, seed=5, max_tokens=24, n=3)
        _, a = server.post("/v1/completions", **ask)
        _, b = server.post("/v1/completions", **ask)
        texts = [c["text"] for c in a["choices"]]
        self.assertEqual(texts, [c["text"] for c in b["choices"]])
        self.assertEqual(len(set(texts)), 3)

    def test_echo_with_logprobs_covers_prompt_and_answer(self):
        _, r = server.post("/v1/completions", prompt="Once upon a time", echo=True, logprobs=3, max_tokens=2,
                           temperature=0)
        l = r["choices"][0]["logprobs"]
        self.assertEqual("".join(l["tokens"]), r["choices"][0]["text"])
        self.assertIsNone(l["token_logprobs"][0])
        self.assertTrue(all(x < 0 for x in l["token_logprobs"][1:]))
        self.assertEqual(len(l["top_logprobs"][1]), 3)
        self.assertEqual([r["choices"][0]["text"][o:o + len(t)] for o, t in zip(l["text_offset"], l["tokens"])],
                         l["tokens"])

    def test_chat_logprobs(self):
        _, r = server.post("/v1/chat/completions", messages=CHAT, logprobs=True, top_logprobs=2, max_tokens=5,
                           temperature=0)
        content = r["choices"][0]["logprobs"]["content"]
        self.assertEqual(len(content), 5)
        for t in content:
            self.assertEqual(bytes(t["bytes"]).decode(), t["token"])
            self.assertEqual(t["top_logprobs"][0]["logprob"], t["logprob"])

    def test_a_prompt_seen_before_is_reported_as_cached(self):
        prompt = "Once upon a time there was a very small house. " * 12
        server.post("/v1/completions", prompt=prompt, max_tokens=1)
        _, r = server.post("/v1/completions", prompt=prompt, max_tokens=1)
        self.assertGreaterEqual(r["usage"]["prompt_tokens_details"]["cached_tokens"], 64)
        _, r = server.post("/v1/completions", prompt=prompt, max_tokens=1, cache_salt="mine")
        self.assertEqual(r["usage"]["prompt_tokens_details"]["cached_tokens"], 0)

    def test_content_may_be_parts_of_text(self):
        parts = [{"role": "user", "content": [{"type": "text", "text": CHAT[0]["content"]}]}]
        answers = [
            server.post("/v1/chat/completions", messages=m, max_tokens=10, temperature=0)[1]["choices"][0]["message"]
            for m in (CHAT, parts)
        ]
        self.assertEqual(*answers)

    def test_models(self):
        self.assertEqual([m["id"] for m in server.request("GET", "/v1/models")[1]["data"]], ["story", "tales/story"])
        self.assertEqual(server.request("GET", "/v1/models/tales/story")[1]["max_model_len"], 1024)
        self.assertEqual(server.request("GET", "/v1/models/other")[0], 404)

    def test_tokenize_and_back(self):
        _, r = server.post("/tokenize", prompt="A small dog.", return_token_strs=True)
        self.assertEqual(r["count"], len(r["tokens"]))
        self.assertEqual(len(r["token_strs"]), r["count"])
        self.assertEqual(server.post("/detokenize", tokens=r["tokens"])[1]["prompt"], "A small dog.")

    def test_health_and_version(self):
        for path in ("/health", "/health/live", "/health/ready", "/version", "/server_info"):
            self.assertEqual(server.request("GET", path)[0], 200, path)

    def test_unknown_fields_are_ignored_and_named(self):
        status, r = server.post("/v1/completions", prompt="x", max_tokens=1, frobnicate=3)
        self.assertEqual(status, 200)
        self.assertIn("frobnicate", r["warnings"][0])


class Refusals(unittest.TestCase):
    def refused(self, path, body, status=400, param=None):
        s, r = server.request("POST", path, body)
        self.assertEqual(s, status, r)
        self.assertEqual(set(r["error"]), {"message", "type", "param", "code"})
        if param:
            self.assertEqual(r["error"]["param"], param, r)

    def test_values_out_of_range_name_their_field(self):
        for field, bad in (("temperature", -1), ("temperature", "hot"), ("top_p", 1.5), ("top_k", 1.5), ("min_p", -1),
                           ("n", 0), ("n", 10**9), ("max_tokens", -5), ("max_tokens", 10**12), ("logprobs", 21),
                           ("stop", 5), ("stop", [""]), ("stop", ["x"] * 1000), ("seed", "x"), ("stream", 1),
                           ("logit_bias", {"x": 1}), ("logit_bias", {"99999999": 1}), ("logit_bias", []),
                           ("repetition_penalty", 0), ("presence_penalty", []), ("stop_token_ids",
                                                                                 [-1]), ("stop_token_ids", "x"),
                           ("stream_options", {"include_usage": True}), ("suffix", "x"), ("priority", "x"), ("best_of",
                                                                                                             "x")):
            with self.subTest(field=field, bad=str(bad)[:20]):
                self.refused("/v1/completions", {"prompt": "x", field: bad})

    def test_prompts_that_are_none(self):
        for bad in (None, "", [], {}, 5, [[]], [""], ["a", 5], [-1], [10 ** 12], [4096], [[1, "x"]], ["x"] * 10000):
            with self.subTest(bad=str(bad)[:20]):
                self.refused("/v1/completions", {"prompt": bad})

    def test_messages_that_are_none(self):
        for bad in (None, [], "x", [5], [{"content": "x"}], [{"role": 5,
                                                              "content": "x"}], [{"role": "user", "content": 5}],
                    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}
                     ], [{"role": "user", "content": [{"type": "text"}]}]):
            with self.subTest(bad=str(bad)[:60]):
                self.refused("/v1/chat/completions", {"messages": bad})

    def test_what_is_not_supported_yet_says_so(self):
        tools = [{"type": "function", "function": {"name": "f"}}]  # the model's template shows no calls
        for field, value in (("tools", tools), ("tool_choice", "required"), ("audio", {"voice": "x"})):
            self.refused("/v1/chat/completions", {"messages": CHAT, field: value}, param=field)
        for field, value in (("tools", []), ("response_format", {"type": "text"}), ("tool_choice", "none"),
                             ("tool_choice", "auto"), ("functions", None)):
            self.assertEqual(
                server.post("/v1/chat/completions", messages=CHAT, max_tokens=1, **{field: value})[0], 200, field)

    def test_bodies_that_are_no_objects(self):
        for bad in ("", "{", "[]", "null", "5", "[" * 100000, "{\"a\":" * 100000, "\xff"):
            self.refused("/v1/completions", bad.encode("latin-1"))

    def test_another_model_is_not_found(self):
        self.refused("/v1/completions", {"prompt": "x", "model": "gpt-99"}, 404, "model")

    def test_a_prompt_longer_than_the_context_says_the_numbers(self):
        s, r = server.post("/v1/completions", prompt=[5] * 2000, max_tokens=5)
        self.assertEqual(s, 400)
        self.assertIn("2000", r["error"]["message"])
        self.assertIn("1024", r["error"]["message"])

    def test_paths_and_methods(self):
        self.assertEqual(server.request("GET", "/v1/nothing")[0], 404)
        self.assertEqual(server.request("GET", "/v1/completions")[0], 405)
        self.assertEqual(server.request("POST", "/v1/completions", "x", {"Content-Type": "text/plain"})[0], 415)


class Company(unittest.TestCase):
    def test_many_streams_get_what_each_gets_alone(self):
        prompts = [
            "The %s went to the %s and" % (a, b)
            for a in ("dog", "cat", "fox", "girl")
            for b in ("park", "sea", "shop", "hill")
        ]
        alone = [
            server.post("/v1/completions", prompt=p, max_tokens=40, temperature=0)[1]["choices"][0]["text"]
            for p in prompts
        ]
        got = [None] * len(prompts)

        def one(i):
            got[i] = text_of(server.stream("/v1/completions", prompt=prompts[i], max_tokens=40, temperature=0))
        threads = [threading.Thread(target=one, args=(i,)) for i in range(len(prompts))]
        [t.start() for t in threads]
        [t.join() for t in threads]
        self.assertEqual(got, alone)

    def test_a_client_that_leaves_stops_its_request(self):
        long = {"max_tokens": 1000, "ignore_eos": True}
        asks = [("/v1/completions", dict(long, prompt="Once", n=4)),
                ("/v1/chat/completions", dict(long, messages=CHAT, n=4, max_tokens=None)),
                ("/v1/responses", {"input": "Once", "ignore_eos": True}), ("/v1/messages", dict(long, messages=CHAT)),
                ("/v1/embeddings", {"input": [[5 + i] * 1000 for i in range(40)]})]
        for path, ask in asks:
            for stream in (True, False)[path == "/v1/embeddings":]:
                with self.subTest(path=path, stream=stream):
                    self.leave(path, dict(ask, stream=stream) if stream else ask)

    def leave(self, path, ask):
        s = socket.create_connection(("127.0.0.1", server.port))
        body = json.dumps(ask).encode()
        s.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" %
                  (path.encode(), len(body), body))
        deadline = time.time() + PATIENCE
        while server.request("GET", "/server_info")[1]["running"] == 0 and time.time() < deadline:
            time.sleep(0.005)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        s.close()
        began = server.request("GET", "/server_info")[1]
        while server.request("GET", "/server_info")[1]["running"] > 0 and time.time() < deadline:
            time.sleep(0.01)
        info = server.request("GET", "/server_info")[1]
        self.assertEqual(info["running"], 0)
        self.assertLess(info["generation_tokens"] - began["generation_tokens"], 3000)
        if path == "/v1/embeddings":
            self.assertLess(info["steps"] - began["steps"], 40)  # of some 80


class Ending(unittest.TestCase):
    def test_sigterm_lets_a_stream_finish(self):
        own = Server("models/story")
        events = []
        t = threading.Thread(target=lambda: events.extend(
            own.stream("/v1/completions", prompt="Once", max_tokens=300, ignore_eos=True, n=2)))
        t.start()
        while own.request("GET", "/server_info")[1]["running"] == 0:
            time.sleep(0.005)
        self.assertEqual(own.stop(), 0)
        t.join()
        self.assertEqual(events[-1], "[DONE]")
        self.assertEqual(sorted(c["finish_reason"] for e in events[:-1] for c in e["choices"] if c["finish_reason"]),
                         ["length", "length"])


if __name__ == "__main__":
    unittest.main()
