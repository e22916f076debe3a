"""Tool calls over HTTP: what a model writes becomes calls in all dialects, whole and streamed; choices, refusals.

What the model writes is spelled out by structured_outputs.choice, so that any model says it; it
does not think first."""
import json
import os
import tempfile
import time
import unittest

from brief import slow, some_of
from serving import Server, real_template, templated_model

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TIME = {"name": "get_time", "description": "The time in a city.", "parameters": SCHEMA}
ADD = {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
TOOLS = [{"type": "function", "function": f} for f in (TIME, ADD)]
FLAT = [{"type": "function", **f} for f in (TIME, ADD)]
THEIRS = [{"name": f["name"], "input_schema": f["parameters"]} for f in (TIME, ADD)]
ASK = [{"role": "user", "content": "What is the time in Paris?"}]
CALL = '<tool_call>\n{"name": "get_time", "arguments": {"city": "Paris \\"x\\""}}\n</tool_call>'
TWO = "Let me see.\n" + CALL + '\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
CITY = {"city": 'Paris "x"'}
ENDS = "<|im_end|>", "<|endoftext|>"  # either ends what the model says
MARKED_IDS = "Mistral-Small-3.2-24B-Instruct-2506"
NO_THOUGHT = {"chat_template_kwargs": {"enable_thinking": False}}


def setUpModule():
    global folders, hermes, kimi, plain
    folders = [tempfile.TemporaryDirectory() for _ in range(3)]
    templates = ("Qwen-Qwen3-0.6B", "Kimi-K2-Instruct", "google-gemma-2-2b-it")
    hermes, kimi, plain = (Server(templated_model(folder.name, real_template(name)), "--allow-links")
                           for folder, name in zip(folders, templates))


def tearDownModule():
    codes = [s.stop() for s in (hermes, kimi, plain)]
    for folder in folders:
        folder.cleanup()
    assert codes == [0, 0, 0], codes


def says(text, **fields):
    return {"structured_outputs": {"choice": [text]}, "temperature": 1, "seed": 3, **NO_THOUGHT, **fields}


def chat(text, server=None, **fields):
    ask = says(text, **{"messages": ASK, "tools": TOOLS, "max_tokens": 300, **fields})
    status, r = (server or hermes).post("/v1/chat/completions", **ask)
    assert status == 200, r
    return r["choices"][0]


def streamed(text, server=None, **fields):
    """The deltas of a stream, as clients add them up; each chunk has one thing."""
    ask = says(text, **{"messages": ASK, "tools": TOOLS, "max_tokens": 300, **fields})
    out = {"content": "", "reasoning_content": "", "tool_calls": []}
    for event in (server or hermes).stream("/v1/chat/completions", **ask)[:-1]:
        choice = event["choices"][0]
        for key, value in choice["delta"].items():
            if key in ("content", "reasoning_content"):
                out[key] += value
            for call in value if key == "tool_calls" else ():
                if call["index"] == len(out["tool_calls"]):
                    assert set(call) == {"index", "id", "type", "function"} and call["function"]["arguments"] == ""
                    out["tool_calls"].append(call)
                else:
                    assert set(call) == {"index", "function"} and set(call["function"]) == {"arguments"}
                    out["tool_calls"][call["index"]]["function"]["arguments"] += call["function"]["arguments"]
        out["finish_reason"] = choice["finish_reason"]
    return out


def functions(calls):
    return [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in calls]


class Chat(unittest.TestCase):
    def test_calls_are_parted_from_the_text(self):
        choice = chat(TWO)
        message = choice["message"]
        self.assertEqual((message["content"], choice["finish_reason"]), ("Let me see.\n", "tool_calls"))
        self.assertEqual(functions(message["tool_calls"]), [("get_time", CITY), ("add", {"a": 1})])
        self.assertEqual({c["type"] for c in message["tool_calls"]}, {"function"})
        self.assertEqual(len({c["id"] for c in message["tool_calls"]}), 2)
        self.assertRegex(message["tool_calls"][0]["id"], "^call_[A-Za-z0-9]{20}$")

    def test_a_call_alone_has_no_content(self):
        self.assertIsNone(chat(CALL)["message"]["content"])

    def test_streams_add_up_to_the_whole_answer(self):
        for text in TWO, CALL, "<think>\nhm\n</think>\n\n" + CALL, "Hello.", "a <tool_call> b":
            with self.subTest(text=text):
                whole, parts = chat(text), streamed(text)
                message = whole["message"]
                self.assertEqual(parts["content"], message["content"] or "")
                self.assertEqual(parts["reasoning_content"], message["reasoning_content"] or "")
                self.assertEqual(functions(parts["tool_calls"]), functions(message.get("tool_calls", [])))
                self.assertEqual(parts["finish_reason"], whole["finish_reason"])

    def test_what_is_no_call_stays_content(self):
        for text in '<tool_call>\n{"name": "nobody", "arguments": {}}\n</tool_call>', "a <tool_call> b":
            choice = chat(text)
            self.assertEqual((choice["message"]["content"], choice["finish_reason"]), (text, "stop"))
            self.assertNotIn("tool_calls", choice["message"])

    def test_without_tools_and_with_a_choice_of_none_calls_are_text(self):
        for fields in {"tools": None}, {"tools": []}, {"tool_choice": "none"}:
            self.assertEqual(chat(CALL, **fields)["message"]["content"], CALL)

    def test_a_call_that_is_cut_off_is_told_as_far_as_it_came(self):
        choice = chat(CALL, max_tokens=45)
        self.assertEqual(choice["finish_reason"], "length")
        arguments = choice["message"]["tool_calls"][0]["function"]["arguments"]
        self.assertTrue(arguments and '{"city": "Paris \\"x\\""}'.startswith(arguments), arguments)

    def test_a_call_that_is_cut_off_before_its_arguments_has_its_name(self):
        """Wherever max_tokens cuts: the call's name with what there is of its arguments, or text."""
        names = [[c["function"]["name"] for c in chat(CALL, max_tokens=n)["message"].get("tool_calls", [])]
                 for n in range(5, 40, 3)]
        self.assertEqual(sorted(names), names)
        self.assertEqual((names[0], names[-1]), ([], ["get_time"]))

    def test_ids_have_the_templates_form_and_go_on_counting(self):
        text = ("<|tool_calls_section_begin|><|tool_call_begin|>functions.add:7<|tool_call_argument_begin|>{\"a\": 1}"
                "<|tool_call_end|><|tool_calls_section_end|>")
        self.assertEqual(chat(text, kimi)["message"]["tool_calls"][0]["id"], "functions.add:7")

    @slow("it walks many texts")
    def test_an_id_that_is_no_plain_string_is_none(self):
        """The model's own id, before the arguments and behind them: any value that it may write."""
        for value in '{"a": 1}', "[1]", "7", '"a\\"b"', '"a\\nb"', '""', '"%s"' % (" the" * 100), '"a\tb"':
            for text in ('<tool_call>{"id": %s, "name": "add", "arguments": {"a": 1}}</tool_call>' % value,
                         '<tool_call>{"name": "add", "arguments": {"a": 1}, "id": %s}</tool_call>' % value):
                with self.subTest(text=text[:80]):
                    for calls in chat(text)["message"]["tool_calls"], streamed(text)["tool_calls"]:
                        self.assertEqual(functions(calls), [("add", {"a": 1})])
                        self.assertRegex(calls[0]["id"], "^call_[A-Za-z0-9]{20}$")
                    item = hermes.post("/v1/responses", **says(text, input="x", tools=FLAT))[1]["output"][0]
                    self.assertRegex(item["call_id"], "^call_[A-Za-z0-9]{20}$")
        text = '<tool_call>{"id": "mine", "name": "add", "arguments": {"a": 1}}</tool_call>'
        self.assertEqual(chat(text)["message"]["tool_calls"][0]["id"], "mine")

    def test_an_id_is_written_as_json(self):
        """One that stands between marks may have a backslash."""
        text = '[TOOL_CALLS]add[CALL_ID]a\\b[ARGS]{"a": 1}'
        with tempfile.TemporaryDirectory() as folder:
            server = Server(templated_model(folder, real_template(MARKED_IDS)), "--allow-links")
            try:
                short = [{"role": "system", "content": "x"}] + ASK  # the template's own is long
                ids = [chat(text, server, messages=short)["message"]["tool_calls"][0]["id"],
                       streamed(text, server, messages=short)["tool_calls"][0]["id"]]
                ask = says(text, input="x", instructions="x", tools=FLAT)
                items = [server.post("/v1/responses", **ask)[1]["output"][0]]
                events = server.events("/v1/responses", **ask)
            finally:
                self.assertEqual(server.stop(), 0)
        items += [e["item"] for name, e in events if name == "response.output_item.done"]
        self.assertEqual(ids, ["a\\b"] * 2)
        self.assertEqual([(i["id"], i["call_id"]) for i in items], [("fc_a\\b", "a\\b")] * 2)
        self.assertEqual({e["item_id"] for name, e in events if "arguments" in name}, {"fc_a\\b"})

    def test_results_of_calls_go_back_to_the_model(self):
        call = chat(CALL)["message"]
        history = ASK + [call, {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": "noon"}]
        self.assertEqual(chat("It is noon.", messages=history)["message"]["content"], "It is noon.")

    def test_log_probabilities_stand_beside_calls(self):
        choice = chat(CALL, logprobs=True)
        whole = [CALL + end for end in ENDS]
        self.assertIn("".join(t["token"] for t in choice["logprobs"]["content"]), whole)
        tokens = []
        for event in hermes.stream("/v1/chat/completions",
                                   **says(CALL, messages=ASK, tools=TOOLS, max_tokens=300, logprobs=True))[:-1]:
            tokens += (event["choices"][0]["logprobs"] or {}).get("content", [])
        self.assertIn("".join(t["token"] for t in tokens), whole)

    def test_each_of_several_choices_has_its_calls(self):
        status, r = hermes.post("/v1/chat/completions", **says(CALL, messages=ASK, tools=TOOLS, max_tokens=300, n=3))
        self.assertEqual([functions(c["message"]["tool_calls"]) for c in r["choices"]], [[("get_time", CITY)]] * 3)


class Choices(unittest.TestCase):
    def refused(self, server=None, path="/v1/chat/completions", **fields):
        status, r = (server or hermes).post(path, **{"messages": ASK, "tools": TOOLS, "max_tokens": 5, **fields})
        self.assertEqual(status, 400, r)
        return r["error"]["message"]

    def test_tools_of_a_model_without_calls_are_refused(self):
        said = "tools: this model's calls are not understood: the template shows no calls"
        self.assertEqual(self.refused(plain), said)
        self.assertEqual(plain.post("/v1/chat/completions", messages=ASK, tools=TOOLS, tool_choice="none",
                                    max_tokens=1)[0], 200)

    def test_choices_that_mean_nothing_are_refused_by_name(self):
        named = {"type": "function", "function": {"name": "nobody"}}
        for choice, said in (("any", '"any" is none of'), (named, 'no tool named "nobody"'), (7, "must be none"),
                             ({"type": "custom"}, "custom.name"), ({"type": "function"}, "function.name"),
                             ({"type": "allowed_tools", "allowed_tools": {"tools": [named]}}, "nobody")):
            self.assertRegex(self.refused(tool_choice=choice), "^tool_choice.*" + said)
        self.assertIn("no tools", self.refused(tools=None, tool_choice="required"))

    def test_tools_that_are_none_are_refused_by_name(self):
        for tool, said in (({"type": "custom"}, "custom.name"), ({"type": "function"}, "function: it must"),
                           ({"function": {"name": ""}}, "function.name"), (7, "an object"),
                           ({"function": {"name": "f", "parameters": []}}, "parameters")):
            self.assertRegex(self.refused(tools=[tool]), "^tools.*" + said)
        self.assertRegex(self.refused(tools=[TOOLS[0], TOOLS[0]]), 'tools\\[1\\].function.name: "get_time"')

    def test_very_many_tools_are_read_in_a_moment(self):
        many = [{"type": "function", "function": {"name": "f%d" % i}} for i in range(60000)]
        start = time.monotonic()
        self.assertIn("tools[60000].function.name", self.refused(tools=many + [many[0]]))
        self.assertLess(time.monotonic() - start, 10)

    def test_a_call_that_is_required_is_made(self):
        """Whatever the model would say: by a grammar."""
        named = {"type": "function", "function": {"name": "add"}}
        allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named]}}
        for choice, names in (("required", {"get_time", "add"}), (named, {"add"}), (allowed, {"add"})):
            status, r = hermes.post("/v1/chat/completions", messages=ASK, tools=TOOLS, tool_choice=choice,
                                    max_tokens=400, temperature=2, seed=5, **NO_THOUGHT)
            if status == 400 and "not enforced yet" in r["error"]["message"]:
                self.skipTest("structural tags are not enforced yet")
            self.assertEqual(status, 200, r)
            choice = r["choices"][0]
            if choice["finish_reason"] != "length":
                self.assertEqual(choice["finish_reason"], "tool_calls", r)
                self.assertLessEqual({c["function"]["name"] for c in choice["message"]["tool_calls"]}, names)
                for call in choice["message"]["tool_calls"]:
                    json.loads(call["function"]["arguments"])


