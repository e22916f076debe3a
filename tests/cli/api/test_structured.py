"""Structured output over HTTP: each way to ask, what comes of it, and what is refused by name."""
import json
import os
import re
import socket
import subprocess
import tempfile
import threading
import unittest

from brief import slow
from packages import python_with
from serving import GYRE, ROOT, Server, real_template, templated_model, thinking_model

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 99},
                   "tags": {"type": "array", "items": {"enum": ["red", "blue"]}, "maxItems": 2}},
    "required": ["name", "age"],
    "additionalProperties": False
}
CHAT = [{"role": "user", "content": "Tell me about a fox."}]
GBNF = 'root ::= "a" [0-9]{2} ("b" | "c")'
LARK = 'start: "a" DIGITS ("b" | "c")\nDIGITS: /[0-9]{2}/'
BOTH = r"a[0-9]{2}[bc]"


def setUpModule():
    global server, thinker, folder
    folder = tempfile.TemporaryDirectory()
    server = Server("tests/models/llama", "--served-model-name", "story")
    thinker = Server(thinking_model(folder.name))


def tearDownModule():
    codes = [server.stop(), thinker.stop()]
    folder.cleanup()
    assert codes == [0, 0], codes


def is_person(text):
    value = json.loads(text)
    tags = value.pop("tags", [])
    return (set(value) == {"name", "age"} and isinstance(value["name"], str) and len(value["name"]) <= 12 and
            value["age"] in range(100) and len(tags) <= 2 and set(tags) <= {"red", "blue"})


