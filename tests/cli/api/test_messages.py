"""Anthropic's dialect: /v1/messages and /v1/messages/count_tokens, whole and as events, with and without thinking."""
import tempfile
import unittest

from brief import slow
from serving import Server, thinking_model

CHAT = [{"role": "user", "content": "Tell me a story about a fox."}]
PATHS = ("/v1/messages", "/v1/messages/count_tokens")


def setUpModule():
    global server, thinker, folder
    folder = tempfile.TemporaryDirectory()
    server = Server("tests/models/llama")
    thinker = Server(thinking_model(folder.name))


def tearDownModule():
    codes = server.stop(), thinker.stop()
    folder.cleanup()
    assert codes == (0, 0)


def replay(case, events):
    """What a client makes of the events, whose order is checked on the way."""
    kinds = [kind for kind, _ in events]
    case.assertEqual([data["type"] for _, data in events], kinds)
    case.assertEqual((kinds[0], kinds[-2:]), ("message_start", ["message_delta", "message_stop"]))
    message = events[0][1]["message"]
    case.assertEqual((message["content"], message["stop_reason"], message["usage"]["output_tokens"]), ([], None, 0))
    pings = [i for i, kind in enumerate(kinds) if kind == "ping"]
    case.assertEqual(pings[:1], [2] if "content_block_start" in kinds else [])
    is_open = False
    for kind, data in events[1:-2]:
        if kind == "content_block_start":
            case.assertFalse(is_open)
            case.assertEqual(data["index"], len(message["content"]))
            message["content"].append(data["content_block"])
            is_open = True
        elif kind == "content_block_delta":
            case.assertTrue(is_open)
            case.assertEqual(data["index"], len(message["content"]) - 1)
            delta, block = data["delta"], message["content"][-1]
            field = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}[delta["type"]]
            block[field] += delta[field]
        elif kind == "content_block_stop":
            is_open = False
    case.assertFalse(is_open)
    message.update(events[-2][1]["delta"])
    message["usage"] = events[-2][1]["usage"]
    return message


