"""Random JSON Schemas, and whether texts are valid: for test_schema.py. Not a test itself.

    python3 random_schemas.py N SEED          N lines {"json_schema": ...}
    PYTHON random_schemas.py --validate       reads lines {"schema": ..., "text": ...}, writes what is invalid, then how
                                              many lines there were; PYTHON has jsonschema
"""
import ipaddress
import json
import random
import re
import sys
from fractions import Fraction

PATTERNS = ["^[a-z]{2,4}$", "a", "^x", "b$", "^(foo|bar)+$", "[0-9]", "^\\d{3}-\\d{2}$", "^[^a]*$", "\\.", "^.{1,3}$", 
            "^(?!ab)[a-c]+$", "^\\w+$", "^$", "a|^b", "\\\\", "\"", "^é+$", "^[\\t -~]+$"]
FORMATS = ["date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uri-reference",
           "uuid", "json-pointer", "uri-template", "regex", "int32", "unknown"]
ENFORCED = ["date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uri-reference",
            "uuid", "json-pointer"]
KEYS = ["a", "b", "c", "ab", "foo", "x/y", "é", "with \"quote", ""]
SCALARS = [None, True, False, 0, 1, -1, 2.5, 1.0, 10, "", "a", "foo", "x\ny", "é", "\\", 1e3, -0.5]


