"""JSON Schema: third-party schemas with texts, random schemas with random texts of them, and what is refused by name.

Not in make test-fast: it validates some 6,000 texts with another validator, which takes a while.

    python3 tests/cli/test_schema.py --update     writes down anew what the JSON-Schema-Test-Suite comes to
"""
import collections
import json
import os
import subprocess
import sys
import time
import unittest

import packages
import random_schemas

GYRE = os.path.abspath(os.environ.get("GYRE", "build/gyre"))
DATA = os.path.join(packages.ROOT, "build/data/json")
RESULTS = os.path.join(packages.ROOT, "tests/data/json/schema_suite_results.txt")
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
    script = os.path.join(packages.ROOT, "tests/cli/random_schemas.py")
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


def update():
    with open(RESULTS, "w") as file:
        file.write("# Groups of the JSON-Schema-Test-Suite that are not wholly right: test_schema.py --update\n"
                   "# writes them.\n"
                   "# strict N: so many valid texts cannot be written; wrong N: so many invalid ones can.\n")
        for name, result in sorted(suite_results().items()):
            file.write("%s | %s\n" % (name, result))


if __name__ == "__main__":
    update() if sys.argv[1:] == ["--update"] else unittest.main()