class Answers(unittest.TestCase):
    def both(self, who=None, **ask):
        """The answer, whole; its stream says the same."""
        ask = dict({"messages": CHAT, "max_tokens": 20, "temperature": 0}, **ask)
        who = who or server
        status, whole = who.post("/v1/messages", **ask)
        self.assertEqual(status, 200, whole)
        streamed = replay(self, who.events("/v1/messages", **ask))
        for field in ("content", "stop_reason", "stop_sequence", "role", "type", "model"):
            self.assertEqual(streamed[field], whole[field])
        for usage in (streamed["usage"], whole["usage"]):
            usage["input_tokens"] += usage.pop("cache_read_input_tokens")
        self.assertEqual(streamed["usage"], whole["usage"])
        return whole

    def test_an_answer_is_that_of_chat_completions(self):
        _, chat = server.post("/v1/chat/completions", messages=[{"role": "system", "content": "Be\nbrief."}] + CHAT,
                              max_tokens=20, temperature=0)
        for system in ("Be\nbrief.", [{"type": "text", "text": "Be"},
                                      {"type": "text", "text": "brief.", "cache_control": {"type": "ephemeral"}}]):
            r = self.both(system=system, metadata={"user_id": "7"})
            self.assertEqual([b["text"] for b in r["content"]], [chat["choices"][0]["message"]["content"]])
            self.assertEqual((r["usage"]["input_tokens"], r["usage"]["output_tokens"]),
                             (chat["usage"]["prompt_tokens"], 20))
            self.assertEqual(r["stop_reason"], "max_tokens")

    def test_stop_sequences_end_it_and_are_named(self):
        r = self.both(stop_sequences=["@@", " named"], max_tokens=60)
        self.assertEqual((r["stop_reason"], r["stop_sequence"]), ("stop_sequence", " named"))
        self.assertEqual(r["content"][0]["text"], self.both(max_tokens=60)["content"][0]["text"].split(" named")[0])

    def test_the_models_own_end_is_the_end_of_the_turn(self):
        ends = [{"role": "user", "content": "Say no."}]
        r = self.both(messages=ends, max_tokens=900, temperature=0.4, top_p=0.9, top_k=50, seed=9)
        self.assertEqual((r["stop_reason"], r["stop_sequence"]), ("end_turn", None))

    @slow("it generates a whole context")
    def test_max_tokens_past_the_context_ends_with_its_own_reason(self):
        r = self.both(max_tokens=100000, ignore_eos=True)
        self.assertEqual(r["stop_reason"], "model_context_window_exceeded")
        self.assertEqual(r["usage"]["input_tokens"] + r["usage"]["output_tokens"], 2048)

    def test_no_tokens_are_no_content(self):
        self.assertEqual(self.both(max_tokens=0)["content"], [])

    def test_a_prompt_seen_before_is_read_from_the_cache(self):
        long = [{"role": "user", "content": "Once upon a time there was a very small house. " * 12}]
        usages = [server.post("/v1/messages", messages=long, max_tokens=1)[1]["usage"] for _ in range(2)]
        self.assertGreaterEqual(usages[1]["cache_read_input_tokens"], 64)
        self.assertEqual(sum(usages[1][f] for f in ("input_tokens", "cache_read_input_tokens")),
                         usages[0]["input_tokens"])

    def test_a_message_of_the_assistant_is_continued(self):
        whole = self.both()["content"][0]["text"]
        begin = whole[:len(whole) // 2].rsplit(" ", 1)[0]
        r = self.both(messages=CHAT + [{"role": "assistant", "content": begin}], max_tokens=8)
        self.assertTrue(whole.startswith((begin + r["content"][0]["text"])[:len(whole)]), (begin, r["content"]))
        _, chat = server.post("/v1/chat/completions", messages=CHAT + [{"role": "assistant", "content": begin}],
                              max_tokens=8, temperature=0, add_generation_prompt=False, continue_final_message=True)
        self.assertEqual(chat["choices"][0]["message"]["content"], r["content"][0]["text"])

    def test_a_continued_message_is_the_prompt_up_to_it(self):
        for begin in ("Once upon a", "Once upon a ", " Once upon a time.\n\n", "fox", "m_end", "<|im_end|>"):
            _, chat = server.post("/v1/chat/completions", messages=CHAT + [{"role": "assistant", "content": begin}],
                                  max_tokens=6, temperature=0, add_generation_prompt=False, continue_final_message=True)
            prompt = "<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n%s" % (CHAT[0]["content"], begin)
            _, raw = server.post("/v1/completions", prompt=prompt, max_tokens=6, temperature=0)
            self.assertEqual(chat["usage"]["prompt_tokens"], raw["usage"]["prompt_tokens"], begin)
            self.assertEqual(chat["choices"][0]["message"]["content"], raw["choices"][0]["text"], begin)

    def test_a_template_that_trims_trims_what_is_continued(self):
        own = Server("tests/models/gemma3")
        try:
            asks = [CHAT + [{"role": "assistant", "content": begin}] for begin in ("Once upon a", " Once upon a \n")]
            answers = [own.post("/v1/messages", messages=m, max_tokens=8, temperature=0)[1] for m in asks]
            self.assertEqual(*[own.post("/v1/messages/count_tokens", messages=m)[1] for m in asks])
            self.assertEqual(*[a["content"] for a in answers])
        finally:
            self.assertEqual(own.stop(), 0)

    def test_count_tokens_counts_what_an_answer_bills(self):
        for extra in ({}, {"system": "Be brief."}, {"messages": CHAT + [{"role": "assistant", "content": "Once"}]}):
            ask = dict({"messages": CHAT}, **extra)
            _, count = server.post("/v1/messages/count_tokens", **ask)
            _, answer = server.post("/v1/messages", max_tokens=1, cache_salt=str(extra), **ask)
            self.assertEqual(count, {"input_tokens": answer["usage"]["input_tokens"]})

    def test_unknown_fields_are_ignored_and_named(self):
        _, r = server.post("/v1/messages", messages=CHAT, max_tokens=1, frobnicate=3)
        self.assertIn("frobnicate", r["warnings"][0])


class Thinking(unittest.TestCase):
    both = Answers.both

    def test_reasoning_is_a_block_before_the_text(self):
        r = self.both(thinker, max_tokens=40)
        self.assertEqual([b["type"] for b in r["content"]], ["thinking", "text"])
        self.assertTrue(r["content"][0]["thinking"] and r["content"][1]["text"])
        self.assertNotIn("</think>", r["content"][0]["thinking"])
        self.assertTrue(0 < r["usage"]["output_tokens_details"]["thinking_tokens"] < 40)
        budget = self.both(thinker, max_tokens=40, thinking={"type": "enabled", "budget_tokens": 1024})
        self.assertEqual(budget["content"], r["content"])
        self.assertIn("budget_tokens", budget["warnings"][0])

    def test_thinking_that_does_not_end_has_no_text(self):
        self.assertEqual([b["type"] for b in self.both(thinker, max_tokens=3)["content"]], ["thinking"])

    def test_thinking_may_be_hidden(self):
        shown, hidden = (self.both(thinker, max_tokens=40, thinking={"type": "adaptive", "display": d})
                         for d in ("summarized", "omitted"))
        self.assertEqual(hidden["content"][0]["thinking"], "")
        self.assertEqual(hidden["content"][1], shown["content"][1])

    def test_thinking_may_be_off(self):
        r = self.both(thinker, thinking={"type": "disabled"}, max_tokens=3)
        self.assertEqual([b["type"] for b in r["content"]], ["text"])

    def test_blocks_go_back_as_they_came(self):
        r = self.both(thinker, max_tokens=40)
        again = CHAT + [{"role": "assistant", "content": r["content"]},
                        {"role": "user", "content": [{"type": "text", "text": "And then?"}]}]
        self.assertEqual(thinker.post("/v1/messages", messages=again, max_tokens=2)[0], 200)

    def test_every_dialect_says_earlier_reasoning_to_the_template(self):
        user, then = CHAT[0]["content"], {"role": "user", "content": "And then?"}
        counts = [
            thinker.post("/v1/messages/count_tokens",
                         messages=CHAT + [{"role": "assistant", "content": blocks}, then])[1]["input_tokens"]
            for blocks in (
                [{"type": "thinking", "thinking": "A fox?", "signature": ""}, {"type": "text", "text": "Once."}],
                "<think>A fox?</think>Once.")
        ]
        for name in ("reasoning_content", "reasoning"):
            _, r = thinker.post("/v1/chat/completions",
                                messages=CHAT + [{"role": "assistant", "content": "Once.", name: "A fox?"}, then],
                                max_tokens=1)
            counts.append(r["usage"]["prompt_tokens"])
        items = [{"role": "user", "content": user}, {
            "type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "A fox?"}]
        }, {"role": "assistant", "content": [{"type": "output_text", "text": "Once."}]}, then]
        counts.append(thinker.post("/v1/responses/input_tokens", input=items)[1]["input_tokens"])
        self.assertEqual(counts, counts[:1] * 5)
        self.assertGreater(
            counts[0],
            thinker.post("/v1/responses/input_tokens", input=[i for i in items if "type" not in i])[1]["input_tokens"])


class Refusals(unittest.TestCase):
    def refused(self, body, words, status=400, kind="invalid_request_error", path=PATHS[0]):
        s, r = server.request("POST", path, body)
        self.assertEqual((s, r["type"], r["error"]["type"]), (status, "error", kind), r)
        self.assertEqual((set(r), set(r["error"])), ({"type", "error"}, {"type", "message"}))
        self.assertIn(words, r["error"]["message"])

    def test_fields_are_named(self):
        for field, bad in (("max_tokens", None), ("max_tokens", -1), ("max_tokens", "x"), ("temperature", -1),
                           ("top_p", 2), ("top_k", "x"), ("system", 5), ("stop_sequences", "x"),
                           ("stop_sequences", [""]), ("stop_sequences", [5]), ("stop_sequences", ["x"] * 100),
                           ("stream", 5), ("thinking", "x"), ("thinking", {"type": "between_tools"}), ("thinking", {}),
                           ("thinking", {"type": "enabled",
                                         "display": "x"}), ("output_config", {"format": {"type": "json_schema"}}),
                           ("n", 2), ("logprobs", True), ("tools", [{"name": "x"}]), ("tool_choice", {"type": "any"}),
                           ("mcp_servers", [{}]), ("container", "x"), ("chat_template_kwargs", 5)):
            with self.subTest(field=field, bad=str(bad)[:30]):
                self.refused(dict({"messages": CHAT, "max_tokens": 5}, **{field: bad}), field)
        self.refused({"messages": CHAT}, "max_tokens")

    def test_messages_that_are_none(self):
        image = {"type": "image", "source": {"type": "url", "url": "http://x"}}
        for bad, words in (
            (None, "messages"), ([],
                                 "messages"), ("x", "messages"),
            ([5], "messages[0]"), ([{"content": "x"
                                     }], "messages[0].role"), ([{"role": "tool", "content": "x"}], "messages[0].role"),
            ([{"role": "user"}
              ], "messages[0].content"), (CHAT + [{"role": "user", "content": [{"type": "text", "text": "x"}, image]}],
                                          "messages[1].content[1].type"),
            ([{"role": "user", "content": [{"type": "text"}]
               }], "messages[0].content[0].text"), ([{"role": "user", "content": ["x"]}],
                                                    "messages[0].content[0].type"),
            ([{"role": "user", "content": [{"type": "tool_result"}]}
              ], "messages[0].content[0].tool_use_id"), ([{
                  "role": "user",
                  "content": [{"type": "tool_result", "tool_use_id": "x", "content": [image]}]
              }], "messages[0].content[0].content[0].type"),
            ([{"role": "user", "content": [{"type": "tool_use", "id": "x", "name": "f", "input": {}}]}], "tool_use"),
            (CHAT + [{"role": "assistant", "content": [{"type": "tool_use", "id": "x", "name": "f", "input": "{}"}]}],
             "messages[1].content[0].input"), (CHAT + [{"role": "assistant", "content": [{"type": "server_tool_use"}]}],
                                               "server_tool_use"), (CHAT + [{"role": "assistant", "content": " "}],
                                                                    "continued")):
            for path in PATHS:
                with self.subTest(bad=str(bad)[:60], path=path):
                    self.refused({"messages": bad, "max_tokens": 5}, words, path=path)

    def test_errors_have_their_types(self):
        body = {"messages": CHAT, "max_tokens": 5}
        self.refused(dict(body, model="claude-x"), "claude-x", 404, "not_found_error")
        self.refused("{", "JSON")
        self.refused("x" * (33 << 20), "bytes", 413, "request_too_large")
        self.refused(dict(body, messages=[{"role": "user", "content": "fox " * 5000}]), "2048")
        self.assertEqual(server.request("GET", "/v1/messages")[1]["error"]["type"], "invalid_request_error")
        self.assertEqual(server.request("GET", "/v1/messages/x")[1]["error"]["type"], "not_found_error")
        own = Server("tests/models/llama", "--api-key", "sk-a")
        try:
            for headers in ({}, {"x-api-key": "sk-b"}, {"Authorization": "Bearer sk-b"}):
                for path in PATHS:
                    s, r = own.request("POST", path, body, headers)
                    self.assertEqual((s, r["type"], r["error"]["type"]), (401, "error", "authentication_error"))
            for headers in ({"x-api-key": "sk-a", "anthropic-version": "2023-06-01"}, {"Authorization": "Bearer sk-a"}):
                self.assertEqual(own.request("POST", "/v1/messages?beta=true", body, headers)[0], 200)
        finally:
            self.assertEqual(own.stop(), 0)


if __name__ == "__main__":
    unittest.main()
