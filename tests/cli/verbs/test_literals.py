"""gyre parse: arguments that models write as Python are what Python's own ast.literal_eval gives."""
import ast, io, json, os, random, subprocess, time, tokenize, unittest, warnings

GYRE = os.path.abspath(os.environ["GYRE"])
LFM2 = "tests/data/chat/templates/LFM2-8B-A1B.jinja"
TOOLS = [{"type": "function", "function": {"name": "f"}}]


def read(values, *flags):
    """Each value as an argument: (what it is as JSON or None, the content behind)."""
    texts = ["<|tool_call_start|>[f(v=%s, w=1)]<|tool_call_end|>" % v for v in values]
    given = "".join(json.dumps({"output": t, "tools": TOOLS}) + "\n" for t in texts)
    p = subprocess.run([GYRE, "parse", LFM2, "--batch", *flags], input=given, capture_output=True, text=True,
                       timeout=120)
    assert (p.returncode, p.stderr) == (0, ""), p.stderr
    return [(a["tool_calls"][0]["arguments"], a["content"]) for a in map(json.loads, p.stdout.splitlines())]


def plain(value):
    """As JSON has it; a set sorted, and without what is there twice."""
    if isinstance(value, set):
        return ["set"] + sorted((plain(v) for v in value), key=repr)
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, dict):
        return {json.loads(json.dumps({k: 0})).popitem()[0]: plain(v) for k, v in value.items()}
    return json.loads(json.dumps(value))


def like(got, value):
    """What was read, with the sets of value as plain() has them."""
    if isinstance(value, set):
        want, got = sorted(value, key=repr), got if isinstance(got, list) else []
        known = [next((w for w in want if plain(w) == like(g, w)), None) for g in got]
        return plain(set(known))
    if isinstance(value, (list, tuple)) and isinstance(got, list) and len(got) == len(value):
        return [like(g, v) for g, v in zip(got, value)]
    if isinstance(value, dict) and isinstance(got, dict):
        by_key = {json.loads(json.dumps({k: 0})).popitem()[0]: v for k, v in value.items()}
        return {k: like(g, by_key.get(k)) for k, g in got.items()}
    return got


class Writer:
    """Writes values as Python's grammar has them, in all of its ways, and now and then in none."""
    PARTS = ["a", "Zürich", " ", "it", "don", "🙂", ",", ")", "]", ": ", "# ", "{", "\\n", "\\t", "\\\\", "\\'", '\\"',
             "\\x41", "\\u00e9", "\\ud83d\\ude00", "\\U0001F600", "\\101", "\\7", "\\0", "\\777", "\\a", "\\b", "\\f",
             "\\v", "\\q", "\\/", "\\\n", "\\x4", "\\u12", "\\U00110000", "=", "<", "'", '"', "\n", "r'", "''"]
    NUMBERS = ["0", "7", "-5", "+5", "- 5", "1_000", "1_0.2_5", "0x1F", "0XfF_f", "0x_1", "0o17", "0b1_01", "-0x10",
               "1e3", "1E-2", ".5", "5.", "-.5", "5.e2", "007.5", "0_0", "00", "123456789012345678901234567890",
               "0x" + "f" * 60, "1__0", "0x", "0b2", "+-5", "--5", "1_", "True", "False", "None"]

    def __init__(self, rng):
        self.rng = rng

    def string(self):
        rng = self.rng
        quote = rng.choice(["'", '"', "'''", '"""'])
        body = "".join(rng.choices(self.PARTS, k=rng.randint(0, 5)))
        if rng.random() < 0.8:  # mostly one that Python takes
            body = body.replace("\\x4", "") if "\\x41" not in body else body
            body = body.replace("\\u12", "").replace("\\U00110000", "")
            body = body.replace(quote[0], "`") if rng.random() < 0.9 or len(quote) == 1 else body
            if len(quote) == 1:
                body = body.replace("\n", " ")
        prefix = rng.choices(["", "r", "R", "u", "U", "b", "f"], [60, 12, 3, 8, 2, 1, 1])[0]
        return prefix + quote + body + quote

    def strings(self):
        n = self.rng.choices([1, 2, 3], [6, 2, 1])[0]
        return self.blank(["", " ", "\n  "]).join(self.string() for _ in range(n))

    def blank(self, some=("", "", " ", "\n")):
        return self.rng.choice(list(some))

    def value(self, depth=0):
        kind = self.rng.choice("sssnn" + ("ltdpe" if depth < 3 else ""))
        if kind == "s":
            return self.strings()
        if kind == "n":
            return self.rng.choice(self.NUMBERS)
        open_, close = {"l": "[]", "t": "()", "d": "{}", "p": "()", "e": "{}"}[kind]
        if kind == "p":
            inside = [self.value(depth + 1)]
        elif kind == "e":
            inside = [self.rng.choice([self.strings(), self.rng.choice(self.NUMBERS), "(1, 'x')", "()"])
                      for _ in range(self.rng.randint(1, 3))]
        elif kind == "d":
            keys = [k for k in self.NUMBERS if not set(k) & set(".eE")] + ["None"]  # to Python 1 and True are one key
            inside = [self.rng.choice([self.strings(), self.rng.choice(keys)]) + self.blank() + ":" + self.blank() +
                      self.value(depth + 1) for _ in range(self.rng.randint(0, 3))]
        else:
            inside = [self.value(depth + 1) for _ in range(self.rng.randint(0, 3))]
        comma = inside and self.rng.random() < 0.2 and kind != "p"
        return open_ + self.blank() + ("," + self.blank()).join(inside) + ("," if comma else "") + self.blank() + close


