"""JSON Schema: third-party schemas with texts, random schemas with random texts of them, and what is refused by name.

Not in make test-fast: it validates some 6,000 texts with another validator, which takes a while.

    PYTHONPATH=tests/cli/rig python3 tests/cli/api/test_schema.py --update

writes down anew what the JSON-Schema-Test-Suite comes to.
"""
import collections
import json
import os
import resource
import subprocess
import sys
import time
import unittest

import packages
import random_schemas

GYRE = os.path.abspath(os.environ.get("GYRE", "build/gyre"))
DATA = os.path.join(packages.ROOT, "build/data/json")
RESULTS = os.path.join(packages.ROOT, "tests/data/json/schema_suite_results.txt")
QWEN3 = os.path.join(packages.ROOT, "build/data/tokenizers/qwen3")
PACKAGE = "jsonschema[format-nongpl]==4.26.0"


def grammar(lines, *words):
    text = "".join(json.dumps(line) + "\n" for line in lines)
    p = subprocess.run([GYRE, "grammar", "--batch", *words], input=text, capture_output=True, text=True, timeout=500)
    out = [json.loads(line) for line in p.stdout.splitlines()]
    assert (p.returncode, len(out)) == (0, len(lines)), p.stderr[-300:]
    return out


def accepts(schema, *values):
    """What is said of each value, written as json.dumps does; or the sentence of a refusal."""
    out = grammar([{"json_schema": schema, "text": json.dumps(value)} for value in values])
    return out[0]["error"] if "error" in out[0] else [o["accepts"] for o in out]


def takes(schema, *texts):
    out = grammar([{"json_schema": schema, "text": text} for text in texts])
    return [o.get("accepts", o.get("error")) for o in out]


def suite():
    with open(os.path.join(DATA, "schema_suite.json")) as file:
        for name, groups in json.load(file).items():
            for group in groups:
                for test in group["tests"]:
                    yield name + ": " + group["description"], group["schema"], test


def suite_results():
    """By group that is not wholly right: refused, or how many valid texts are refused, how many invalid ones pass."""
    cases = list(suite())
    out = grammar([{"json_schema": schema, "text": json.dumps(test["data"], ensure_ascii=False)}
                   for _, schema, test in cases])
    results, counts = {}, collections.defaultdict(collections.Counter)
    for (name, _, test), answer in zip(cases, out):
        if "error" in answer:
            results[name] = "refused: " + answer["error"]
        elif answer["accepts"] != test["valid"]:
            counts[name]["strict" if test["valid"] else "wrong"] += 1
    for name, count in counts.items():
        results[name] = ", ".join("%s %d" % item for item in sorted(count.items()))
    return results


def written_results():
    with open(RESULTS) as file:
        return dict(line.rstrip("\n").split(" | ", 1) for line in file if not line.startswith("#"))


def invalid(python, cases):
    lines = "".join(json.dumps({"schema": schema, "text": text}) + "\n" for schema, text in cases)
    script = os.path.join(packages.ROOT, "tests/cli/rig/random_schemas.py")
    p = subprocess.run([python, script, "--validate"], input=lines, capture_output=True, text=True, timeout=500)
    out = [json.loads(line) for line in p.stdout.splitlines()]
    assert out and out[-1] == len(cases), p.stderr[-500:]
    return out[:-1]


class ThirdParties(unittest.TestCase):
    def test_the_test_suite_only_gets_better(self):
        results, before = suite_results(), written_results()
        self.assertEqual([name for name, r in results.items() if "wrong" in r], [])
        worse = {name: r for name, r in results.items() if before.get(name, "right").split(":")[0] != r.split(":")[0]}
        self.assertEqual(worse, {}, "these were better; --update writes down what is")

    def test_real_schemas_are_enforced_to_the_letter(self):
        names, lines, wanted = [], [], []
        with open(os.path.join(DATA, "schemas.jsonl")) as file:
            for line in file:
                case = json.loads(line)
                for valid, value in case["tests"]:
                    names.append(case["name"])
                    lines.append({"json_schema": case["schema"], "text": json.dumps(value, ensure_ascii=False)})
                    wanted.append(valid)
        out = grammar(lines)
        refused = {name: o["error"] for name, o in zip(names, out) if "error" in o}
        wrong = [(name, line["text"][:200], valid) for name, line, valid, o in zip(names, lines, wanted, out)
                 if "error" not in o and o["accepts"] != valid]
        self.assertEqual(wrong, [])
        self.assertLessEqual(len(refused), 6, refused)