class Maker:
    def __init__(self, seed):
        self.r = random.Random(seed)

    def some(self, p):
        return self.r.random() < p

    def value(self, depth=2):
        n = self.r.random()
        if depth == 0 or n < 0.7:
            return self.r.choice(SCALARS)
        if n < 0.85:
            return [self.value(depth - 1) for _ in range(self.r.randrange(3))]
        return {self.r.choice(KEYS): self.value(depth - 1) for _ in range(self.r.randrange(3))}

    def numbers(self, s):
        low = self.r.choice([-3, 0, 1, 2.5, -0.25, 7, 456, -1000, 0.001])
        if self.some(0.4):
            s[self.r.choice(["minimum", "exclusiveMinimum"])] = low
        if self.some(0.4):
            s[self.r.choice(["maximum", "exclusiveMaximum"])] = low + self.r.choice([0, 1, 5, 0.75, 100, 12345])
        if self.some(0.25):
            s["multipleOf"] = self.r.choice([1, 2, 3, 7, 10, 0.5, 0.01, 2.5, 12, 97])

    def strings(self, s):
        if self.some(0.3):
            s["minLength"] = self.r.randrange(4)
        if self.some(0.3):
            s["maxLength"] = self.r.randrange(2, 8)
        if self.some(0.3):
            s["pattern"] = self.r.choice(PATTERNS)
        if self.some(0.2):
            s["format"] = self.r.choice(FORMATS)

    def arrays(self, s, depth):
        if self.some(0.3):
            s["prefixItems"] = [self.schema(depth - 1) for _ in range(self.r.randrange(1, 3))]
        if self.some(0.6):
            s["items"] = self.schema(depth - 1)
        if self.some(0.3):
            s["minItems"] = self.r.randrange(4)
        if self.some(0.4):
            s["maxItems"] = self.r.randrange(5)
        if self.some(0.2):
            s["contains"] = self.schema(depth - 1)
            if self.some(0.4):
                s["minContains"] = self.r.randrange(3)
            if self.some(0.4):
                s["maxContains"] = self.r.randrange(1, 4)
        if self.some(0.05):
            s["uniqueItems"] = True
        if self.some(0.07):
            s["unevaluatedItems"] = self.schema(depth - 1)

    def objects(self, s, depth):
        if self.some(0.7):
            s["properties"] = {k: self.schema(depth - 1) for k in self.r.sample(KEYS, self.r.randrange(1, 5))}
        if self.some(0.4):
            s["required"] = self.r.sample(KEYS, self.r.randrange(1, 3))
        if self.some(0.4):
            s["additionalProperties"] = self.schema(depth - 1) if self.some(0.5) else False
        if self.some(0.2):
            s["patternProperties"] = {p: self.schema(depth - 1) for p in self.r.sample(PATTERNS, 1 + self.some(0.4))}
        if self.some(0.1):
            s["propertyNames"] = self.schema(0)
        if self.some(0.15):
            s["minProperties"] = self.r.randrange(3)
        if self.some(0.2):
            s["maxProperties"] = self.r.randrange(1, 5)
        if self.some(0.1):
            s["dependentRequired"] = {self.r.choice(KEYS): self.r.sample(KEYS, 2)}
        if self.some(0.07):
            s["dependentSchemas"] = {self.r.choice(KEYS): self.schema(depth - 1)}
        if self.some(0.07):
            s["unevaluatedProperties"] = self.schema(depth - 1) if self.some(0.5) else False

    def joins(self, s, depth, types):
        def one():  # most of the same types, so that something is left
            return self.schema(depth if self.some(0.3) and depth < 3 else depth - 1, types if self.some(0.8) else None)
        for key, p in (("allOf", 0.12), ("anyOf", 0.15), ("oneOf", 0.15)):
            if self.some(p):
                s[key] = [one() for _ in range(self.r.randrange(1, 4))]
        if self.some(0.1):
            s["not"] = one()
        if self.some(0.07):
            s["if"] = one()
            for key in ("then", "else"):
                if self.some(0.7):
                    s[key] = one()

    def schema(self, depth, types=None):
        if self.some(0.06):
            return self.some(0.8)
        if self.some(0.05):
            return {"$ref": self.r.choice(["#", "#/$defs/one", "#/$defs/two", "#three"])}
        if self.some(0.06):
            return {"const": self.value()}
        if self.some(0.08):
            return {"enum": [self.value() for _ in range(self.r.randrange(1, 5))]}
        s, every = {}, ["null", "boolean", "integer", "number", "string", "array", "object"]
        picked = types or ([self.r.choice(every)] if self.some(0.7) else self.r.sample(every, 2))
        if depth <= 0 and not types:
            picked = [t for t in picked if t not in ("array", "object")] or ["string"]
        if self.some(0.9):
            s["type"] = picked if len(picked) > 1 else picked[0]
        if {"integer", "number"} & set(picked):
            self.numbers(s)
        if "string" in picked:
            self.strings(s)
        if depth > 0:
            if "array" in picked:
                self.arrays(s, depth)
            if "object" in picked:
                self.objects(s, depth)
            self.joins(s, depth, picked)
        return s

    def document(self):
        s = self.schema(self.r.choice([1, 2, 2, 3]))
        s = s if isinstance(s, dict) else {"allOf": [s]}
        if "#/$defs" in json.dumps(s) or "#three" in json.dumps(s):
            s["$defs"] = {"one": self.schema(1), "two": self.schema(1), "three": {"$anchor": "three", **self.plain()}}
        return s

    def plain(self):
        s = self.schema(1)
        return s if isinstance(s, dict) else {"type": "boolean"}


def schemas(n, seed):
    maker = Maker(seed)
    return [maker.document() for _ in range(n)]


class Exact(float):
    """A double that knows the decimals it was written with."""
    def __new__(cls, text):
        number = super().__new__(cls, text)
        number.text = text
        return number


