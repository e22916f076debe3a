"""gyre parse: reasoning, content and tool calls of what models write, in the form that their templates show."""
import json, os, random, subprocess, tempfile, time, unittest

from brief import share_of, some_of

GYRE = os.path.abspath(os.environ["GYRE"])
TEMPLATES = "tests/data/chat/templates/"
with open("tests/data/chat/output_cases.json") as file:
    OURS = json.load(file)
TOOLS = OURS["tools"]


def by_template(cases):
    return {t: [c for c in cases if c["template"] == t] for t in sorted({c["template"] for c in cases})}


class Parse(unittest.TestCase):
    def parse(self, template, lines, *flags):
        given = "".join(json.dumps(line) + "\n" for line in lines)
        p = subprocess.run([GYRE, "parse", TEMPLATES + template, "--batch", *flags], input=given, capture_output=True,
                           text=True, timeout=120)
        self.assertEqual((p.returncode, p.stderr), (0, ""))
        parsed = [json.loads(line) for line in p.stdout.splitlines()]
        self.assertEqual(len(parsed), len(lines))
        return parsed

    def same(self, got, content, reasoning, calls):
        self.assertEqual((got["content"], got["reasoning_content"]), (content, reasoning))
        self.assertEqual([c["name"] for c in got["tool_calls"]], [c["name"] for c in calls])
        for g, w in zip(got["tool_calls"], calls):
            if g["arguments"] != w["arguments"]:
                self.assertEqual(json.loads(g["arguments"]), json.loads(w["arguments"]))
            if "id" in w:
                self.assertEqual(g.get("id"), w["id"])

    def test_cases_of_llama_cpp(self):
        with open("build/data/chat/output_parsing_cases.json") as f:
            cases = json.load(f)["cases"]
        for template, ours in by_template(cases).items():
            lines = [{k: v for k, v in c.items() if k not in ("template", "expect")} for c in ours]
            for flags in some_of([(), ("--pieces", "1"), ("--pieces", "7")]):
                for case, got in zip(ours, self.parse(template, lines, *flags)):
                    want = case["expect"]
                    with self.subTest(template=template, output=case["output"], flags=flags):
                        self.same(got, want["content"], want["reasoning_content"], want["tool_calls"])

    def test_our_cases(self):
        for template, cases in by_template(OURS["cases"]).items():
            for flags in some_of([(), ("--pieces", "1"), ("--pieces", "5")]):
                lines = [{"output": c["output"], "tools": TOOLS} for c in cases]
                for case, got in zip(cases, self.parse(template + ".jinja", lines, *flags)):
                    calls = [{**c, "arguments": json.dumps(c["arguments"])} for c in case["calls"]]
                    with self.subTest(template=template, output=case["output"], flags=flags):
                        self.same(got, case["content"], case["reasoning"], calls)

    def test_a_text_that_may_be_missing_stays_a_text(self):
        """Values that are no JSON: numbers of Python only where no text may be."""
        text_or = {"anyOf": [{"type": "string"}, {"type": "null"}]}, {"type": ["string", "number"]}
        whole, flag = {"type": "integer"}, {"type": ["string", "boolean"]}
        cases = [(text_or[0], v, v) for v in ("02139", "+49170", "1_000", "True")]
        cases += [(text_or[1], v, v) for v in ("007", "+5")]
        cases += [(text_or[0], "None", None), (text_or[0], "null", None), (flag, "True", True),
                  (whole, "07", 7), (whole, "+5", 5), (whole, "1_000", 1000), (whole, "0" * 100000 + "1", 1)]
        for schema, written, want in cases:
            tools = [{"type": "function", "function": {"name": "f", "parameters": {
                "type": "object", "properties": {"v": schema}}}}]
            output = "<tool_call>f\n<arg_key>v</arg_key>\n<arg_value>%s</arg_value>\n</tool_call>" % written
            with self.subTest(schema=schema, written=written[:20]):
                got, = self.parse("GLM-4.6.jinja", [{"output": output, "tools": tools}])
                self.assertEqual([json.loads(c["arguments"]) for c in got["tool_calls"]], [{"v": want}])

    def test_what_is_no_call_is_content_as_it_is(self):
        for template, cases in by_template(OURS["no_calls"]).items():
            for flags in (), ("--pieces", "1"):
                lines = [{"output": c["output"], "tools": TOOLS} for c in cases]
                for case, got in zip(cases, self.parse(template + ".jinja", lines, *flags)):
                    with self.subTest(template=template, output=case["output"], flags=flags):
                        self.same(got, case["output"], "", [])

    def parsed(self, template, want):
        """want: by text, its content and its calls."""
        with tempfile.NamedTemporaryFile("w", suffix=".jinja") as f:
            f.write(template)
            f.flush()
            for n in "1", "5", "99":
                lines = [{"output": t, "tools": TOOLS} for t in want]
                got = self.parse(os.path.relpath(f.name, TEMPLATES), lines, "--pieces", n)
                for (text, (content, calls)), parts in zip(want.items(), got):
                    with self.subTest(text=text, n=n):
                        self.same(parts, content, "", calls)

    def test_a_prompt_that_opens_a_call(self):
        """Functionary 3.2: whom a text is for stands before it, behind a mark that the prompt writes."""
        template = (
            "{% for m in messages %}<|start|>{{ m.role }}\n\n{% if m.role == 'assistant' %}"
            "{{ '>>>all\\n' + m.content if m.content }}{% for c in m.tool_calls %}"
            "{{ '>>>' + c.function.name + '\\n' + c.function.arguments | tojson }}{% endfor %}"
            "{% else %}{{ m.content }}{% endif %}<|end|>{% endfor %}<|start|>assistant\n\n>>>")
        calls = [{"name": "add", "arguments": '{"a": 1}'}, {"name": "empty", "arguments": "{}"}]
        self.parsed(template, {
            "all\nHello >>> there": ("Hello >>> there", []),
            'get_time\n{"city": "x"}': ("", [{"name": "get_time", "arguments": '{"city": "x"}'}]),
            'all\nSo:\n>>>add\n{"a": 1}>>>empty\n{}': ("So:\n", calls)})

    def test_marks_around_an_empty_content_open_no_call(self):
        """Llama 4: a turn of calls shows a content between marks, and none too."""
        template = (
            "{% for m in messages %}<|header_start|>{{ m.role }}<|header_end|>\n\n{% if m.tool_calls %}"
            "<|python_start|>{{ m.content }}<|python_end|>{% for c in m.tool_calls %}"
            """{{ '{"name": "' + c.function.name + '", "parameters": ' }}{{ c.function.arguments | tojson }}{{ '}' }}"""
            "{% endfor %}{% else %}{{ m.content }}{% endif %}<|eot|>{% endfor %}<|header_start|>assistant"
            "<|header_end|>\n\n")
        call = '{"name": "add", "parameters": {"a": 1}}'
        calls = [{"name": "add", "arguments": '{"a": 1}'}]
        self.parsed(template, {
            call: ("", calls), call + call: ("", calls * 2), "So. " + call: ("So. ", calls),
            "<|python_start|>So.<|python_end|>" + call: ("So.", calls),
            "<|python_start|><|python_end|>" + call: ("", calls),
            "<|python_start|>%s<|python_end|>" % call: ("", calls), "<|python_start|>So.<|python_end|>": ("So.", [])})

    def test_templates_that_tell_it_in_words(self):
        """Those that show tools and no past calls."""
        turns = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
                 "<|im_start|>assistant\n")
        self.parsed("{{ \"Return a JSON object within <tool_call></tool_call>:\\n<tool_call>\\n{'arguments': <args>, "
                    "'name': <function-name>}\\n</tool_call>\\n\" }}{% for t in tools %}{{ t | tojson }}{% endfor %}" +
                    turns, {
            'Hm.\n<tool_call>\n{"arguments": {"a": 1}, "name": "add"}\n</tool_call>':
            ("Hm.\n", [{"name": "add", "arguments": '{"a": 1}'}])})
        words = ("<tool_call>function_name\n<arg_key>parameter_name</arg_key>\n<arg_value>parameter_value</arg_value>\n"
                 "</tool_call>\n{% for t in tools %}{{ t | tojson }}{% endfor %}")
        one = "<tool_call>%s\n<arg_key>%s</arg_key>\n<arg_value>%s</arg_value>\n</tool_call>"
        self.parsed(words + turns, {
            one % ("add", "a", "1") + "\n" + one % ("get_time", "city", "a < b"):
            ("", [{"name": "add", "arguments": '{"a": 1}'}, {"name": "get_time", "arguments": '{"city": "a < b"}'}])})

    def test_elements_within_elements(self):
        """MiniMax M3: an element an argument, each part of an object or a list one of its own."""
        seed = random.randrange(1 << 30)
        print("seed", seed)
        rng, ns = random.Random(seed), "]<]minimax[>["

        def value(depth):
            kind = rng.choice(["string", "integer", "boolean", "null"] + ["object", "array"] * (depth < 4))
            if kind == "object":
                parts = {rng.choice(["a", "item", "k_1", "ü"]): value(depth + 1) for _ in range(rng.randint(0, 3))}
                known = {k: p[0] for k, p in parts.items()}
                return {"type": kind, "properties": known}, {k: p[1] for k, p in parts.items()}
            if kind == "array":
                schema, first = value(depth + 1)
                many = [first] * rng.randint(0, 3)
                return {"anyOf": [{"type": "null"}, {"type": kind, "items": schema}]}, many
            words = ["x", "<b>", "</b>", " ", "\n", '"', "ü", "]<]", "7", "{"]
            text = "".join(rng.choices(words, k=rng.randint(0, 6)))
            return {"type": kind}, {"string": text, "integer": 7, "boolean": True, "null": None}[kind]

        def written(v):
            if isinstance(v, dict):
                return "".join("%s<%s>%s%s</%s>" % (ns, k, written(p), ns, k) for k, p in v.items())
            if isinstance(v, list):
                return "".join("%s<item>%s%s</item>" % (ns, written(p), ns) for p in v)
            return v if isinstance(v, str) else json.dumps(v)

        with tempfile.NamedTemporaryFile("w", suffix=".jinja") as f:
            f.write("{# " + ns + "<tool_call> <invoke name= #}{% for m in messages %}{{ m.content }}{% endfor %}")
            f.flush()
            template, lines, wants = os.path.relpath(f.name, TEMPLATES), [], []
            for _ in range(200):
                parts = {k: value(0) for k in rng.sample(["a", "item", "s", "invoke"], rng.randint(0, 3))}
                tool = {"name": "f", "parameters": {"properties": {k: p[0] for k, p in parts.items()}}}
                wants.append({k: p[1] for k, p in parts.items()})
                call = '%s<invoke name="f">%s%s</invoke>' % (ns, written(wants[-1]), ns)
                lines.append({"tools": [{"type": "function", "function": tool}],
                              "output": "Well.%s<tool_call>\n%s\n%s\n%s</tool_call>" % (ns, call, call, ns)})
            whole = self.parse(template, lines)
            for want, got, line in zip(wants, whole, lines):
                self.assertEqual([json.loads(c["arguments"]) for c in got["tool_calls"]], [want] * 2, line)
                self.assertEqual(got["content"], "Well.", line)
            for n in "1", "7":
                self.assertEqual(self.parse(template, lines, "--pieces", n), whole)
            open_call = ns + '<invoke name="get_time">'
            twice = ns + "<t>a" + ns + "</t>" + ns + "<t>2" + ns + "</t>"
            cases = [(ns + "<o>" + twice + ns + "</o>", {"o": {"t": ["a", 2]}}),
                     (ns + "<o>" + ns + "<item>1" + ns + "</item>" + ns + "</o>", {"o": [1]}),
                     (ns + "<o>x" + ns + "<t>1" + ns + "</t>" + ns + "</o>", {"o": "x" + ns + "<t>1" + ns + "</t>"}),
                     (ns + '<o>{"k": 1}' + ns + "</o>", {"o": {"k": 1}})]
            cases += [(ns + "<o>" + part * 100000 + ns + "</o>", None) for part in (
                ns + "<o>", ns + "<t>", ns + "<t>1" + ns + "</t>", ns + "<t>" + ns + "</o>", ns + "</t>", ns + "<")]
            start = time.process_time() + sum(os.times()[2:4])
            lines = [{"output": open_call + c + ns + "</invoke>", "tools": TOOLS} for c, _ in cases]
            for (text, want), got in zip(cases, self.parse(template, lines, "--pieces", "500")):
                if want:
                    self.assertEqual(json.loads(got["tool_calls"][0]["arguments"]), want, text)
            self.assertLess(time.process_time() + sum(os.times()[2:4]) - start, 10)

    def test_without_tools_calls_are_text(self):
        text = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
        self.same(self.parse("Qwen-Qwen2.5-7B-Instruct.jinja", [{"output": text}])[0], text, "", [])

    def test_json_that_breaks_loses_no_character(self):
        text = '<tool_call>\n{"name": "get_time", "arguments": {"city": oops}}\n</tool_call>'
        for n in "1", "4", "99":
            got = self.parse("Qwen-Qwen2.5-7B-Instruct.jinja", [{"output": text, "tools": TOOLS}], "--pieces", n)[0]
            self.assertEqual(got["tool_calls"], [{"name": "get_time", "arguments": '{"city": '}])
            self.assertEqual(got["content"], "oops}}\n</tool_call>")

    def test_what_is_held_back_is_not_read_anew_with_each_piece(self):
        """Long ones, in pieces of a few bytes: in a time that grows with them, and not with their square."""
        long = "x" * 1000000
        texts = ['{"arguments": {"city": "%s"}, "name": "get_time"}' % long,
                 '{"name": "get_time", "arguments": {}, "o": "%s"}' % long,
                 '{"name": "get_time", "arguments": "{\\"city\\": \\"%s\\"}"}' % long,
                 '{"name": "get_time", "arguments": {"city": "%s"}}' % long]
        start = time.monotonic()
        lines = [{"output": "<tool_call>" + t + "</tool_call>", "tools": TOOLS} for t in texts]
        for got in self.parse("Qwen-Qwen2.5-7B-Instruct.jinja", lines, "--pieces", "4"):
            self.assertEqual([c["name"] for c in got["tool_calls"]], ["get_time"])
        self.assertLess(time.monotonic() - start, 20)

    def test_long_runs_of_blanks_take_a_time_that_grows_with_them(self):
        """Wherever they stand in a call: models that repeat themselves write blanks, too."""
        qwen, end = "<tool_call>\n<function=%s>\n", "</parameter></function></tool_call>"
        cases = [("Qwen3.5-4B", qwen % "get_time", "<parameter=city>x" + end),
                 ("Qwen3.5-4B", qwen % "get_time" + "<parameter=city>", "x" + end),
                 ("Qwen3.5-4B", qwen % "add" + "<parameter=a>1</parameter>", "</function></tool_call>"),
                 ("Kimi-K2-Instruct", '<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0'
                  '<|tool_call_argument_begin|>{"a": 1}', "<|tool_call_end|><|tool_calls_section_end|>"),
                 ("LFM2-8B-A1B", "<|tool_call_start|>[get_time(city='x')", "]<|tool_call_end|>")]
        start = time.process_time() + sum(os.times()[2:4])
        for template, before, behind in cases:
            line = {"output": before + " " * 400000 + behind, "tools": TOOLS}
            got, = self.parse(template + ".jinja", [line], "--pieces", "4")
            self.assertEqual(len(got["tool_calls"]), 1)
        self.assertLess(time.process_time() + sum(os.times()[2:4]) - start, 10)

    def test_bounds_on_what_is_held_are_the_same_however_it_comes(self):
        """Blanks about as many as may be held, anywhere in a call."""
        seed = random.randrange(1 << 30)
        print("seed", seed)
        rng = random.Random(seed)
        for template, cases in share_of(by_template(OURS["cases"]).items(), 1 / 3):
            case = next((c for c in cases if c["calls"]), None)
            if not case:
                continue
            text, lines = case["output"], []
            places = [i for i in range(1, len(text)) if text[i] in "<[{" or text[i - 1] in ">]})"]
            for at in rng.sample(places, min(8, len(places))):
                for n in 1200, 2100, 17000:
                    lines.append({"output": text[:at] + " " * n + text[at:], "tools": TOOLS})
            whole = self.parse(template + ".jinja", lines)
            for n in "7", "1000":
                for line, a, b in zip(lines, whole, self.parse(template + ".jinja", lines, "--pieces", n)):
                    self.assertEqual(a, b, (template, n, line["output"].replace(" " * 1000, "_")))

    def test_the_end_of_the_reasoning_is_seen_behind_any_blanks(self):
        """As many as may be held, and as many as there are when a look falls in the middle of the mark."""
        counts = [16384, 16385, *share_of(range(16815, 16835), 1 / 10)]
        lines = [{"output": "<think>\nhm" + " " * blanks + "</think>\n\nHi", "tools": TOOLS} for blanks in counts]
        for n in "1", "1000":
            for blanks, got in zip(counts, self.parse("Qwen-Qwen3-0.6B.jinja", lines, "--pieces", n)):
                self.assertEqual((got["reasoning_content"].rstrip(), got["content"]), ("hm", "Hi"), (blanks, n))

    def test_any_cut_of_pieces_is_the_same(self):
        """Texts made of marks and words at random: whatever they are, they are the same in pieces."""
        seed = random.randrange(1 << 30)
        print("seed", seed)
        rng = random.Random(seed)
        for template, cases in share_of(by_template(OURS["cases"]).items(), 1 / 3):
            seen = [c["output"] for c in cases]
            words = sorted({t[i:i + n] for t in seen for i in range(len(t)) for n in (9, 17) if t[i] in "<{[("})
            words += ["ü🙂 ", "\n", "get_time", "{", "}"]
            texts = ["".join(rng.choices(words, k=rng.randint(1, 9))) for _ in range(60)]
            lines = [{"output": t, "tools": TOOLS} for t in texts]
            whole = self.parse(template + ".jinja", lines)
            for n in "1", "3", "10":
                for text, a, b in zip(texts, whole, self.parse(template + ".jinja", lines, "--pieces", n)):
                    self.assertEqual(a, b, (template, n, text))

    def test_bad_lines_and_flags_are_refused(self):
        bad = [{}, {"output": 1}, {"output": "x", "tools": 1}]
        self.assertEqual([set(a) for a in self.parse("MiMo-VL.jinja", bad)], [{"error"}] * 3)
        p = subprocess.run([GYRE, "parse", TEMPLATES + "MiMo-VL.jinja"], capture_output=True, text=True, timeout=60)
        self.assertEqual(p.returncode, 2)
        self.assertIn("give --batch", p.stderr)


if __name__ == "__main__":
    unittest.main()
