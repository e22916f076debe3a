"""Request fields of completions and chat: what each does, what it refuses, and that none is dropped in silence."""
import json
import os
import shutil
import subprocess
import tempfile
import unittest

from brief import slow
from serving import GYRE, ROOT, Server

CHAT = [{"role": "user", "content": "Tell me a story about a fox."}]
PROMPT = "Once upon a time there was a"
BOTH = (("/v1/completions", {"prompt": PROMPT}), ("/v1/chat/completions", {"messages": CHAT}))


def setUpModule():
    global server
    server = Server("tests/models/llama")


def tearDownModule():
    assert server.stop() == 0


class Case(unittest.TestCase):
    def complete(self, to=None, **body):
        status, r = (to or server).post("/v1/completions",
                                        **dict({"prompt": PROMPT, "temperature": 0, "max_tokens": 8}, **body))
        self.assertEqual(status, 200, r)
        return r["choices"][0]

    def refused(self, param, path="/v1/completions", **body):
        status, r = server.post(
            path, **dict({"messages": CHAT} if "chat" in path else {"prompt": PROMPT}, max_tokens=1, **body))
        self.assertEqual((status, r["error"].get("param") if status != 200 else r), (400, param), r)


class Faults(Case):
    def test_sentences_about_prompts_name_the_field_that_the_request_has(self):
        long = "word " * 3000
        for path, param, body in (("/v1/completions", "prompt", {"prompt": long}),
                                  ("/v1/completions", "prompt", {"prompt": ""}),
                                  ("/v1/completions", "max_tokens", {"prompt": "a", "max_tokens": 5000}),
                                  ("/v1/chat/completions", "messages",
                                   {"messages": [{"role": "user", "content": long}]}),
                                  ("/v1/chat/completions", "max_tokens", {"messages": CHAT, "max_tokens": 5000}),
                                  ("/v1/chat/completions", "max_completion_tokens",
                                   {"messages": CHAT, "max_completion_tokens": 5000, "stream": True}),
                                  ("/v1/responses", "input", {"input": long}),
                                  ("/v1/responses", "max_output_tokens", {"input": "a", "max_output_tokens": 5000}),
                                  ("/v1/embeddings", "input", {"input": long})):
            status, r = server.post(path, **body)
            self.assertEqual((status, r["error"]["param"]), (400, param), r)


    def test_a_field_within_another_is_named_with_it_and_a_quoted_word_is_none(self):
        self.refused("stream_options.include_usage", stream=True, stream_options={"include_usage": 5})
        self.refused("stop", stop=[""])
        self.refused("seed", seed="model")
        status, r = server.post("/v1/chat/completions", messages=CHAT, max_tokens=1, chat_template="temperature")
        self.assertEqual((status, r["error"]["param"]), (400, "chat_template"), r)
        status, r = server.request("POST", "/v1/completions", '{"prompt": "a", "x": "stop"')
        self.assertEqual((status, r["error"]["param"]), (400, None), r)