def as_python(text):
    """What Python reads; None where it refuses the text, or reads a comment or a joined line, which are none here."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value, _ = ast.literal_eval("(%s, 1)" % text)
        tokens = list(tokenize.generate_tokens(io.StringIO("(%s)" % text).readline))
        joined = text.count("\\\n") - sum(t.string.count("\\\n") for t in tokens if t.type == tokenize.STRING)
        return None if joined or tokenize.COMMENT in [t.type for t in tokens] else (plain(value), value)
    except (SyntaxError, ValueError, TypeError, tokenize.TokenError):
        return None


class Literals(unittest.TestCase):
    def same(self, text, got, content, value):
        self.assertEqual(content, "", text)
        self.assertEqual(like(json.loads(got)["v"], value), plain(value), text)

    def test_random_literals_are_what_python_reads(self):
        """3000 of them; those that Python refuses must only be the same in pieces as whole."""
        seed = random.randrange(1 << 30)
        print("seed", seed)
        writer = Writer(random.Random(seed))
        values, n_read = [writer.value() for _ in range(3000)], 0
        got = read(values)
        for text, (arguments, content) in zip(values, got):
            value = as_python(text)
            if value:
                n_read += 1
                self.same(text, arguments, content, value[1])
        self.assertGreater(n_read, 1000)
        for n in "1", "7":
            for text, whole, piece in zip(values, got, read(values, "--pieces", n)):
                self.assertEqual(whole, piece, (n, text))

    def test_each_form_by_itself(self):
        texts = ["'''abc'''", '"""it\'s "x" """', "'a' 'b'", "('a'\n 'b')", r"r'\d+\''", "u'x'", "R'''\\n'''", "{1, 2}",
                 "{'a'}", "{}", "()", "(1)", "(1,)", "((1, 2), [3])", "{'a': (1, {2})}", "1_000", "0x1F", "-0b11",
                 "'\\101'", "'\\x41\\u0041\\U0001F600\\a'", "'a\\\nb'", "'''a\r\nb'''", "{True: 1, None: 2, 0x10: 3}",
                 "'\\/'", "{(1, 2), (3,)}", "'' ''", "0x" + "7" * 900]
        for flags in (), ("--pieces", "1"), ("--pieces", "7"):
            for text, (arguments, content) in zip(texts, read(texts, *flags)):
                self.same(text, arguments, content, as_python(text)[1])

    def test_what_python_refuses_is_read_as_models_mean_it(self):
        cases = [("'don't'", "don't"), ("'He said 'hi' to me'", "He said 'hi' to me"),
                 ("'He said 'it''", "He said 'it'"),
                 ("''abc''", "'abc'"), ("07", 7), ("1__0", "1__0"), ("f'x'", "f'x'"), ("b'x'", "b'x'"), ("0x", "0x"),
                 ("abc", "abc"), ("'a'b' 'c'", "a'bc"), ("'\\N{DASH}'", "\\N{DASH}"), ("'\\x4'", "\\x4"),
                 ("'print('a')'", "print('a')"), ("'f('\\,'))\"'", "f('\\,'))\""), ("'Note': see'", "Note': see"),
                 ("['-c', 'print('hi')']", ["-c", "print('hi')"]), ("{'a': 'b'}'}", {"a": "b'}"}),
                 ("'for x in d['k']: print('x'):'", "for x in d['k']: print('x'):")]
        for flags in (), ("--pieces", "1"), ("--pieces", "7"):
            for (text, want), (arguments, content) in zip(cases, read([t for t, _ in cases], *flags)):
                self.assertEqual((json.loads(arguments), content), ({"v": want, "w": 1}, ""), text)

    def test_a_tagged_value_may_be_a_tuple_or_a_set(self):
        texts = ["(1, 'x')", "{1, 2}", "['a' 'b']", "{'k': {3}}", "()"]
        tools = [{"type": "function", "function": {"name": "f", "parameters": {
            "type": "object", "properties": {"v": {"type": ["array", "object"]}}}}}]
        given = "".join(json.dumps({"tools": tools, "output": (
            "<tool_call>f\n<arg_key>v</arg_key>\n<arg_value>%s</arg_value>\n</tool_call>" % t)}) + "\n" for t in texts)
        p = subprocess.run([GYRE, "parse", "tests/data/chat/templates/GLM-4.6.jinja", "--batch"], input=given,
                           capture_output=True, text=True, timeout=60)
        for text, answer in zip(texts, map(json.loads, p.stdout.splitlines())):
            self.same(text, answer["tool_calls"][0]["arguments"], answer["content"], ast.literal_eval(text))

    def test_long_and_odd_ones_take_a_time_that_grows_with_them(self):
        n = 300000
        texts = ["'" + "x''" * n, "'a'" + " 'b'" * n, "'" * n, "'a' '" + "b" * n, "(" * n, "((" + "'a', " * n, "{" * n,
                 "'" + "'' '" * n, "'a' \"" + "b' \"" * n, "'''" + "'' " * n]
        start = time.process_time() + sum(os.times()[2:4])
        read(texts, "--pieces", "4")
        self.assertLess(time.process_time() + sum(os.times()[2:4]) - start, 20)


if __name__ == "__main__":
    unittest.main()
