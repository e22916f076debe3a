"""/v1/responses: whole and as semantic events, with and without reasoning, and what it refuses."""
import json
import os
import shutil
import tempfile
import unittest

from brief import slow
from serving import ROOT, SMALL, Server, thinking_model

ASK = "Tell me a story about a fox."


def setUpModule():
    global server, thinker, folder
    folder = tempfile.TemporaryDirectory()
    server = Server(SMALL)
    thinker = Server(thinking_model(folder.name))


def tearDownModule():
    codes = server.stop(), thinker.stop()
    folder.cleanup()
    assert codes == (0, 0)


def replay(case, events):
    """What a client makes of the events, whose order and numbers are checked on the way."""
    case.assertEqual([data["type"] for _, data in events], [kind for kind, _ in events])
    case.assertEqual([data["sequence_number"] for _, data in events], list(range(len(events))))
    case.assertEqual([kind for kind, _ in events[:2]], ["response.created", "response.in_progress"])
    response = events[0][1]["response"]
    case.assertEqual(response, events[1][1]["response"])
    case.assertEqual((response["status"], response["output"], "usage" in response), ("in_progress", [], False))
    items, expected = [], {"response.output_item.added"}
    for kind, data in events[2:-1]:
        case.assertIn(kind, expected)
        case.assertEqual(data["output_index"], len(items) - (kind != "response.output_item.added"))
        if kind == "response.output_item.added":
            case.assertEqual((data["item"]["status"], data["item"]["content"]), ("in_progress", []))
            items.append(data["item"])
            text = {"message": "response.output_text", "reasoning": "response.reasoning_text"}[data["item"]["type"]]
            expected = {"response.content_part.added"}
        elif kind == "response.output_item.done":
            case.assertEqual({**data["item"], "status": 0}, {**items[-1], "status": 0})
            items[-1] = data["item"]
            expected = {"response.output_item.added"}
        else:
            case.assertEqual((data["item_id"], data["content_index"]), (items[-1]["id"], 0))
            if kind == "response.content_part.added":
                items[-1]["content"].append(data["part"])
                expected = {text + ".delta"}
            elif kind == text + ".delta":
                items[-1]["content"][0]["text"] += data["delta"]
                if "logprobs" in data:
                    items[-1]["content"][0]["logprobs"] += data["logprobs"]
                expected = {text + ".delta", text + ".done"}
            elif kind == text + ".done":
                case.assertEqual(data["text"], items[-1]["content"][0]["text"])
                expected = {"response.content_part.done"}
            else:
                case.assertEqual(data["part"], items[-1]["content"][0])
                expected = {"response.output_item.done"}
    case.assertEqual(expected, {"response.output_item.added"})
    last = events[-1][1]["response"]
    case.assertEqual(events[-1][0], "response." + last["status"])
    case.assertEqual(last["output"], items)
    case.assertEqual(last["id"], response["id"])
    return last