class RandomTexts(unittest.TestCase):
    def test_every_text_of_a_random_schema_is_valid(self):
        seed = int(os.environ.get("GYRE_TEST_SEED") or time.time()) % 100000000
        n = int(os.environ.get("GYRE_TEST_SCHEMAS") or 2000)
        print("GYRE_TEST_SEED=%d" % seed)
        python = packages.python_with(self, PACKAGE)
        schemas = random_schemas.schemas(n, seed)
        out = grammar([{"json_schema": schema} for schema in schemas], "--sample", "3", "--seed", str(seed))
        self.assertEqual([(s, o) for s, o in zip(schemas, out) if "goes on behind" in o.get("error", "")], [])
        cases = [(schema, text) for schema, o in zip(schemas, out) for text in o.get("texts", [])]
        self.assertGreater(len(cases), 1.8 * n)
        self.assertEqual(invalid(python, cases), [])
        refused = [o["error"] for o in out if "error" in o and "no text" not in o["error"] and "$ref" not in o["error"]]
        self.assertLess(len(refused), 0.03 * n, collections.Counter(refused).most_common(5))

    def test_values_are_accepted_where_they_are_valid_and_only_there(self):
        seed = int(os.environ.get("GYRE_TEST_SEED") or time.time()) % 100000000
        print("GYRE_TEST_SEED=%d" % seed)
        python = packages.python_with(self, PACKAGE)
        maker, schemas, lines = random_schemas.Maker(seed + 1), random_schemas.schemas(400, seed), []
        out = grammar([{"json_schema": schema} for schema in schemas], "--sample", "3", "--seed", str(seed))
        for schema, o in zip(schemas, out):
            values = [json.loads(text) for text in o.get("texts", [])]
            values += [random_schemas.changed(maker, value) for value in values for _ in range(3)]
            if "texts" in o:
                lines += [{"json_schema": schema, "text": json.dumps(value, ensure_ascii=False)} for value in values]
        out = grammar(lines)
        wrong = invalid(python, [(line["json_schema"], line["text"]) for line in lines])
        wrong = {json.dumps([case["schema"], case["text"]]) for case in wrong}
        valid = [json.dumps([line["json_schema"], line["text"]]) not in wrong for line in lines]
        self.assertEqual([line for line, o, v in zip(lines, out, valid) if o["accepts"] and not v], [])
        strict = [line for line, o, v in zip(lines, out, valid) if v and not o["accepts"]]
        self.assertLess(len(strict), 0.02 * len(lines), strict[:5])  # 1.0 for an integer, many digits


