"""gyre grammar: texts held to other matchers (re, Earley as in books, Lark's own), by bytes and by masks;
hostile grammars.

Not in make test-fast: 8 s of a processor."""
import json, os, random, re, resource, subprocess, unittest, warnings

import grammars
import packages

from places import ROOT

GYRE = os.path.abspath(os.environ["GYRE"])
QWEN3 = os.path.join(ROOT, "build/data/tokenizers/qwen3/tokenizer.json")
SEED = int(os.environ.get("GYRE_TEST_SEED", random.randrange(10**9)))


def ask(items, *words):
    p = subprocess.run([GYRE, "grammar", "--batch", *words], input="".join(json.dumps(i) + "\n" for i in items),
                       capture_output=True, text=True, timeout=120)
    assert p.returncode == 0, p.stderr
    out = [json.loads(line) for line in p.stdout.splitlines()]
    assert len(out) == len(items)
    return out


def random_text(rng, letters, most):
    return "".join(rng.choice(letters) for _ in range(rng.randint(0, most)))


class Oracles(unittest.TestCase):
    def check(self, items, want, *words):
        """want: whether each text is in the language, and whether it begins one of it (None: not known)."""
        for item, (whole, prefix), got in zip(items, want, ask(items, *words)):
            why = "seed %d: %s" % (SEED, json.dumps(item))
            self.assertNotIn("error", got, why)
            self.assertEqual(got["accepts"], whole, why)
            if prefix is not None:
                self.assertEqual(got["prefix"], prefix, why)

    def test_regexes_are_what_python_reads(self):
        rng, items, want = random.Random(SEED), [], []
        warnings.simplefilter("ignore")
        while len(items) < 3000:
            pattern = grammars.random_regex(rng)
            try:
                compiled = re.compile(pattern)
            except re.error:
                continue
            if "error" in ask([{"regex": pattern, "text": ""}])[0]:
                continue  # no text at all follows it, or a lookahead is repeated
            for _ in range(20):
                text = random_text(rng, "aabbcABéü1 -{.x_\n", 6)
                items.append({"regex": pattern, "text": text})
                want.append((compiled.fullmatch(text) is not None, None))
        self.check(items, want)

    def test_gbnf_is_what_earley_says(self):
        rng, items, want = random.Random(SEED), [], []
        for _ in range(300):
            grammar = grammars.random_grammar(rng)
            rules = grammars.without_hopeless(grammars.productions(grammar))
            for _ in range(12):
                text = random_text(rng, "abc", 7)
                items.append({"gbnf": grammars.as_gbnf(grammar), "text": text})
                want.append(grammars.recognise(rules, text))
        none = [i for i, w in zip(items, want) if w is None]
        for got in ask(none):
            self.assertIn("no text can satisfy", got["error"])
        some = [(i, w) for i, w in zip(items, want) if w is not None]
        self.assertGreater(sum(w[0] for _, w in some), 100)
        self.check([i for i, _ in some], [w for _, w in some])
        self.check([i for i, _ in some][:600], [(w[0], None) for _, w in some][:600], "--tokenizer", QWEN3)

    def test_random_texts_are_of_the_language(self):
        rng, items, judges = random.Random(SEED + 1), [], []
        warnings.simplefilter("ignore")
        for _ in range(150):
            grammar = grammars.random_grammar(rng)
            rules = grammars.without_hopeless(grammars.productions(grammar))
            if "root" in rules:
                items.append({"gbnf": grammars.as_gbnf(grammar)})
                judges.append(lambda text, rules=rules: grammars.recognise(rules, text[:300]))
            pattern = grammars.random_regex(rng)
            try:
                compiled = re.compile(pattern)
            except re.error:
                continue
            items.append({"regex": pattern})
            judges.append(lambda text, c=compiled: (c.fullmatch(text) is not None, True))
        finished = 0
        for item, judge, got in zip(items, judges, ask(items, "--sample", "10", "--seed", str(SEED))):
            for text in got.get("texts", []):
                if len(text) > 300:
                    continue  # the recogniser is slow
                finished += 1
                self.assertTrue(judge(text)[0], "seed %d: %s gives %r" % (SEED, json.dumps(item), text))
        self.assertGreater(finished, 500)

    def test_lark_is_what_lark_says(self):
        python = packages.python_with(self, "lark==1.2.2")
        rng, cases = random.Random(SEED), []
        for _ in range(120):
            text = grammars.as_lark(grammars.random_grammar(rng))
            if rng.random() < 0.4:
                text += '%ignore " "\n'
            cases.append({"lark": text, "texts": [random_text(rng, "aabbc ", 7) for _ in range(10)]})
        p = subprocess.run([python, os.path.join(ROOT, "tests/cli/rig/lark_oracle.py")], capture_output=True, text=True,
                           input="".join(json.dumps(c) + "\n" for c in cases), timeout=300)
        answers = [json.loads(line) for line in p.stdout.splitlines()]
        self.assertEqual(len(answers), len(cases), p.stderr)
        items, want = [], []
        for case, answer in zip(cases, answers):
            if not isinstance(answer, dict) and any(answer):
                items += [{"lark": case["lark"], "text": t} for t in case["texts"]]
                want += [(a, None) for a in answer]
        self.assertGreater(len(items), 100)
        self.check(items, want)

    def test_masks_of_any_tokenizer_let_through_what_bytes_do(self):
        """Llama 2's puts a blank before all that it reads; what it makes of an answer behind a prompt has none."""
        schema = {"type": "object", "properties": {"naïve key": {"type": "string"}, "n": {"type": "number"}}}
        texts = ['{"naïve key": "日本 \\u00e9 😀", "n": -1.5e3}', '{"n":12}', '{\n  "n": 0\n}', ' {"n": 1}', "{}", "",
                 '{"n": "1"}', '{"n": 1', "x"]
        items = [{"json_schema": schema, "text": t} for t in texts]
        items += [{"regex": "( ?a|é)*b", "text": t} for t in ("ab", " ab", "éb", "a ab", "b", " b", "", "\nb")]
        want = ask(items)
        self.assertEqual({a["accepts"] for a in want}, {True, False})
        for name in ("qwen3", "llama-2", "llama-3", "gpt-2", "o200k"):
            for item, by_bytes, by_masks in zip(items, want, ask(items, "--tokenizer", os.path.join(
                    ROOT, "build/data/tokenizers", name))):
                with self.subTest(tokenizer=name, text=item["text"]):
                    self.assertEqual(by_masks["accepts"], by_bytes["accepts"])