SAID = 'a "b"\n\tç \\ 😀'
SAY = '<tool_call>\n{"name": "say", "arguments": %s}\n</tool_call>' % json.dumps({"input": SAID})
SUM = {"syntax": "lark", "definition": 'start: NUMBER (("+" | "-") NUMBER)+ "\\n"\nNUMBER: /[0-9]{1,2}/'}
LETTERS = {"syntax": "regex", "definition": '"[ab]{3,5}"'}


def custom(name, grammar=None):
    form = {"type": "grammar", "grammar": grammar} if grammar else {"type": "text"}
    return {"type": "custom", "custom": {"name": name, "description": "A tool.", "format": form}}


def flat(name, grammar=None):
    return {"type": "custom", "name": name, "format": {"type": "grammar", **grammar} if grammar else {"type": "text"}}


class Custom(unittest.TestCase):
    """Tools whose input is a text."""
    def test_the_input_is_the_text_that_the_arguments_say(self):
        for arguments, text in ((json.dumps({"input": SAID}), SAID), ('{"input" : "\\ud83d\\ude00\\u00e7"}', "😀ç"),
                                ('{"input": ""}', ""), ('{"text": "x"}', '{"text": "x"}'), ("{}", "{}")):
            said = SAY[:SAY.index('": {') + 3] + arguments + "}\n</tool_call>"
            with self.subTest(arguments=arguments):
                choice = chat(said, tools=[custom("say")] + TOOLS)
                call = choice["message"]["tool_calls"][0]
                self.assertEqual(choice["finish_reason"], "tool_calls")
                self.assertEqual((call["type"], call["custom"]), ("custom", {"name": "say", "input": text}))
                deltas = [d for e in hermes.stream("/v1/chat/completions", **says(
                    said, messages=ASK, tools=[custom("say")], max_tokens=300))[:-1]
                          for d in e["choices"][0]["delta"].get("tool_calls", [])]
                self.assertEqual((deltas[0]["type"], deltas[0]["custom"]), ("custom", {"name": "say", "input": ""}))
                self.assertEqual("".join(d["custom"]["input"] for d in deltas), text)

    def test_responses_have_items_and_events_of_their_own(self):
        ask = says(SAY, input="x", tools=[flat("say")], max_output_tokens=300)
        item = hermes.post("/v1/responses", **ask)[1]["output"][0]
        self.assertEqual((item["type"], item["name"], item["input"]), ("custom_tool_call", "say", SAID))
        events = hermes.events("/v1/responses", **ask)
        deltas = [e["delta"] for name, e in events if name == "response.custom_tool_call_input.delta"]
        done = [e["input"] for name, e in events if name == "response.custom_tool_call_input.done"]
        self.assertEqual(("".join(deltas), done), (SAID, [SAID]))
        self.assertEqual(events[-1][1]["response"]["output"][0]["input"], SAID)

    def test_a_grammar_holds_the_input(self):
        """In the form that the model writes arguments in: as JSON, or by itself behind a tag."""
        with tempfile.TemporaryDirectory() as folder:
            tagged = Server(templated_model(folder, real_template("Qwen3.5-4B")), "--allow-links")
            try:
                for server in some_of((hermes, kimi, tagged)):
                    for grammar, form in (SUM, r"\d\d?([+-]\d\d?)+\n"), (LETTERS, '"[ab]{3,5}"'):
                        self.holds(server, grammar, form)
            finally:
                self.assertEqual(tagged.stop(), 0)

    def holds(self, server, grammar, form):
        for choice in "required", {"type": "custom", "custom": {"name": "write"}}:
            status, r = server.post("/v1/chat/completions", messages=ASK, tools=[custom("write", grammar)],
                                    tool_choice=choice, max_tokens=400, temperature=1.5, seed=7, **NO_THOUGHT)
            self.assertEqual(status, 200, r)
            for call in r["choices"][0]["message"].get("tool_calls", []):
                if r["choices"][0]["finish_reason"] != "length":
                    self.assertRegex(call["custom"]["input"], "^" + form + "$")
        status, r = server.post("/v1/responses", input="x", tools=[flat("write", grammar)], max_output_tokens=400,
                                tool_choice={"type": "custom", "name": "write"}, temperature=1.5, seed=8, **NO_THOUGHT)
        self.assertEqual(status, 200, r)
        if r["status"] == "completed":
            self.assertRegex([i["input"] for i in r["output"] if i["type"] == "custom_tool_call"][0], "^" + form + "$")

    def test_calls_and_their_results_go_back_to_the_model(self):
        call = chat(SAY, tools=[custom("say")])["message"]
        result = {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": "done"}
        as_function = {"role": "assistant", "content": None, "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "say", "arguments": json.dumps({"input": SAID})}}]}
        function = {"name": "say", "description": "A tool.", "parameters": {
            "type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}}
        prompts = [hermes.post("/tokenize", messages=ASK + [message, result], tools=[tool])[1]["tokens"]
                   for message, tool in ((call, custom("say", SUM)), (
                       as_function, {"type": "function", "function": function}))]
        self.assertEqual(prompts[0], prompts[1])
        item = hermes.post("/v1/responses", **says(SAY, input="x", tools=[flat("say")]))[1]
        output = {"type": "custom_tool_call_output", "call_id": item["output"][0]["call_id"], "output": "done"}
        status, r = hermes.post("/v1/responses", **says("Well.", input=[output], tools=[flat("say")],
                                                        previous_response_id=item["id"], max_output_tokens=50))
        self.assertEqual((status, r["output"][0]["content"][0]["text"]), (200, "Well."), r)

    def test_a_function_stays_one_whatever_else_it_has(self):
        """Members that clients make up are the template's to show, but for nulls, and make no custom tool."""
        def told(o):
            return {k: told(v) if k == "function" else v for k, v in o.items() if v is not None}

        said = SAY.replace("say", "add")
        for mark in None, {"a": 1}, LETTERS:
            for function, more in ({"custom": mark}, {}), ({"format": mark}, {"custom": {}, "format": mark}):
                ask = {"messages": ASK, "tools": [{"type": "function", "function": {**ADD, **function}, **more}]}
                with self.subTest(tools=ask["tools"]):
                    for strict, choice in (True, "auto"), (False, "required"):
                        ask["tools"][0]["function"]["strict"] = strict
                        status, r = hermes.post("/v1/chat/completions", **ask, tool_choice=choice, max_tokens=1)
                        self.assertEqual(status, 200, r)
                    call = chat(said, **ask)["message"]["tool_calls"][0]
                    self.assertEqual((call["type"], call["function"]["name"]), ("function", "add"))
                    self.assertEqual(json.loads(call["function"]["arguments"]), {"input": SAID})
                    tokens = hermes.post("/tokenize", **ask)[1]["tokens"]
                    shown = hermes.post("/detokenize", tokens=tokens)[1]["prompt"]
                    self.assertIn(json.dumps(told(ask["tools"][0])), shown)

    def test_what_is_no_format_is_refused_by_name(self):
        for grammar, said in (({"syntax": "ebnf", "definition": "x"}, "syntax"), ({"syntax": "lark"}, "definition"),
                              ({"syntax": "regex", "definition": "(?<=a)b"}, "lookbehind"),
                              ({"syntax": "lark", "definition": "start: <|im_end|>"}, "special tokens"),
                              ({"syntax": "lark", "definition": "start: x"}, "x")):
            ask = {"messages": ASK, "tools": [custom("write", grammar)], "max_tokens": 5}
            status, r = hermes.post("/v1/chat/completions", **ask)
            self.assertEqual(status, 400, grammar)
            self.assertRegex(r["error"]["message"], "^tools.*" + said)
        tool = {"type": "custom", "name": "x", "format": {"type": "json"}}
        status, r = hermes.post("/v1/responses", input="x", tools=[tool])
        self.assertEqual((status, r["error"]["message"]), (400, "tools[0].format.type: it must be text or grammar"))


class SpecialTokens(unittest.TestCase):
    """Marks that are special tokens, which nobody is shown, are read all the same."""
    def test_marks_that_are_special_tokens_make_a_call(self):
        with tempfile.TemporaryDirectory() as folder:
            templated_model(folder, real_template("Qwen-Qwen3-0.6B"))
            path = os.path.join(folder, "tokenizer.json")
            with open(path) as f:
                tokenizer = json.load(f)
            model, marks = tokenizer["model"], {"The": "<tool_call>", "\u0120the": "</tool_call>"}
            ids = [model["vocab"][old] for old in marks]
            for old, new in marks.items():
                pairs = [m.split(" ") if isinstance(m, str) else m for m in model["merges"]]
                model["merges"] = [
                    m for m, pair in zip(model["merges"], pairs) if old not in pair and "".join(pair) != old
                ]
                model["vocab"][new] = i = model["vocab"].pop(old)
                tokenizer["added_tokens"].append({
                    "id": i, "content": new, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
                    "normalized": False})
            os.remove(path)
            with open(path, "w") as f:
                json.dump(tokenizer, f)
            server = Server(folder, "--allow-links", "--disable-log-requests")
            try:
                ask = dict(messages=ASK, tools=TOOLS[1:], tool_choice="required", max_tokens=300, temperature=1, seed=1,
                           logit_bias={i: 100 for i in ids}, return_token_ids=True, parallel_tool_calls=False,
                           **NO_THOUGHT)
                choice = server.post("/v1/chat/completions", **ask)[1]["choices"][0]
                text = server.post("/v1/chat/completions", **{**ask, "tool_choice": "none"})[1]["choices"][0]
                # A model that would rather call than say anything: one call at most, and of what is allowed.
                ask = {**ask, "tools": TOOLS, "logit_bias": {ids[0]: 100}, "max_tokens": 400}
                one = server.post("/v1/chat/completions", **{**ask, "tool_choice": "auto"})[1]["choices"][0]
                named = {"type": "function", "function": {"name": "add"}}
                limit = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [named]}}
                limited = server.post("/v1/chat/completions", **{**ask, "tool_choice": limit})[1]["choices"][0]
            finally:
                self.assertEqual(server.stop(), 0)
        self.assertLessEqual(set(ids), set(choice["token_ids"]))
        self.assertEqual((choice["finish_reason"], choice["message"]["content"]), ("tool_calls", None), choice)
        self.assertEqual(choice["message"]["tool_calls"][0]["function"]["name"], "add")
        self.assertNotIn("tool_call>", text["message"]["content"])
        self.assertEqual(len(one["message"]["tool_calls"]), 1, one)
        self.assertEqual([c["function"]["name"] for c in limited["message"]["tool_calls"]], ["add"], limited)


class Responses(unittest.TestCase):
    def test_calls_are_items_whole_and_streamed(self):
        ask = says(TWO, input="What is the time?", tools=FLAT, max_output_tokens=300)
        status, r = hermes.post("/v1/responses", **ask)
        self.assertEqual((status, r["status"]), (200, "completed"), r)
        self.assertEqual([i["type"] for i in r["output"]], ["message", "function_call", "function_call"])
        call = r["output"][1]
        self.assertEqual((call["name"], json.loads(call["arguments"]), call["status"]), ("get_time", CITY, "completed"))
        events = hermes.events("/v1/responses", **ask)
        done = [e["item"] for name, e in events if name == "response.output_item.done"]
        self.assertEqual([(i["type"], i.get("name"), i.get("arguments")) for i in done],
                         [(i["type"], i.get("name"), i.get("arguments")) for i in r["output"]])
        self.assertEqual(events[-1][1]["response"]["output"], done)
        pieces = {}
        for name, e in events:
            if name == "response.function_call_arguments.delta":
                pieces[e["output_index"]] = pieces.get(e["output_index"], "") + e["delta"]
        self.assertEqual([pieces[1], pieces[2]], [i["arguments"] for i in done[1:]])

    def test_a_conversation_goes_on_with_the_result(self):
        r = hermes.post("/v1/responses", **says(CALL, input="Time?", tools=FLAT, max_output_tokens=300))[1]
        result = {"type": "function_call_output", "call_id": r["output"][0]["call_id"], "output": "noon"}
        status, r = hermes.post("/v1/responses", **says("It is noon.", input=[result], tools=FLAT,
                                                        previous_response_id=r["id"], max_output_tokens=300))
        self.assertEqual((status, r["output"][0]["content"][0]["text"]), (200, "It is noon."))

    def test_tools_that_a_server_runs_are_left_out_or_refused(self):
        """Codex brings web_search beside its own tools, and lets the model choose."""
        search = {"type": "web_search", "external_web_access": False}
        for fields in ({"tools": [search]}, {"tools": FLAT + [search], "tool_choice": "required"}):
            status, r = hermes.post("/v1/responses", input="x", **fields)
            self.assertEqual(status, 400)
            place = len(fields["tools"]) - 1
            self.assertIn('tools[%d].type: "web_search" is not supported' % place, r["error"]["message"])
        for choice in ({}, {"tool_choice": "auto"}, {"tool_choice": None}):
            status, r = hermes.post("/v1/responses", **says(CALL, input="x", tools=FLAT[:1] + [search], **choice))
            self.assertEqual(status, 200, r)
            self.assertEqual([item["type"] for item in r["output"]], ["function_call"])
            self.assertEqual(len(r["warnings"]), 1)
            self.assertIn("tools[1] was left out", r["warnings"][0])
            self.assertEqual(r["tools"], FLAT[:1] + [search])


class Messages(unittest.TestCase):
    def test_calls_are_blocks_whole_and_streamed(self):
        ask = says(TWO, messages=ASK, tools=THEIRS, max_tokens=300)
        status, r = hermes.post("/v1/messages", **ask)
        self.assertEqual((status, r["stop_reason"]), (200, "tool_use"), r)
        self.assertEqual([b["type"] for b in r["content"]], ["text", "tool_use", "tool_use"])
        self.assertEqual((r["content"][1]["name"], r["content"][1]["input"]), ("get_time", CITY))
        blocks = []
        for name, e in hermes.events("/v1/messages", **ask):
            if name == "content_block_start":
                blocks.append({**e["content_block"], "json": ""})
            if name == "content_block_delta" and e["delta"]["type"] == "input_json_delta":
                blocks[e["index"]]["json"] += e["delta"]["partial_json"]
            if name == "message_delta":
                self.assertEqual(e["delta"]["stop_reason"], "tool_use")
        self.assertEqual([(b["type"], b.get("name"), b["json"] and json.loads(b["json"])) for b in blocks],
                         [(b["type"], b.get("name"), b.get("input", "")) for b in r["content"]])

    def test_an_input_is_the_object_that_the_arguments_are(self):
        """Numbers past 64 bits and zero characters too."""
        for arguments in '{"a": 123456789012345678901234567890}', '{"a": [-9876543210987654321]}', '{"a": "\\u0000"}':
            said = '<tool_call>\n{"name": "add", "arguments": %s}\n</tool_call>' % arguments
            status, r = hermes.post("/v1/messages", **says(said, messages=ASK, tools=THEIRS, max_tokens=300))
            self.assertEqual((status, r["content"][0]["input"]), (200, json.loads(arguments)))

    def test_a_conversation_goes_on_with_the_result(self):
        r = hermes.post("/v1/messages", **says(CALL, messages=ASK, tools=THEIRS, max_tokens=300))[1]
        result = {"type": "tool_result", "tool_use_id": r["content"][0]["id"], "content": "noon"}
        history = ASK + [{"role": "assistant", "content": r["content"]}, {"role": "user", "content": [result]}]
        status, r = hermes.post("/v1/messages", **says("It is noon.", messages=history, tools=THEIRS, max_tokens=300))
        self.assertEqual((status, r["content"][0]["text"], r["stop_reason"]), (200, "It is noon.", "end_turn"))

    def test_what_a_coding_agent_sends_is_taken(self):
        """Claude Code asks for edits of its context; tools that a server runs are left out beside others."""
        ask = says(TWO, messages=ASK, max_tokens=300)
        edits = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
        search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
        status, r = hermes.post("/v1/messages", **ask, tools=THEIRS + [search], context_management=edits)
        self.assertEqual((status, r["stop_reason"]), (200, "tool_use"), r)
        self.assertEqual([w.split()[0] for w in r["warnings"]], ["tools[2]", "context_management"])
        status, r = hermes.post("/v1/messages", **ask, tools=THEIRS, context_management={"edits": []})
        self.assertEqual((status, r.get("warnings")), (200, None))
        for fields in ({"tools": [search]}, {"tools": THEIRS + [search], "tool_choice": {"type": "any"}}):
            status, r = hermes.post("/v1/messages", messages=ASK, max_tokens=5, **fields)
            self.assertEqual(status, 400)
            self.assertIn('.type: "web_search_20250305" is not supported', r["error"]["message"])
        status, r = hermes.post("/v1/messages", messages=ASK, max_tokens=5, context_management={"edits": 5})
        self.assertEqual(status, 400)
        self.assertIn('context_management: "edits"', r["error"]["message"])

    def test_choices_are_read(self):
        ask = dict(messages=ASK, tools=THEIRS, max_tokens=300)
        r = hermes.post("/v1/messages", **says(CALL, **ask, tool_choice={"type": "none"}))[1]
        self.assertEqual([b["type"] for b in r["content"]], ["text"])
        for choice in {"type": "some"}, {"type": "tool"}, {"type": "tool", "name": "nobody"}, {}:
            status, r = hermes.post("/v1/messages", **ask, tool_choice=choice)
            self.assertEqual((status, r["error"]["message"][:11]), (400, "tool_choice"), r)
        status, r = hermes.post("/v1/messages", messages=ASK, max_tokens=5,
                                tools=[{"type": "web_search_20250305", "name": "web_search"}])
        self.assertIn('tools[0].type: "web_search_20250305" is not supported', r["error"]["message"])


if __name__ == "__main__":
    unittest.main()