class Keywords(unittest.TestCase):
    def both_ways(self, schema, right, wrong):
        """By bytes and by the masks of a real tokenizer."""
        for words in ((), ("--tokenizer", QWEN3)):
            out = grammar([{"json_schema": schema, "text": text} for text in right + wrong], *words)
            self.assertEqual([o.get("accepts", o) for o in out], [True] * len(right) + [False] * len(wrong), words)

    def test_items_that_differ(self):
        unique = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
        self.both_ways(unique, ['["a", "ab", "abc"]', '["a","b"]', '[]', '["", "\\""]'],
                       ['["a","a"]', '["a", "ab", "a"]', '["x","y","x"]', '["\\"","\\""]', '["a","\\u0061"]'])
        few = {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 3}, "uniqueItems": True,
               "minItems": 3}
        self.both_ways(few, ["[1,2,3]", "[3, 1, 2]"], ["[1,2,2]", "[1,2]", "[1,2,3,1]"])
        self.both_ways({"items": {"enum": ["a", "b", None]}, "uniqueItems": True, "type": "array"},
                       ['["b", null, "a"]'], ['["b", "b"]', '[null, null]'])
        self.assertIn("no text", accepts({**few, "minItems": 4}, []))

    def test_keys_that_differ_where_their_number_matters(self):
        self.both_ways({"type": "object", "minProperties": 2}, ['{"a":1,"b":2}', '{"a": 1, "b": 2, "c": 3}'],
                       ['{"a":1,"a":2}', '{"a":1}', '{"a":1,"\\u0061":2}', '{}'])
        self.both_ways({"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]},
                       ['{"a":null}', '{"b":1,"a":null,"b":2}'],
                       ['{"a":null,"a":null}', '{"a":1}', '{"a":null,"\\u0061":1}'])

    def test_branches_that_overlap_are_taken_apart(self):
        tree = {"$defs": {"node": {"oneOf": [
            {"type": "object", "properties": {side: {"$ref": "#/$defs/node"}}, "required": [side]}
            for side in ("left", "right")] + [{"type": "null"}]}}, "$ref": "#/$defs/node"}
        self.assertEqual(takes(tree, '{"left":{"right":null}}', '{"left":null,"right":null}', '{"left":{}}'),
                         [True, False, False])
        like = {"oneOf": [{"type": "object", "properties": {"name": {"type": "string"}, "a%d" % i: {"type": "integer"}},
                           "required": ["name", "a%d" % i]} for i in range(6)]}
        self.assertEqual(accepts(like, {"name": "x", "a1": 2}, {"name": "x", "a1": 2, "a2": "x"},
                                 {"name": "x", "a1": 2, "a2": 3}), [True, True, False])

    def test_many_branches_told_apart_by_a_constant(self):
        kinds = ["k%d" % i for i in range(200)]
        one = {"oneOf": [{"type": "object", "properties": {"kind": {"const": k}, "v": {"type": "integer"}},
                          "required": ["kind"]} for k in kinds]}
        self.assertEqual(accepts(one, {"v": 1, "kind": "k7"}, {"kind": "k200"}, {"kind": "k7", "v": "x"}),
                         [True, False, False])
        when = {"type": "object", "properties": {"kind": {"enum": kinds[:30]}}, "required": ["kind"], "allOf": [
            {"if": {"properties": {"kind": {"const": k}}}, "then": {"required": ["f" + k]}} for k in kinds[:30]]}
        self.assertEqual(accepts(when, {"kind": "k3", "fk3": 1}, {"kind": "k3", "fk4": 1}), [True, False])

    def test_texts_of_random_schemas_have_masks(self):
        seed = int(os.environ.get("GYRE_TEST_SEED") or time.time()) % 100000000
        print("GYRE_TEST_SEED=%d" % seed)
        schemas = random_schemas.schemas(300, seed)
        out = grammar([{"json_schema": schema} for schema in schemas], "--sample", "2", "--seed", str(seed))
        lines = [{"json_schema": schema, "text": text} for schema, o in zip(schemas, out)
                 for text in o.get("texts", [])]
        out = grammar(lines, "--tokenizer", QWEN3)
        self.assertEqual([(line, o) for line, o in zip(lines, out) if o.get("accepts") is not True], [])

    def test_numbers(self):
        self.assertEqual(accepts({"multipleOf": 0.01, "type": "number"}, 0.07, 19.99, 12, 0.001, 1.005),
                         [True] * 3 + [False] * 2)
        self.assertEqual(accepts({"type": "integer", "multipleOf": 97}, 0, 97, -194, 98, 9797),
                         [True, True, True, False, True])
        self.assertEqual(takes({"allOf": [{"multipleOf": 0.5}, {"multipleOf": 0.2}]}, "1", "1.0", "-3", "0.5", "0.2"),
                         [True] * 3 + [False] * 2)
        both = {"type": "integer", "multipleOf": 89, "allOf": [{"multipleOf": 0.41}]}
        self.assertEqual(takes(both, "3649", "89", "0"),
                         [True, False, True])
        below = {"type": "number", "exclusiveMaximum": 5}
        self.assertEqual(takes(below, "4.9", "4.99999999999999999999", "5", "-1e300"),
                         [True, False, False, True])
        between = {"type": "integer", "minimum": -5, "maximum": 456}
        self.assertEqual(takes(between, "-6", "-5", "0", "456", "457", "1000"),
                         [False, True, True, True, False, False])

    def test_what_is_not_enforced_is_refused_by_name(self):
        for schema, name in (
            ({"$ref": "http://example.com/other.json"}, "$ref"), ({"$ref": "#/nowhere"}, "$ref"),
            ({"allOf": [{"$ref": "#"}]}, "$ref"), ({"type": "array", "uniqueItems": True}, "uniqueItems"),
            ({"pattern": "(a)\\1"}, "pattern"), ({"pattern": "^[[:alpha:]]$"}, "pattern"),
            ({"type": "int"}, "type"), ({"required": True}, "required"),
            ({"properties": []}, "properties"), ({"items": 5}, "a schema"), ({"multipleOf": 0}, "multipleOf"),
            ({"multipleOf": 1.23456789012}, "multipleOf"), ({"multipleOf": 7919}, "multipleOf"),
            ({"minimum": "1"}, "minimum"),
            ({"minLength": -1}, "minLength"), ({"enum": 1}, "enum"), (False, "no text"), ({"enum": []}, "no text"),
            ({"$schema": "http://json-schema.org/draft-03/schema#"}, "$schema"),
            ({"not": {"type": "array", "items": {}, "uniqueItems": True}}, "uniqueItems"),
            ({"contains": {"type": "null"}, "minContains": 3000, "maxItems": 3000}, "contains")):
            answer = accepts(schema, None)
            self.assertIsInstance(answer, str, schema)
            self.assertIn(name, answer, schema)

    def test_a_refusal_says_where(self):
        items = {"items": {"pattern": "(a)\\1"}}
        self.assertIn("at #/properties/a~1b/items", accepts({"properties": {"a/b": items}}, 1))
        self.assertIn("at #/$defs/x", accepts({"$defs": {"x": {"type": "int"}}, "items": {"$ref": "#/$defs/x"}}, 1))

    def test_hostile_schemas_are_answered_in_a_second(self):
        one = {"properties": {"a": {"type": "string"}, "b": {"minimum": 3}}}
        deep = {}
        for _ in range(400):
            deep = {"type": "array", "items": deep}
        wide = {"anyOf": [{"properties": {"k%d" % i: {"const": i}}, "required": ["k%d" % i]} for i in range(1500)]}
        boxes = {"allOf": [{"anyOf": [{"required": ["a%d" % i]}, {"required": ["b%d" % i]}]} for i in range(40)]}
        for schema in (
            deep, wide, boxes, {"oneOf": [{**one, "maxProperties": i} for i in range(60)]},
            {"not": {"oneOf": [one] * 50}}, {"enum": ["%d" % (i * 7919) for i in range(90000)]},
            {"enum": [[i] for i in range(5000)]}, {"pattern": "^(a|a)*(b|ab)*(c{1000}){1000}$"},
            {"patternProperties": {"a{%d}" % i: {"minimum": i} for i in range(40)}},
            {"properties": {str(i): {} for i in range(20000)}, "required": [str(i) for i in range(20000)]},
            {"dependentSchemas": {str(i): {"required": [str(i + 1)]} for i in range(30)}},
            {"minLength": 2 ** 31 - 1},
            {"prefixItems": [{"minimum": i} for i in range(5000)], "contains": {"type": "null"}, "maxContains": 3},
            {"type": "array", "minItems": 10 ** 9},
            {"$defs": {str(i): {"allOf": [{"$ref": "#/$defs/%d" % (i + 1)}] * 2} for i in range(200)},
             "$ref": "#/$defs/0"}):
            begin = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
            grammar([{"json_schema": schema, "text": "{}"}])
            used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - begin
            self.assertLess(used, 1.5, json.dumps(schema)[:100])  # 1 s with some room for slow processors


def update():
    with open(RESULTS, "w") as file:
        file.write("# Groups of the JSON-Schema-Test-Suite that are not wholly right: test_schema.py --update\n"
                   "# writes them.\n"
                   "# strict N: so many valid texts cannot be written; wrong N: so many invalid ones can.\n")
        for name, result in sorted(suite_results().items()):
            file.write("%s | %s\n" % (name, result))


if __name__ == "__main__":
    update() if sys.argv[1:] == ["--update"] else unittest.main()