class Hostile(unittest.TestCase):
    def test_hostile_grammars_are_answered_within_a_second(self):
        for kind, grammar, text in hostile():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            got = ask([{kind: grammar, "text": text}])[0]
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            took = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            what = "%s %.60s: %.2f s, %s" % (kind, json.dumps(grammar), took, got)
            self.assertLess(took, 1.5, what)
            self.assertTrue("error" in got or got["prefix"] in (True, False), what)

    def test_what_a_hostile_grammar_is_refused_for_is_said(self):
        got = ask([{"choice": ["x%d" % i for i in range(200000)], "text": ""}, {"regex": "(" * 1000, "text": ""},
                   {"gbnf": "root ::= " + "(" * 1000, "text": ""}, {"lark": "start: " + "(" * 1000, "text": ""}])
        for answer, words in zip(got, ("longer than", "nested", "nested", "nested")):
            self.assertIn(words, answer["error"])

    def test_time_is_looked_at_while_classes_are_read(self):
        for kind, grammar in (("regex", "(?i)" + "[\\D]" * 250000), ("regex", "\\W" * 500000),
                              ("regex", "(?i)[" + "\\D" * 400000 + "]"), ("regex", "[" + "\\W" * 400000 + "]"),
                              ("gbnf", "root ::= " + "[^a] " * 150000)):
            before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
            got = ask([{kind: grammar, "text": "a"}])[0]
            took = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
            self.assertLess(took, 4, grammar[:20])  # 1 s is allowed, and then it is looked at
            self.assertTrue("too much time" in got.get("error", "") or "prefix" in got, got)
        many = "(?i)[" + "\\Wk" * 3000 + "]+"  # classes that are joined while they are read
        got = ask([{"regex": many, "text": t} for t in ("k-K", "\u212a", "-j", "\u00e9")])
        self.assertEqual([g["accepts"] for g in got], [True, True, False, False])

    def test_counters_behind_shared_alternatives_are_let_loose_once(self):
        for counter in ('"a"{5}', "[a-z]{5,500}"):
            rules = "root ::= x60\nx0 ::= %s\n" % counter
            for i in range(1, 61):
                rules += 'x%d ::= x%d "%s" | x%d "%s"\n' % (i, i - 1, "db"[i % 2], i - 1, "ec"[i % 2])
            text = "aaaaa" + "bdcebe" * 10
            got = ask([{"gbnf": rules, "text": text}, {"gbnf": rules, "text": text[:-1] + "a"}], "--tokenizer", QWEN3)
            self.assertEqual([g["accepts"] for g in got], [True, False])

    def test_members_that_need_one_another_in_a_chain(self):
        n = 200
        keys = {"k%d" % i: {"type": "integer"} for i in range(n)}
        up = {"k%d" % i: ["k%d" % (i + 1)] for i in range(n - 1)}
        down = {"k%d" % i: ["k%d" % (i - 1)] for i in range(1, n)}
        items, want = [], []
        for needs in (up, down, {**up, "k%d" % (n - 1): ["k0"]}):
            for first, end in ((0, n), (0, 1), (n - 1, n), (5, n), (0, 20), (7, 9)):
                value = {"k%d" % i: i for i in range(first, end)}
                items.append({"json_schema": {"type": "object", "properties": keys, "dependentRequired": needs},
                              "text": json.dumps(value)})
                want.append(all(o in value for k in value for o in needs.get(k, ())))
        self.assertEqual([g.get("accepts") for g in ask(items)], want)
        self.assertEqual(want.count(True), 7)

    def test_numbers_at_the_ends_of_their_types_are_refused_or_read(self):
        most = 1.7976931348623157e308
        above = {"type": "number", "exclusiveMinimum": most}
        below = {"type": "number", "exclusiveMaximum": -most}
        got = ask([{"json_schema": above, "text": "1"}, {"json_schema": below, "text": "1"},
                   {"json_schema": {"type": "number", "exclusiveMaximum": most}, "text": "1"}])
        self.assertIn("no number is beyond", got[0]["error"])
        self.assertIn("no number is beyond", got[1]["error"])
        self.assertIs(got[2]["accepts"], True)
        for ids in ("2147483647", "99999999999", "2147483646-2147483647", "1,0-4094,2147483647"):
            got = ask([{"lark": "start: <[%s]>" % ids, "text": ""}])[0]
            self.assertTrue("error" in got or got["accepts"] is False, got)