class Answers(unittest.TestCase):
    def text(self, path="/v1/completions", on=None, **fields):
        ask = {"prompt": "Once upon a time"} if path == "/v1/completions" else {"messages": CHAT}
        status, r = (on or server).post(path, **{**ask, "max_tokens": 120, "temperature": 1.5, "seed": 7, **fields})
        self.assertEqual(status, 200, r)
        self.assertEqual(r.get("warnings"), None)
        choice = r["choices"][0]
        self.assertEqual(choice["finish_reason"], "stop", r)
        return choice["text"] if path == "/v1/completions" else choice["message"]["content"]

    def test_a_schema(self):
        ways = ({"response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}},
                {"response_format": {"type": "json_object", "schema": SCHEMA}},
                {"structured_outputs": {"json": SCHEMA}}, {"structured_outputs": {"json": json.dumps(SCHEMA)}},
                {"guided_json": SCHEMA}, {"json_schema": json.dumps(SCHEMA)})
        for path in ("/v1/completions", "/v1/chat/completions"):
            for way in ways:
                with self.subTest(path=path, way=str(way)[:40]):
                    self.assertTrue(is_person(self.text(path, **way)))

    def test_any_object(self):
        for way in ({"response_format": {"type": "json_object"}}, {"structured_outputs": {"json_object": True}},
                    {"guided_json_object": True}):
            status, r = server.post("/v1/completions", prompt="x", max_tokens=300, temperature=1, seed=3, **way)
            self.assertEqual(status, 200, r)
            text = r["choices"][0]["text"]
            self.assertEqual(text.lstrip()[:1], "{")
            if r["choices"][0]["finish_reason"] == "stop":
                self.assertIsInstance(json.loads(text), dict)

    def test_a_regex(self):
        for way in ({"structured_outputs": {"regex": BOTH}}, {"guided_regex": BOTH}, {"regex": BOTH}):
            self.assertRegex(self.text(**way), "^" + BOTH + "$")

    def test_choices(self):
        seen = {self.text(structured_outputs={"choice": ["red fox", "blue", "éà"]}, seed=i) for i in range(40)}
        self.assertEqual(seen, {"red fox", "blue", "éà"})
        self.assertIn(self.text(guided_choice=["x", "y"]), ("x", "y"))

    def test_grammars_of_two_languages(self):
        for text in (GBNF, LARK):
            for way in ({"structured_outputs": {"grammar": text}}, {"guided_grammar": text}, {"grammar": text},
                        {"ebnf": text}):
                self.assertRegex(self.text(**way), "^" + BOTH + "$")

    def test_structural_tags(self):
        tag = {"structures": [{"begin": "<f>", "schema": {"type": "boolean"}, "end": "</f>"}], "triggers": ["<f>"]}
        for way in ({"structured_outputs": {"structural_tag": tag}}, {"structural_tag": tag},
                    {"structured_outputs": {"structural_tag": json.dumps(tag)}},
                    {"response_format": {"type": "structural_tag", **tag}}):
            status, r = server.post("/v1/completions", prompt="Once upon a time", max_tokens=60, temperature=1, seed=4,
                                    **way)
            self.assertEqual(status, 200, r)
            for inside in re.findall(r"<f>(.*?)(?:</f>|$)", r["choices"][0]["text"], re.S):
                self.assertRegex(inside, r"^\s*(true|false|[tf].*|)\s*$")

    def test_white_space(self):
        loose = {"type": "array", "items": {"type": "boolean"}, "minItems": 3, "maxItems": 3}
        compact = self.text(structured_outputs={"json": loose, "disable_any_whitespace": True})
        self.assertRegex(compact, r"^\[(true|false),(true|false),(true|false)\]$")
        wide = self.text(structured_outputs={"json": loose, "whitespace_pattern": "  "})
        self.assertRegex(wide, r"^\[  (true|false)(  ,  (true|false)){2}  \]$")
        older = self.text(guided_json=loose, guided_whitespace_pattern="  ")
        self.assertRegex(older, r"^\[  (true|false)(  ,  (true|false)){2}  \]$")

    def test_in_a_stream_and_of_many_answers(self):
        events = server.stream("/v1/chat/completions", messages=CHAT, n=3, temperature=1, max_tokens=120,
                               response_format={"type": "json_schema", "json_schema": {"name": "p", "schema": SCHEMA}})
        texts = ["", "", ""]
        for e in events[:-1]:
            for choice in e["choices"]:
                texts[choice["index"]] += choice["delta"].get("content") or ""
        self.assertTrue(all(map(is_person, texts)), texts)
        status, r = server.post("/v1/completions", prompt="x", n=2, best_of=4, max_tokens=120,
                                structured_outputs={"choice": ["ab", "ac", "bc"]})
        self.assertEqual(status, 200)
        self.assertLessEqual({c["text"] for c in r["choices"]}, {"ab", "ac", "bc"})

    def test_in_the_other_dialects(self):
        for format in ({"type": "json_schema", "name": "p", "schema": SCHEMA}, ):
            status, r = server.post("/v1/responses", input="Hello", max_output_tokens=120, text={"format": format})
            self.assertEqual(status, 200, r)
            self.assertTrue(is_person(r["output"][-1]["content"][0]["text"]))
            self.assertEqual(r["text"]["format"], format)
            for field in ({"output_config": {"format": format}}, {"output_format": format}):
                status, r = server.post("/v1/messages", messages=CHAT, max_tokens=120, **field)
                self.assertEqual(status, 200, r)
                self.assertTrue(is_person(r["content"][0]["text"]))

    def test_log_probabilities_are_those_of_the_raw_logits(self):
        ask = dict(prompt="Once upon a time", max_tokens=1, temperature=0, logprobs=5)
        plain = server.post("/v1/completions", **ask)[1]["choices"][0]["logprobs"]
        forced = server.post("/v1/completions", structured_outputs={"regex": "Q"}, **ask)[1]["choices"][0]["logprobs"]
        for token, logprob in plain["top_logprobs"][0].items():
            self.assertAlmostEqual(forced["top_logprobs"][0][token], logprob, places=4)
        self.assertLess(forced["token_logprobs"][0], min(plain["top_logprobs"][0].values()))

    def test_a_text_that_is_cut_is_the_beginning_of_one(self):
        status, r = server.post("/v1/completions", prompt="x", max_tokens=3,
                                structured_outputs={"regex": "[ab]{400}"})
        self.assertEqual((status, r["choices"][0]["finish_reason"]), (200, "length"))
        self.assertRegex(r["choices"][0]["text"], "^[ab]{3,}$")

    @slow("64 streams")
    def test_the_same_beside_others(self):
        """64 at once, half of them with grammars, some of them left by their clients."""
        regexes = ("([a-z]{2,6} ){3,8}", "[A-Z][a-z ]+[.]", "(the quick brown fox |jumps over the lazy dog ){2,4}end")
        asks = [dict(prompt="Once upon a time " * (i % 3), max_tokens=40, temperature=1, seed=i) for i in range(1, 65)]
        for i, ask in enumerate(asks):
            ask["prompt"] += "there was"
            if i % 2:
                ask["structured_outputs"] = {"regex": regexes[i // 2 % 3]}
        alone = [server.post("/v1/completions", **ask)[1]["choices"][0] for ask in asks]
        together = list(alone)

        def leave(i):
            with socket.create_connection(("127.0.0.1", server.port)) as s:
                body = json.dumps(dict(asks[i], stream=True)).encode()
                s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
                          b"Content-Length: %d\r\n\r\n" % len(body) + body)
                s.recv(1)

        def run(i):
            if i % 16 in (3, 4):
                leave(i)
            else:
                together[i] = server.post("/v1/completions", **asks[i])[1]["choices"][0]

        threads = [threading.Thread(target=run, args=(i, )) for i in range(len(asks))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(together, alone)

    def test_reasoning_comes_first(self):
        ask = dict(messages=CHAT, max_tokens=400, temperature=0.8, top_p=0.9, seed=6)
        status, r = thinker.post("/v1/chat/completions", structured_outputs={"regex": BOTH}, **ask)
        self.assertEqual(status, 200, r)
        message = r["choices"][0]["message"]
        self.assertEqual(r["choices"][0]["finish_reason"], "stop")
        self.assertRegex(message["content"], "^" + BOTH + "$")
        free = thinker.post("/v1/chat/completions", **ask)[1]["choices"][0]["message"]
        self.assertGreater(len(message["reasoning_content"]), 10)
        self.assertEqual(message["reasoning_content"], free["reasoning_content"])  # which no grammar holds back
        quiet = thinker.post("/v1/chat/completions", messages=CHAT, max_tokens=60, seed=5,
                             chat_template_kwargs={"enable_thinking": False}, structured_outputs={"regex": BOTH})[1]
        self.assertRegex(quiet["choices"][0]["message"]["content"], "^" + BOTH + "$")

    def test_what_must_come_is_put_in_at_once(self):
        text = "The little dog went to the park and played with a red ball all day."
        before, steps = server.metric("gyre:forced_tokens_total"), server.metric("gyre:steps_total")
        self.assertEqual(self.text(structured_outputs={"choice": [text, "99"]}, seed=1, temperature=0,
                                   prompt="Once upon a time"), text)
        put_in = server.metric("gyre:forced_tokens_total") - before
        self.assertGreater(put_in, 8)
        self.assertLess(server.metric("gyre:steps_total") - steps, 10)
        status, r = server.post("/v1/completions", prompt="Once upon a time", max_tokens=120, temperature=0, logprobs=0,
                                structured_outputs={"choice": [text]})
        self.assertEqual((status, r["choices"][0]["text"]), (200, text))
        self.assertEqual(len(r["choices"][0]["logprobs"]["token_logprobs"]), r["usage"]["completion_tokens"])
        self.assertEqual(server.metric("gyre:forced_tokens_total") - before, put_in)  # none with log-probabilities

    def test_grammars_are_kept(self):
        ask = dict(prompt="x", max_tokens=5, structured_outputs={"regex": "[k-p]{3}q"})
        before = server.metric("gyre:grammars_compiled_total"), server.metric("gyre:grammars_found_total")
        for _ in range(3):
            self.assertEqual(server.post("/v1/completions", **ask)[0], 200)
        after = server.metric("gyre:grammars_compiled_total"), server.metric("gyre:grammars_found_total")
        self.assertEqual((after[0] - before[0], after[1] - before[1]), (1, 2))
        self.assertGreater(server.metric("gyre:grammar_bytes"), 0)
        lines = [json.loads(line) for line in server.log if line.startswith("{")]
        self.assertTrue(all(line["grammar_ms"] >= 0 for line in lines if "grammar_ms" in line))


class Channels(unittest.TestCase):
    """gpt-oss: what it thinks is a message of its own, in a channel, and so is the answer that a grammar holds."""
    def choice(self, on, **ask):
        status, r = on.post("/v1/chat/completions", **ask)
        self.assertEqual(status, 200, r)
        return r["choices"][0]

    def test_a_message_may_be_thought_before_the_answer(self):
        def is_text(choices):
            return any(c["message"]["content"] and not c["message"].get("tool_calls") for c in choices)

        def is_over_and_thought(choices):
            return (any(c["finish_reason"] == "stop" for c in choices) and
                    any(c["message"]["reasoning_content"] for c in choices))
        call = {"type": "function", "function": {"name": "f", "description": "A tool.", "strict": True, "parameters": {
            "type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"]}}}
        form = {"type": "json_schema", "json_schema": {"name": "p", "schema": {"enum": ["red", "blue"]}}}
        ask = {"messages": CHAT, "max_tokens": 250, "temperature": 2}
        few = "GYRE_TEST_BRIEF" in os.environ  # then only until what is to be seen has been
        with tempfile.TemporaryDirectory() as own:
            oss = Server(templated_model(own, real_template("openai-gpt-oss-120b")), "--allow-links")
            try:
                asked = {"response_format": form}, {"response_format": form, "tools": [call]}, {"tools": [call]}
                answers, either, auto = [[], [], []]
                for made, fields, seen in ((answers, asked[0], is_over_and_thought), (either, asked[1], any),
                                           (auto, asked[2], is_text)):
                    while len(made) < 12 and not (few and seen(made)):
                        made.append(self.choice(oss, seed=len(made), **ask, **fields))
                made = self.choice(oss, seed=1, **ask, tools=[call], tool_choice="required")
            finally:
                self.assertEqual(oss.stop(), 0)
        over = [c["message"] for c in answers if c["finish_reason"] == "stop"]
        self.assertTrue(over)
        self.assertLessEqual({m["content"] for m in over}, {'"red"', '"blue"'})
        self.assertTrue(is_over_and_thought(answers), answers)
        for choice in either:
            if choice["finish_reason"] == "stop":
                self.assertIn(choice["message"]["content"], ('"red"', '"blue"'))
        for choice in either + auto + [made]:
            self.assertNotIn("<|", choice["message"]["content"] or "")
            for made_call in choice["message"].get("tool_calls", []):
                if choice["finish_reason"] == "tool_calls":
                    self.assertEqual(json.loads(made_call["function"]["arguments"]), {"a": "x"})
        self.assertTrue(is_text(auto), auto)


class Refusals(unittest.TestCase):
    def refused(self, param, path="/v1/chat/completions", **fields):
        ask = {"prompt": "x"} if path == "/v1/completions" else {"messages": CHAT}
        if path == "/v1/responses":
            ask = {"input": "x"}
        status, r = server.post(path, **{**ask, **fields})
        self.assertEqual(status, 400, (fields, r))
        if path != "/v1/messages":
            self.assertEqual(r["error"]["param"], param, r)
        self.assertIn(param.split(".")[0], r["error"]["message"])

    def test_what_is_wrong_is_named(self):
        for param, fields in (
            ("response_format", {"response_format": {"type": "xml"}}),
            ("response_format.type", {"response_format": {"type": 5}}),
            ("response_format", {"response_format": "json_object"}),
            ("response_format.json_schema", {"response_format": {"type": "json_schema"}}),
            ("response_format.json_schema.schema",
             {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": [1]}}}),
            ("response_format.json_schema.schema",
             {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "x"}}}}),
            ("structured_outputs", {"structured_outputs": {}}),
            ("structured_outputs", {"structured_outputs": {"xml": "x"}}),
            ("structured_outputs.regex", {"structured_outputs": {"json": {}, "regex": "a"}}),
            ("structured_outputs.regex", {"structured_outputs": {"regex": "(a"}}),
            ("structured_outputs.regex", {"structured_outputs": {"regex": r"(a)\1"}}),
            ("structured_outputs.choice", {"structured_outputs": {"choice": []}}),
            ("structured_outputs.choice[1]", {"structured_outputs": {"choice": ["a", 5]}}),
            ("structured_outputs.grammar", {"structured_outputs": {"grammar": "root ::= x"}}),
            ("structured_outputs.grammar", {"structured_outputs": {"grammar": 5}}),
            ("structured_outputs.json", {"structured_outputs": {"json": "{"}}),
            ("guided_json", {"guided_json": {"type": "string", "minLength": 5, "maxLength": 4}}),
            ("guided_regex", {"guided_regex": "[z-a]"}),
            ("structured_outputs.whitespace_pattern",
             {"structured_outputs": {"regex": "a", "whitespace_pattern": " "}}),
            ("structured_outputs.disable_any_whitespace",
             {"structured_outputs": {"choice": ["a"], "disable_any_whitespace": True}}),
            ("guided_whitespace_pattern", {"guided_regex": "a", "guided_whitespace_pattern": " "}),
            ("response_format", {"response_format": {"type": "json_object"}, "guided_whitespace_pattern": "("}),
            ("structured_outputs.choice", {"structured_outputs": {"choice": ["a"]}, "use_beam_search": True, "n": 2}),
            ("guided_regex", {"response_format": {"type": "json_object"}, "guided_regex": "a"})):
            with self.subTest(fields=str(fields)[:70]):
                self.refused(param, **fields)
        self.refused("text.format", "/v1/responses", text={"format": {"type": "json_schema", "name": "x"}})
        self.refused("text.format", "/v1/responses", text={"format": {"type": "grammar"}})
        self.refused("output_config.format", "/v1/messages", max_tokens=5,
                     output_config={"format": {"type": "json_schema", "schema": {"type": "x"}}})

    def test_hostile_ones_are_answered_soon(self):
        for fields in ({"guided_regex": "(((a{1,999}){1,999}){1,999}){1,999}"}, {"guided_regex": "(a*)*b"},
                       {"guided_grammar": "root ::= ([x]*)*"}, {"guided_grammar": "root ::= root root | root \"a\""},
                       {"guided_json": {"$ref": "#"}}, {"guided_json": {"type": "string", "minLength": 10**9}},
                       {"guided_choice": ["x" * 1000 + str(i) for i in range(2000)]}):
            status, r = server.post("/v1/completions", prompt="x", max_tokens=4, **fields)
            self.assertIn(status, (200, 400), r)
        self.assertEqual(server.post("/v1/completions", prompt="x", max_tokens=4)[0], 200)


class Real(unittest.TestCase):
    @slow("real schemas, whose answers are long")
    def test_what_ends_is_valid(self):
        """Hundreds of grammars side by side on a model that writes anything."""
        python = python_with(self, "openai==3.52.0", "anthropic==2.12.0", "jsonschema==4.26.0")
        toy = Server("tests/models/llama", "--device", "toy")
        p = subprocess.run([python, os.path.join(ROOT, "tests/cli/rig/real_schemas.py"), str(toy.port),
                            os.path.join(ROOT, "build/data/json/schemas.jsonl")], capture_output=True, text=True,
                           timeout=250)
        forced = toy.metric("gyre:forced_tokens_total")
        self.assertEqual(toy.stop(), 0)
        self.assertEqual(p.returncode, 0, p.stderr)
        r = json.loads(p.stdout)
        self.assertEqual(r["wrong"], [])
        n = sum(r["seen"].values())
        self.assertGreater(r["seen"]["valid"], n // 5)
        self.assertLess(r["seen"].get("refused", 0), n // 20)
        self.assertGreater(forced, 0)


class Run(unittest.TestCase):
    def run_gyre(self, *flags, code=0):
        p = subprocess.run([GYRE, "run", os.path.join(ROOT, "tests/models/llama"), "--no-chat", "-p", "Once", "-n",
                            "120", "--threads", "1", "--seed", "3", "--temperature", "1", *flags],
                           capture_output=True, text=True, timeout=60)
        self.assertEqual(p.returncode, code, p.stderr)
        return p.stdout.rstrip("\n") if code == 0 else p.stderr

    def test_flags(self):
        with tempfile.TemporaryDirectory() as d:
            for name, text in (("schema.json", json.dumps(SCHEMA)), ("a.gbnf", GBNF), ("a.lark", LARK),
                               ("bad.json", '{"type": "x"}')):
                with open(os.path.join(d, name), "w") as f:
                    f.write(text)
            self.assertTrue(is_person(self.run_gyre("--json-schema", os.path.join(d, "schema.json"))))
            for name in ("a.gbnf", "a.lark"):
                self.assertRegex(self.run_gyre("--grammar", os.path.join(d, name)), "^" + BOTH + "$")
            self.assertRegex(self.run_gyre("--regex", BOTH), "^" + BOTH + "$")
            self.assertIn(self.run_gyre("--choice", "red fox,blue"), ("red fox", "blue"))
            self.assertIn("bad.json", self.run_gyre("--json-schema", os.path.join(d, "bad.json"), code=1))
            self.assertIn("nowhere", self.run_gyre("--json-schema", os.path.join(d, "nowhere"), code=1))
        self.assertIn("--regex", self.run_gyre("--regex", "(a", code=1))
        self.assertIn("one of", self.run_gyre("--regex", "a", "--choice", "a", code=2))


if __name__ == "__main__":
    unittest.main()