class Answers(unittest.TestCase):
    def both(self, who=None, **ask):
        """The answer, whole; its stream says the same."""
        ask = dict({"input": ASK, "max_output_tokens": 20, "temperature": 0}, **ask)
        who = who or server
        status, whole = who.post("/v1/responses", **ask)
        self.assertEqual(status, 200, whole)
        streamed = replay(self, who.events("/v1/responses", **ask))
        ids = {"id", "created_at", "completed_at", "usage"}
        strip = lambda r: {k: [dict(i, id=0) for i in v] if k == "output" else v for k, v in r.items() if k not in ids}
        self.assertEqual(strip(streamed), strip(whole))
        for usage in (streamed["usage"], whole["usage"]):
            usage["input_tokens_details"].pop("cached_tokens")
        self.assertEqual(streamed["usage"], whole["usage"])
        return whole

    def test_a_response_is_what_chat_completions_say(self):
        _, chat = server.post("/v1/chat/completions", messages=[{"role": "system", "content": "Be brief."},
                                                                {"role": "user", "content": ASK}], max_tokens=20,
                              temperature=0)
        parts = [{"role": "user", "content": [{"type": "input_text", "text": ASK}]}]
        for extra in ({"instructions": "Be brief."}, {"instructions": "Be brief.", "input": parts},
                      {"input": [{"type": "message", "role": "developer", "content": "Be brief."}] + parts}):
            r = self.both(**extra)
            self.assertEqual([i["content"][0]["text"] for i in r["output"]], [chat["choices"][0]["message"]["content"]])
            self.assertEqual((r["usage"]["input_tokens"], r["usage"]["output_tokens"]),
                             (chat["usage"]["prompt_tokens"], 20))

    def test_input_tokens_are_counted(self):
        for ask in ({"input": ASK}, {"input": ASK, "instructions": "Be brief."}):
            _, count = server.post("/v1/responses/input_tokens", **ask)
            usage = server.post("/v1/responses", max_output_tokens=1, **ask)[1]["usage"]
            self.assertEqual(count, {"object": "response.input_tokens", "input_tokens": usage["input_tokens"]})
        self.assertEqual(server.post("/v1/responses/input_tokens", input=5)[1]["error"]["param"], "input")

    def test_max_output_tokens_leave_it_incomplete(self):
        r = self.both()
        self.assertEqual((r["status"], r["incomplete_details"], r["completed_at"]),
                         ("incomplete", {"reason": "max_output_tokens"}, None))
        self.assertEqual(r["output"][-1]["status"], "incomplete")

    @slow("it writes a whole story")
    def test_the_models_own_end_completes_it(self):
        story = Server("models/story")
        try:
            r = self.both(story, input="Tell me a very short story about a dog and a ball.", max_output_tokens=900,
                          temperature=0.4, top_p=0.9, top_k=50, seed=13)
        finally:
            self.assertEqual(story.stop(), 0)
        self.assertEqual((r["status"], r["incomplete_details"], r["error"]), ("completed", None, None))
        self.assertEqual(r["output"][-1]["status"], "completed")
        self.assertGreaterEqual(r["completed_at"], r["created_at"])

    def test_without_a_limit_it_goes_to_the_end_of_the_context(self):
        small = Server(SMALL, "--max-model-len", "160")
        try:
            status, r = small.post("/v1/responses", input=ASK, temperature=0, ignore_eos=True)
            self.assertEqual((status, r["usage"]["total_tokens"]), (200, 160))
        finally:
            self.assertEqual(small.stop(), 0)

    def test_the_output_is_input_of_the_next_turn(self):
        first = self.both(thinker, max_output_tokens=30)
        again = [{"role": "user", "content": ASK}] + first["output"] + [{"role": "user", "content": "And then?"}]
        self.assertEqual(thinker.post("/v1/responses", input=again, max_output_tokens=2)[0], 200)

    def test_reasoning_is_an_item_before_the_message(self):
        r = self.both(thinker, max_output_tokens=40)
        self.assertEqual([i["type"] for i in r["output"]], ["reasoning", "message"])
        self.assertEqual([i["status"] for i in r["output"]], ["completed", "incomplete"])
        self.assertTrue(0 < r["usage"]["output_tokens_details"]["reasoning_tokens"] < 40)
        self.assertEqual([(i["type"], i["status"]) for i in self.both(thinker, max_output_tokens=3)["output"]],
                         [("reasoning", "incomplete")])
        none = self.both(thinker, max_output_tokens=3, reasoning={"effort": "none"})
        self.assertEqual([i["type"] for i in none["output"]], ["message"])
        self.assertEqual(none["reasoning"]["effort"], "none")

    def test_log_probabilities_are_those_of_the_text(self):
        for who in (server, thinker):
            text = self.both(who, include=["message.output_text.logprobs"], top_logprobs=2,
                             max_output_tokens=30)["output"][-1]["content"][0]
            self.assertEqual("".join(t["token"] for t in text["logprobs"]).strip(), text["text"].strip())
            self.assertTrue(
                all(t["logprob"] == t["top_logprobs"][0]["logprob"] and len(t["top_logprobs"]) == 2
                    for t in text["logprobs"]))
        self.assertEqual(self.both(top_logprobs=2)["output"][0]["content"][0]["logprobs"], [])

    def test_fields_come_back(self):
        given = dict(instructions="Be brief.", temperature=0.25, top_p=0.5, metadata={"a": "b"}, user="u",
                     max_output_tokens=17, parallel_tool_calls=False, tool_choice="none", store=False,
                     truncation="disabled", text={"format": {"type": "text"}, "verbosity": "low"}, service_tier="auto")
        r = self.both(seed=1, **given)
        self.assertEqual({k: r[k] for k in given if k != "text"}, {k: v for k, v in given.items() if k != "text"})
        self.assertEqual((r["tools"], r["previous_response_id"], r["text"]), ([], None, {"format": {"type": "text"}}))

    def test_what_is_ignored_is_said(self):
        r = self.both(frobnicate=3, reasoning={"effort": "low", "summary": "auto"})
        self.assertEqual(len(r["warnings"]), 2)
        self.assertIn("frobnicate", r["warnings"][0])
        self.assertIn("reasoning.summary", r["warnings"][1])