def hostile():
    doubles = "".join("r%d ::= r%d r%d\n" % (i, i + 1, i + 1) for i in range(40)) + 'r40 ::= "a"\nroot ::= r0\n'
    links = "".join("r%d ::= r%d\n" % (i, i + 1) for i in range(20000))
    chain = "root ::= r0\n" + links + 'r20000 ::= "a" root | "b"\n'
    ahead = "".join("(?=.*%s)" % c for c in "abcdefghijklmnopqrst") + ".*"
    behind = "".join("(?!.*%s.{%d})" % (c, i) for i, c in enumerate("abcdefghijklmnopqrst")) + ".*"
    yield "gbnf", doubles, "a" * 50
    yield "gbnf", chain, "aab"
    yield "gbnf", 'root ::= root root root | "a" | ""', "a" * 200
    yield "gbnf", 'root ::= (("a"?){1,1000}){1,1000}', "a" * 200
    yield "gbnf", 'root ::= a{0,100000000} "b"\na ::= "a" | "c" a', "a" * 200
    yield "gbnf", 'root ::= (a | a a){0,1000} "b"\na ::= "a" | "(" root ")"', "a" * 100
    yield "gbnf", "root ::= [^x]* [^y]* [^z]* s\ns ::= \"s\" s | \"e\"", "abcdxyzsse"
    yield "gbnf", "root ::= " + " | ".join('"%d" x' % i for i in range(50000)) + '\nx ::= "(" x ")" | ""', "99(())"
    yield "gbnf", 'root ::= "' + "a" * 900000 + '"', "a" * 100
    for pattern, text in (("(a*)*b", "a" * 200), ("((a|b)*a(a|b){30})", "ab" * 100),
                          ("(((a?){100}){100}){100}", "a" * 500), ("(a{1000}){1000}", "a" * 500),
                          ("(x+x+)+y", "x" * 300),
                          ("[^a]{1,2000000000}", "b" * 500),
                          (ahead, "abcdefghijklmnopqrst"), (behind, "xyz"), ("(" * 190 + "a*" + ")*" * 190, "a" * 50),
                          ("(.*a.{40}|.*b.{40}|.*c.{40})", "abc" * 30), ("(\\w|\\d|\\s|.)*" * 50, "ab ..."),
                          ("a" * 1000000, "a"),
                          ("(?=(.*a.{20}b.*))(?=(.*b.{21}c.*))(?!.*c.{22}a.*).*", "abc" * 30)):
        yield "regex", pattern, text
    places = "(?:" * 12 + "a$" + "){8}" * 12
    yield "regex", places, "a"
    yield "json_schema", {"type": "string", "pattern": places}, '"a"'
    yield "lark", "start: /%s/" % places, "a"
    keys = {"k%d" % i: {"type": "integer"} for i in range(3000)}
    needs = {"k%d" % i: ["k%d" % (i - 1)] for i in range(1, 3000)}
    yield "json_schema", {"type": "object", "properties": keys, "dependentRequired": needs}, '{"k0": 1'
    yield "choice", ["y" * i for i in range(1000)], "y" * 5
    yield "lark", 'start: a\n%ignore /a*/\n%ignore /(a|b)*/\na: "a" a | "b"', "aaab"
    yield "lark", 'start: "a"~0..1000000000', "a" * 300
    yield "structural_tag", {"format": {"type": "any_text", "excludes": ["%d" % i for i in range(20000)]}}, "xyz"


if __name__ == "__main__":
    unittest.main()