def changed(maker, value):
    """A value like this one."""
    r = maker.r
    if isinstance(value, dict) and r.random() < 0.8:
        items = list(value.items())
        r.shuffle(items)
        value = dict(items)
        if items and r.random() < 0.4:
            del value[items[0][0]]
        elif items and r.random() < 0.7:
            value[items[0][0]] = changed(maker, items[0][1])
        else:
            value[r.choice(KEYS)] = maker.value(1)
        return value
    if isinstance(value, list) and value and r.random() < 0.8:
        i = r.randrange(len(value))
        return value[:i] + r.choice([[], [changed(maker, value[i])], [value[i], maker.value(1)]]) + value[i + 1:]
    if isinstance(value, str) and r.random() < 0.7:
        return r.choice([value + "a", value[1:], value[:-1], value.upper(), "x" + value])
    if isinstance(value, int) and not isinstance(value, bool) and r.random() < 0.7:
        return r.choice([value + 1, -value, 2 * value, value / 2 if value % 2 and abs(value) < 2**50 else value])
    return maker.value(1)


def exact_multiple(validator, step, instance, schema):
    """The package divides doubles, and finds 0.07 to be no multiple of 0.01."""
    import jsonschema
    if validator.is_type(instance, "number"):
        if Fraction(getattr(instance, "text", repr(instance))) % Fraction(repr(step)) != 0:
            yield jsonschema.ValidationError("%r is not a multiple of %r" % (instance, step))


LOCAL = re.compile(r"""[\w!#$%&'*+/=?^`{|}~-]+(\.[\w!#$%&'*+/=?^`{|}~-]+)*|"([ !#-[\]-~]|\\[ -~])*\"""", re.ASCII)


def is_domain(text):
    if text.startswith("["):
        try:
            return bool(ipaddress.ip_address(text[1:-1].removeprefix("IPv6:"))) and text.endswith("]")
        except ValueError:
            return False
    labels = text.split(".")
    return all(re.fullmatch("[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?", x) and x[2:4] != "--" for x in labels)


def checker():
    """Formats as gyre enforces them. RFC 3339 allows small letters and leap seconds, the package does not."""
    import jsonschema
    checks = jsonschema.Draft202012Validator.FORMAT_CHECKER.checkers
    chosen = jsonschema.FormatChecker(formats=())
    for name in ENFORCED:
        function = checks[name][0]
        if name in ("time", "date-time"):
            def function(text, strict=function):
                return not isinstance(text, str) or strict(text.upper().replace(":60", ":59"))
        if name in ("email", "hostname"):  # the package looks for an @ alone, and does not know of A-labels
            def function(text, strict=function, name=name):
                if not isinstance(text, str):
                    return True
                local, _, domain = text.rpartition("@") if name == "email" else ("", "", text)
                return strict(text) and (name == "hostname" or LOCAL.fullmatch(local) is not None) and is_domain(domain)
        chosen.checks(name, raises=Exception)(function)
    return chosen


def as_ecma(text):
    """The patterns of a schema's text, as Python must be told what ECMA-262 says."""
    no_end = "[^\\n\\r\\u2028\\u2029]{"
    for ecma, python in (("\\\\w", "[A-Za-z0-9_]"), ("\\\\d", "[0-9]"), ('$"', '\\\\Z"'), (".{", no_end)):
        text = text.replace(ecma, python)
    return text


def validate(lines):
    import jsonschema
    from jsonschema import validators
    kinds, formats, n = {}, checker(), 0
    for n, line in enumerate(lines, 1):
        case = json.loads(line)
        schema = json.loads(as_ecma(json.dumps(case["schema"])))
        default = validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        kind = kinds.setdefault(default, validators.extend(default, {"multipleOf": exact_multiple}))
        try:
            kind(schema, format_checker=formats).validate(json.loads(case["text"], parse_float=Exact))
        except RecursionError:
            continue  # a $ref that leads to itself, under an `if` that says nothing
        except (ValueError, jsonschema.ValidationError) as e:
            print(json.dumps({"schema": case["schema"], "text": case["text"], "why": str(e).splitlines()[0][:300]}))
    print(json.dumps(n))


if __name__ == "__main__":
    if sys.argv[1:] == ["--validate"]:
        validate(sys.stdin)
    else:
        for made in schemas(int(sys.argv[1]), int(sys.argv[2])):
            print(json.dumps({"json_schema": made}))