class Refusals(unittest.TestCase):
    def refused(self, param, **ask):
        s, r = server.post("/v1/responses", **dict({"input": ASK, "max_output_tokens": 5}, **ask))
        self.assertEqual(s, 400, r)
        self.assertEqual(r["error"]["param"], param, r)

    def test_state_and_tools_are_refused_by_name(self):
        for field, bad in (("previous_response_id", "resp_1"), ("previous_response_id", 5), ("store", "yes"),
                           ("background", 1), ("tools", [{"type": "function", "name": "x"}]),
                           ("tool_choice", "required"), ("tool_choice", {"type": "function",
                                                                         "name": "x"}), ("conversation", "conv_1"),
                           ("prompt", {"id": "x"}), ("truncation", "middle"), ("n", 2), ("logprobs", True)):
            self.refused(field, **{field: bad})
        for bad in {"type": "json_schema"}, {"type": "xml"}:
            self.refused("text.format", text={"format": bad})
        self.refused("reasoning.mode", reasoning={"mode": "x"})

    def test_values_that_are_none(self):
        for field, bad in (("max_output_tokens", 0), ("max_output_tokens", "x"), ("instructions", 5),
                           ("temperature", -1), ("top_logprobs", 21), ("include", "x"), ("reasoning", "high"),
                           ("text", 5), ("stream", "x"), ("stream_options", {"include_obfuscation": False})):
            with self.subTest(field=field):
                self.refused(field, **{field: bad},
                             **({"include": ["message.output_text.logprobs"]} if field == "top_logprobs" else {}))
        self.refused("include[0]", include=[5])

    def test_what_comes_back_is_checked_and_short(self):
        for field, bad in (("user", 5), ("user", "x" * 513), ("safety_identifier", {}),
                           ("prompt_cache_key", "x" * 10**6), ("service_tier", []), ("max_tool_calls", "x"),
                           ("max_tool_calls", -1), ("parallel_tool_calls", 1), ("metadata", 5), ("metadata", {"a": 5}),
                           ("metadata", {"a": "x" * 513}), ("metadata", {"x" * 65: "a"}),
                           ("metadata", {str(i): "a"
                                         for i in range(17)})):
            with self.subTest(field=field, bad=str(bad)[:20]):
                self.refused(field, **{field: bad})
        self.assertEqual(
            server.post("/v1/responses", input=ASK, max_output_tokens=1, user="x" * 512,
                        metadata={"x" * 64: "é" * 256})[0], 200)

    def test_inputs_that_are_none(self):
        image = {"type": "input_image", "image_url": "http://x"}
        for param, bad in (("input", None), ("input", []), ("input", 5), ("input", [{
                "type": "reasoning", "summary": [], "id": "x"
        }]), ("input[0]", [5]), ("input[0].role", [{"role": "tool", "content": "x"}]), ("input[1].content[1].type", [
            {"type": "reasoning"}, {"role": "user", "content": [{"type": "input_text", "text": "x"}, image]}
        ]), ("input[0].content", [{"role": "user"}]), ("input[0].type", [{"type": "item_reference", "id": "x"}]),
                           ("input[0].type", [{"type": 5}]), ("input[0].content[0].text",
                                                              [{"role": "user", "content": [{"type": "input_text"}]}]),
                           ("input[0].content[0].text", [{"type": "reasoning", "content": [5]}
                                                         ]), ("input[0].content", [{"type": "reasoning",
                                                                                    "content": 5}])):
            with self.subTest(bad=str(bad)[:60]):
                self.refused(param, input=bad)


class OpensItself(unittest.TestCase):
    """A model that writes <think> and </think> itself: those are the names of two tokens that it is known to answer
    with, its first and its fourth."""

    def test_log_probabilities_are_those_of_the_text(self):
        with tempfile.TemporaryDirectory() as model:
            shutil.copytree(os.path.join(ROOT, "models/story"), model, dirs_exist_ok=True,
                            copy_function=shutil.copyfile)
            path = os.path.join(model, "tokenizer.json")
            with open(path) as f:
                tokenizer = json.load(f)
            bpe = tokenizer["model"]
            for old, new in (("The", "<think>"), ("\u0120the", "</think>")):
                pairs = [m.split(" ") if isinstance(m, str) else m for m in bpe["merges"]]
                bpe["merges"] = [m for m, pair in zip(bpe["merges"], pairs) if old not in pair and "".join(pair) != old]
                bpe["vocab"][new] = bpe["vocab"].pop(old)
            with open(path, "w") as f:
                json.dump(tokenizer, f)
            own = Server(model, "--disable-log-requests")
            try:
                r = own.post("/v1/responses", input="Tell me of a fox.", max_output_tokens=12, temperature=0,
                             include=["message.output_text.logprobs"])[1]
            finally:
                self.assertEqual(own.stop(), 0)
        reasoning, message = (item["content"][0] for item in r["output"])
        self.assertEqual(reasoning["text"], " Fox and")
        self.assertEqual("".join(t["token"] for t in message["logprobs"]).lstrip(), message["text"])


if __name__ == "__main__":
    unittest.main()