class PromptLogprobs(Case):
    def test_they_are_those_of_the_score_verb_with_ranks(self):
        p = subprocess.run(
            [GYRE, "score", os.path.join(ROOT, "tests/models/llama"), "-p", PROMPT, "--output", "json"],
            capture_output=True, text=True, timeout=60)
        want = json.loads(p.stdout)
        c = self.complete(prompt_logprobs=5, return_token_ids=True)
        ids, got = c["prompt_token_ids"], c["prompt_logprobs"]
        self.assertEqual((len(got), got[0]), (len(ids), None))
        for i, token in enumerate(ids[1:], 1):
            own = got[i][str(token)]
            self.assertAlmostEqual(own["logprob"], want["token_logprobs"][i - 1], places=4)
            self.assertEqual(own["rank"] == 1, token == want["argmax"][i - 1])
            ranks = sorted(e["rank"] for e in got[i].values())
            self.assertEqual(ranks[:5], [1, 2, 3, 4, 5])
            self.assertEqual(len(ranks), 5 if own["rank"] <= 5 else 6)
            by_rank = sorted(got[i].values(), key=lambda e: e["rank"])
            self.assertEqual(by_rank, sorted(by_rank, key=lambda e: -e["logprob"]))
        first = server.post("/detokenize", tokens=ids[:1])[1]["prompt"]
        self.assertEqual(first + "".join(got[i][str(t)]["decoded_token"] for i, t in enumerate(ids) if i), PROMPT)

    def test_the_rank_is_the_place_among_all_tokens(self):
        ids = [269, 680, 261, 300, 17, 901]
        lines = "".join(json.dumps({"prompt_ids": ids[:i]}) + "\n" for i in range(1, len(ids)))
        p = subprocess.run([GYRE, "score", os.path.join(ROOT, "tests/models/llama"), "--batch"], input=lines,
                           capture_output=True, text=True, timeout=60)
        logits = [json.loads(line)["last_logits"] for line in p.stdout.splitlines()]
        got = self.complete(prompt=ids, prompt_logprobs=0)["prompt_logprobs"]
        for i, token in enumerate(ids[1:], 1):
            self.assertEqual(list(got[i]), [str(token)])
            self.assertEqual(got[i][str(token)]["rank"], 1 + sum(x > logits[i - 1][token] for x in logits[i - 1]))

    def test_chat_has_them_beside_the_choices(self):
        status, r = server.post("/v1/chat/completions", messages=CHAT, max_tokens=1, prompt_logprobs=1,
                                return_token_ids=True)
        self.assertEqual(status, 200)
        self.assertEqual(len(r["prompt_logprobs"]), len(r["prompt_token_ids"]))
        self.assertIsNone(server.post("/v1/chat/completions", messages=CHAT, max_tokens=1)[1]["prompt_logprobs"])

    def test_widths_of_prompt_and_answer_differ(self):
        c = self.complete(prompt_logprobs=7, logprobs=2, echo=True)
        n = len(c["prompt_logprobs"])
        self.assertTrue(all(len(t) in (2, 3) for t in c["logprobs"]["top_logprobs"][1:]))
        self.assertTrue(all(len(t) in (7, 8) for t in c["prompt_logprobs"][1:]))
        self.assertEqual(len(c["logprobs"]["tokens"]), n + 8)
        c = self.complete(prompt_logprobs=1, logprobs=20, echo=True)
        self.assertTrue(all(len(t) >= 20 for t in c["logprobs"]["top_logprobs"][1:]))
        self.assertTrue(all(len(t) in (1, 2) for t in c["prompt_logprobs"][1:]))

    def test_choices_of_a_prompt_share_its_score(self):
        ask = dict(prompt=[PROMPT, "The dog and the cat"], max_tokens=3, temperature=1, prompt_logprobs=1, logprobs=1,
                   echo=True, seed=4)
        one, three = (server.post("/v1/completions", n=n, **ask)[1]["choices"] for n in (1, 3))
        best = server.post("/v1/completions", n=2, best_of=4, **ask)[1]["choices"]
        for prompt in (0, 1):
            n = len(one[prompt]["prompt_logprobs"])
            for c in three[3 * prompt:3 * prompt + 3] + best[2 * prompt:2 * prompt + 2]:
                self.assertEqual(c["prompt_logprobs"], one[prompt]["prompt_logprobs"])
                self.assertEqual(c["logprobs"]["token_logprobs"][:n], one[prompt]["logprobs"]["token_logprobs"][:n])
        events = server.stream("/v1/completions", n=3, **{k: v for k, v in ask.items() if k != "prompt_logprobs"})
        first = {}
        for e in events[:-1]:
            first.setdefault(e["choices"][0]["index"], e["choices"][0]["logprobs"]["token_logprobs"])
        for i in range(6):
            n = len(one[i // 3]["prompt_logprobs"])
            self.assertEqual(first[i][:n], one[i // 3]["logprobs"]["token_logprobs"][:n])

    def test_a_prompt_that_is_cached_is_scored_all_the_same(self):
        prompt = "There was a small house by the sea. " * 30
        first, again = (self.complete(prompt=prompt, prompt_logprobs=2)["prompt_logprobs"] for _ in range(2))
        self.assertEqual(first, again)

    def test_what_cannot_be_is_refused(self):
        for path, _ in BOTH:
            for bad in (-1, 21, 1.5, "x", True):
                self.refused("prompt_logprobs", path, prompt_logprobs=bad)
            self.refused("prompt_logprobs", path, prompt_logprobs=1, stream=True)


@slow("scores 1,000 tokens over a vocabulary of 200,000")
class Memory(unittest.TestCase):
    def test_scoring_a_prompt_does_not_hold_its_tokens_times_the_vocabulary(self):
        with tempfile.TemporaryDirectory(prefix="gyre-wide-") as folder:
            source = os.path.join(ROOT, "tests/models/qwen3")
            with open(os.path.join(source, "config.json")) as f:
                config = json.load(f)
            vocab, n = 200000, 1000
            config.update(vocab_size=vocab, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
                          layer_types=["full_attention"], head_dim=8)
            with open(os.path.join(folder, "config.json"), "w") as f:
                json.dump(config, f)
            for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
                shutil.copyfile(os.path.join(source, name), os.path.join(folder, name))
            own = Server(folder, "--load-format", "dummy", "--kv-cache-memory", str(64 << 20))
            try:
                peaks = []
                for length in (20, n):
                    status, r = own.post("/v1/completions", prompt=[(i * 7919) % vocab for i in range(length)],
                                         max_tokens=0, prompt_logprobs=20, echo=True, logprobs=20)
                    self.assertEqual(status, 200, r)
                    self.assertEqual(len(r["choices"][0]["prompt_logprobs"]), length)
                    with open("/proc/%d/status" % own.process.pid) as f:
                        peaks.append(next(int(line.split()[1]) << 10 for line in f if line.startswith("VmHWM")))
            finally:
                self.assertEqual(own.stop(), 0)
            self.assertLess(peaks[1] - peaks[0], 160 << 20, "rows of a step are at most 64 MiB of logits")
            self.assertGreater(4 * vocab * n, 760 << 20)  # what holding them all would take


class Logprobs(Case):
    def test_completions_say_how_many_and_give_the_token_besides(self):
        _, r = server.post("/v1/completions", prompt=PROMPT, max_tokens=40, temperature=2.5, seed=3, logprobs=1)
        l = r["choices"][0]["logprobs"]
        sizes = [len(t) for t in l["top_logprobs"]]
        self.assertEqual(set(sizes), {1, 2})  # hot: some draws are not the most probable
        for token, logprob, top in zip(l["tokens"], l["token_logprobs"], l["top_logprobs"]):
            self.assertAlmostEqual(top[token], logprob, places=4)
        c = self.complete(logprobs=0)
        self.assertEqual([list(t) for t in c["logprobs"]["top_logprobs"]], [[t] for t in c["logprobs"]["tokens"]])
        self.assertIsNone(self.complete(logprobs=None)["logprobs"])
        for bad in (True, -1, 21, "1"):
            self.refused("logprobs", logprobs=bad)
        self.refused("top_logprobs", top_logprobs=3)

    def test_chat_says_whether_and_gives_the_most_probable(self):
        for top in (0, 1, 20):
            _, r = server.post("/v1/chat/completions", messages=CHAT, max_tokens=3, logprobs=True, top_logprobs=top)
            self.assertEqual([len(t["top_logprobs"]) for t in r["choices"][0]["logprobs"]["content"]], [top] * 3)
        self.refused("logprobs", "/v1/chat/completions", logprobs=3)
        self.refused("top_logprobs", "/v1/chat/completions", top_logprobs=3)
        for bad in (21, -1):
            self.refused("top_logprobs", "/v1/chat/completions", logprobs=True, top_logprobs=bad)
            self.assertEqual(server.post("/v1/responses", input="x", max_output_tokens=1, top_logprobs=bad)[0], 400)

    def test_offsets_count_characters(self):
        c = self.complete(prompt="Zoé était là. Once", echo=True, logprobs=1)
        l = c["logprobs"]
        for token, offset in zip(l["tokens"], l["text_offset"]):
            if "\ufffd" not in token:
                self.assertEqual(c["text"][offset:offset + len(token)], token)

    def test_tokens_may_be_called_by_id(self):
        c = self.complete(logprobs=2, return_tokens_as_token_ids=True, return_token_ids=True)
        self.assertEqual(c["logprobs"]["tokens"], ["token_id:%d" % t for t in c["token_ids"]])
        self.assertTrue(all(k.startswith("token_id:") for t in c["logprobs"]["top_logprobs"] for k in t))
        _, r = server.post("/v1/chat/completions", messages=CHAT, max_tokens=2, logprobs=True, top_logprobs=2,
                           return_tokens_as_token_ids=True)
        for t in r["choices"][0]["logprobs"]["content"]:
            self.assertRegex(t["token"], r"^token_id:\d+$")
            self.assertIsNotNone(t["bytes"])


class Ids(Case):
    def test_token_ids_of_an_answer_whole_and_streamed(self):
        whole = self.complete(return_token_ids=True)
        self.assertEqual(whole["prompt_token_ids"], server.post("/tokenize", prompt=PROMPT)[1]["tokens"])
        self.assertEqual(server.post("/detokenize", tokens=whole["token_ids"])[1]["prompt"], whole["text"])
        events = server.stream("/v1/completions", prompt=PROMPT, temperature=0, max_tokens=8, return_token_ids=True)
        chunks = [e["choices"][0] for e in events[:-1]]
        self.assertEqual(sum((c["token_ids"] for c in chunks), []), whole["token_ids"])
        self.assertEqual([c.get("prompt_token_ids") for c in chunks],
                         [whole["prompt_token_ids"]] + [None] * (len(chunks) - 1))
        _, chat = server.post("/v1/chat/completions", messages=CHAT, max_tokens=8, temperature=0, return_token_ids=True)
        events = server.stream("/v1/chat/completions", messages=CHAT, max_tokens=8, temperature=0,
                               return_token_ids=True)
        self.assertEqual(events[0]["prompt_token_ids"], chat["prompt_token_ids"])
        self.assertEqual(sum((e["choices"][0].get("token_ids", []) for e in events[:-1]), []),
                         chat["choices"][0]["token_ids"])

    def test_without_detokenizing_there_is_no_text(self):
        free = self.complete(return_token_ids=True)
        c = self.complete(return_token_ids=True, detokenize=False)
        self.assertEqual((c["text"], c["token_ids"]), ("", free["token_ids"]))
        self.refused("stop", detokenize=False, stop="x")


class Stopping(Case):
    def test_a_stop_token_is_named_and_an_end_of_sequence_is_not(self):
        free = self.complete(return_token_ids=True)
        stop = free["token_ids"][4]
        n = free["token_ids"].index(stop)
        c = self.complete(return_token_ids=True, stop_token_ids=[3, stop])
        self.assertEqual((c["finish_reason"], c["stop_reason"], c["token_ids"]),
                         ("stop", stop, free["token_ids"][:n + 1]))
        self.assertEqual(c["text"], server.post("/detokenize", tokens=free["token_ids"][:n])[1]["prompt"])
        c = self.complete(stop_token_ids=[stop], include_stop_str_in_output=True)
        self.assertEqual(c["text"], server.post("/detokenize", tokens=free["token_ids"][:n + 1])[1]["prompt"])
        c = self.complete(logit_bias={"2": 100})
        self.assertEqual((c["finish_reason"], c["stop_reason"]), ("stop", None))
        c = self.complete(logit_bias={"2": 100}, ignore_eos=True)
        self.assertEqual(c["finish_reason"], "length")

    def test_before_min_tokens_nothing_stops(self):
        c = self.complete(logit_bias={"2": 100}, min_tokens=5, return_token_ids=True, max_tokens=20)
        self.assertEqual((len(c["token_ids"]), c["token_ids"][5], 2 in c["token_ids"][:5]), (6, 2, False))
        free = self.complete(max_tokens=30)["text"]
        stop = free[2:5]
        self.assertEqual(self.complete(max_tokens=30, stop=stop)["text"], free[:2])
        self.assertEqual(self.complete(max_tokens=30, stop=stop, min_tokens=30)["text"], free)
        later = self.complete(max_tokens=30, stop=" ", min_tokens=12)
        self.assertEqual((later["finish_reason"], free.startswith(later["text"])), ("stop", True))
        half = server.post("/tokenize", prompt="\u00e9", add_special_tokens=False)[1]["tokens"][0]  # of two bytes
        c = self.complete(max_tokens=3, min_tokens=3, logit_bias={str(half): 100}, stop="\ufffd")
        self.assertEqual((c["finish_reason"], set(c["text"])), ("length", {"\ufffd"}))
        self.refused("min_tokens", min_tokens=2)

    def test_a_request_that_bans_everything_is_told(self):
        for extra in ({}, {"stream": True}):
            status, r = server.post("/v1/completions", prompt=PROMPT, max_tokens=5, allowed_token_ids=[2], min_tokens=2,
                                    **extra)
            error = r if not extra else json.loads(r.split("data: ")[1])
            self.assertEqual((status if not extra else 400, error["error"]["type"]), (400, "invalid_request_error"), r)
            self.assertIn("allowed_token_ids", error["error"]["message"])
        self.assertEqual(server.request("GET", "/health/ready")[0], 200)


class Prompts(Case):
    def test_a_prompt_is_cut_at_the_side_that_is_named(self):
        ids = server.post("/tokenize", prompt=PROMPT)[1]["tokens"]
        for extra, want in (({"truncate_prompt_tokens": 3},
                             ids[-3:]), ({"truncate_prompt_tokens": 3, "truncation_side": "right"}, ids[:3]),
                            ({"truncate_prompt_tokens": 100}, ids), ({"truncate_prompt_tokens": len(ids)}, ids)):
            for prompt in (PROMPT, ids):
                self.assertEqual(self.complete(prompt=prompt, return_token_ids=True, **extra)["prompt_token_ids"], want)
        long = self.complete(prompt=[5] * 5000, truncate_prompt_tokens=-1, max_tokens=24, return_token_ids=True)
        self.assertEqual(len(long["prompt_token_ids"]), 2024)
        _, r = server.post("/v1/chat/completions", messages=CHAT, max_tokens=1, truncate_prompt_tokens=4,
                           return_token_ids=True)
        self.assertEqual(len(r["prompt_token_ids"]), 4)
        for bad in (0, -2, "x", 1.5):
            self.refused("truncate_prompt_tokens", truncate_prompt_tokens=bad)
        self.refused("truncation_side", truncation_side="middle")

    def test_special_tokens_are_added_or_not_and_survive_a_cut(self):
        own = Server("tests/models/gemma3")
        try:
            bare = self.complete(own, prompt="The big dog", add_special_tokens=False,
                                 return_token_ids=True)["prompt_token_ids"]
            full = self.complete(own, prompt="The big dog", return_token_ids=True)["prompt_token_ids"]
            self.assertEqual(full, [2] + bare)
            for n in range(2, len(full)):
                cut = self.complete(own, prompt="The big dog", return_token_ids=True,
                                    truncate_prompt_tokens=n)["prompt_token_ids"]
                self.assertEqual(cut, [2] + bare[-(n - 1):])
                cut = self.complete(own, prompt="The big dog", return_token_ids=True, truncate_prompt_tokens=n,
                                    truncation_side="right")["prompt_token_ids"]
                self.assertEqual(cut, full[:n])
            self.assertEqual(own.post("/v1/completions", prompt="The big dog", truncate_prompt_tokens=1)[0], 400)
        finally:
            own.stop()

    def test_echo_in_chat_is_the_message_that_is_continued(self):
        ask = dict(messages=CHAT + [{"role": "assistant", "content": "Once upon"}], continue_final_message=True,
                   add_generation_prompt=False, max_tokens=6, temperature=0)
        plain, echo = (server.post("/v1/chat/completions", echo=e, **ask)[1]["choices"][0]["message"]["content"]
                       for e in (False, True))
        self.assertEqual(echo, "Once upon" + plain)
        events = server.stream("/v1/chat/completions", echo=True, **ask)
        self.assertEqual("".join(e["choices"][0]["delta"].get("content") or "" for e in events[:-1]), echo)
        ask = dict(messages=CHAT, max_tokens=6, temperature=0)  # the last message is the user's: nothing to echo
        self.assertEqual(*(server.post("/v1/chat/completions", echo=e, **ask)[1]["choices"][0]["message"]
                           for e in (False, True)))


class BestOf(Case):
    def test_the_n_most_probable_by_token_come_back_best_first(self):
        ask = dict(prompt=[PROMPT, "The dog"], max_tokens=12, temperature=1.5, seed=11, logprobs=0, stop_token_ids=[16])
        all_, best = (server.post("/v1/completions", **dict(ask, **extra))[1]
                      for extra in ({"n": 7}, {"n": 2, "best_of": 7}))
        mean = {
            c["text"]: sum(c["logprobs"]["token_logprobs"]) / len(c["logprobs"]["token_logprobs"])
            for c in all_["choices"]
        }
        self.assertEqual([c["index"] for c in best["choices"]], [0, 1, 2, 3])
        for prompt in (0, 1):
            texts = [c["text"] for c in all_["choices"][7 * prompt:7 * prompt + 7]]
            self.assertEqual([c["text"] for c in best["choices"][2 * prompt:2 * prompt + 2]],
                             sorted(texts, key=lambda t: -mean[t])[:2])
        self.assertEqual(best["usage"], dict(all_["usage"],
                                             prompt_tokens_details=best["usage"]["prompt_tokens_details"]))

    def test_what_was_cached_is_that_of_the_prompts(self):
        prompts = [
            " ".join(["%s went to the %s number %d." % (who, where, i)
                      for i in range(12)])
            for who, where in (("Zoe", "shop"), ("Max", "lake"))
        ]
        cached = [
            server.post("/v1/completions", prompt=prompts, max_tokens=2, temperature=0, cache_salt=salt,
                        **extra)[1]["usage"]["prompt_tokens_details"]["cached_tokens"]
            for salt, extra in (("p", {"n": 2}), ("q", {"n": 1, "best_of": 2}))
        ]
        self.assertEqual(cached, [0, 0])

    def test_log_probabilities_are_shown_only_if_asked(self):
        c = self.complete(best_of=4, temperature=1)
        self.assertIsNone(c["logprobs"])
        self.assertEqual(self.complete(best_of=3, temperature=1, seed=1, max_tokens=0, echo=True)["text"], PROMPT)

    def test_what_cannot_be_is_refused(self):
        for bad in (0, 129, "x", 1.5):
            self.refused("best_of", best_of=bad)
        self.refused("best_of", best_of=2, n=3)
        self.refused("best_of", best_of=2, stream=True)
        self.refused("prompt", prompt=["x"] * 50, best_of=3)
        self.refused("best_of", "/v1/chat/completions", best_of=2)
        events = server.stream("/v1/completions", prompt=PROMPT, best_of=2, n=2, max_tokens=2)
        self.assertEqual(events[-1], "[DONE]")


class Ranges(Case):
    def test_what_is_out_of_range_names_its_field(self):
        for path, _ in BOTH:
            for field, bads in {
                    "logit_bias": ({"5": 101}, {"5": -100.5}, {"-1": 1}, {"999999": 1}, {"5": "x"}, [5]),
                    "presence_penalty": (2.1, -3, "x"), "frequency_penalty": (2.1, -3), "repetition_penalty": (0, -1),
                    "min_p": (-0.1, 1.1), "top_p": (-0.1, 1.1), "top_k": (-2, 2**40), "temperature": (-0.1, "x"),
                    "seed": (1.5, 2**64), "min_tokens": (-1, ), "allowed_token_ids": ([], [-1], [10**7], "x", [1.5]),
                    "bad_words": ("x", [""], [5], ["a"] * 2000), "stop_token_ids": ([10**7], ["x"]), "n": (0, 129, 1.5),
                    "ignore_eos": ("x", ), "skip_special_tokens": (1, ), "add_special_tokens": ("x", ),
                    "detokenize": (0, ), "return_token_ids": (3, ), "echo": ("x", ), "include_stop_str_in_output": (2, )
            }.items():
                for bad in bads:
                    with self.subTest(path=path, field=field, bad=str(bad)[:20]):
                        self.refused(field, path, **{field: bad})

    def test_what_is_not_there_is_refused_unless_it_asks_for_nothing(self):
        for field, bad, nothing in (("typical_p", 0.9, 1.0), ("mirostat", 2, 0), ("xtc_probability", 0.1, 0),
                                    ("dry_multiplier", 0.8, 0), ("top_n_sigma", 1, -1), ("repeat_penalty", 1.1, 1.0),
                                    ("samplers", ["top_k"], []), ("top_n_tokens", 5, 0), ("logprob_token_ids", [5], []),
                                    ("thinking_token_budget", 100,
                                     None), ("logits_processors", ["x"], []), ("lora_request", {"name": "x"}, None),
                                    ("vllm_xargs", {"a": 1}, {}), ("repetition_detection", {"max": 3},
                                                                   None), ("stream_interval", 5, 1), ("prompt_embeds",
                                                                                                      "x", None)):
            with self.subTest(field=field):
                self.refused(field, **{field: bad})
                status, r = server.post("/v1/completions", prompt=PROMPT, max_tokens=1, **{field: nothing})
                self.assertEqual((status, r.get("warnings")), (200, None), r)

    def test_an_unknown_field_that_is_null_is_as_absent(self):
        status, r = server.post("/v1/completions", prompt=PROMPT, max_tokens=1, dumped=None)
        self.assertEqual((status, r.get("warnings")), (200, None), r)
        status, r = server.post("/v1/completions", prompt=PROMPT, max_tokens=1, dumped=0)
        self.assertEqual(r["warnings"], ['the field "dumped" is not known and was ignored'])

    def test_fields_beside_what_is_off_may_ask_for_nothing(self):
        text, chat = "/v1/completions", "/v1/chat/completions"
        for path, fields in ((text, {"stream_options": {}}), (chat, {"stream_options": {}}),
                             (chat, {"top_logprobs": 0}),
                             (chat, {"top_logprobs": 0, "logprobs": False})):
            with self.subTest(path=path, **fields):
                asked = {"prompt": PROMPT} if path == text else {"messages": [{"role": "user", "content": "Hi"}]}
                status, r = server.post(path, max_tokens=1, **asked, **fields)
                self.assertEqual((status, r.get("warnings")), (200, None), r)
        for field, bad in (("stream_options", {"include_usage": False}), ("top_logprobs", 1), ("top_logprobs", "0")):
            with self.subTest(field=field):
                status, r = server.post("/v1/chat/completions", max_tokens=1, **{field: bad},
                                        messages=[{"role": "user", "content": "Hi"}])
                self.assertEqual((status, r["error"]["param"]), (400, field), r)


if __name__ == "__main__":
    unittest.main()
