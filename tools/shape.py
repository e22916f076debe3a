#!/usr/bin/env python3
"""Checks the shape of the source: how long files, functions and lines are, and how many files a folder has.

usage: shape.py [ROOT]

The limits are LIMITS. What breaks one today is named in EXCEPTIONS, with the reason. The list may only shrink: an
exception that is not needed, or is of a file that is gone, is an error too.
A row of a table of data may be wide: it begins with a bracket and ends with one or with a comma, in a macro too.
"""
import ast, os, re, sys

LIMITS = {"header": 250, "source": 500, "function": 80, "folder": 30, "wide": 120}
FOLDERS = ("src", "include", "tests", "bench", "bindings", "tools", "deploy")
DATA = ("tests/data", "tests/fuzz/corpus", "tests/models", "tests/models_random", "tools/fixtures")  # no source
TABLES = ("ops.def", "gyre.h")  # manuals, read from top to bottom
EXCEPTIONS = {  # rule: {what: why}
    "header": {
        "tests/ptx/arithmetic.def": "a table of instructions, read from top to bottom; a line names its handlers",
    },
    "function": {
        "src/backend/cuda/rows/norm.cu:add_norm_rows": "cut in two ways, one of its 70 kernels was other code",
    },
}
HEADERS, SOURCES = (".h", ".cuh", ".def"), (".c", ".cu")
TEXTS = HEADERS + SOURCES + (".py", ".sh", ".js", ".mk")
PARENS = r"\([^;{}()]*\)"
HEAD = r"(?:[^;{}=()]|%s)*?(\w+)\((?:[^;{}()]|%s)*\)[^;{}()=]*\{\n" % (PARENS, PARENS)
C_FUNCTION = re.compile(r"^(?![\s#}/])" + HEAD + r".*?^\}", re.M | re.S)
CPP_METHOD = re.compile(r"^    (?!if|for|while|switch|else|do\b|[\s#}/])" + HEAD + r".*?^    \}", re.M | re.S)
JS_FUNCTION = re.compile(r"^(?:export )?(?:async )?function (\w+)\(.*?^\}", re.M | re.S)
PATTERNS = {".js": [JS_FUNCTION], ".c": [C_FUNCTION], ".h": [C_FUNCTION], ".cu": [C_FUNCTION, CPP_METHOD],
            ".cuh": [C_FUNCTION, CPP_METHOD]}
TABLE_ROW = re.compile(r"^\s*(\{|\[\w+\]\s*=\s*|\(\"|\[\").*[,}\])]\s*(//.*|/\*.*\*/|#.*|\\)?$")


def files_of(root):
    """{folder: names} of the project's own files, paths below root."""
    found = {}
    for top in FOLDERS:
        for folder, below, names in os.walk(os.path.join(root, top)):
            at = os.path.relpath(folder, root)
            below[:] = [b for b in below if not b.startswith((".", "__pycache__", "build"))
                        and os.path.join(at, b) not in DATA]
            found[at] = sorted(n for n in names if not n.startswith(".") and not n.endswith(".pyc"))
    return found


def functions_of(path, text):
    """(name, lines) of each function in a file."""
    if text.count("\n") < LIMITS["function"]:
        return
    todo = list(ast.parse(text).body) if path.endswith(".py") else []
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, node.end_lineno - node.lineno + 1
        todo += getattr(node, "body", []) + getattr(node, "orelse", [])
    for pattern in PATTERNS.get(os.path.splitext(path)[1], ()):
        for match in pattern.finditer(text):
            yield match.group(1), match.group(0).count("\n") + 1


def is_wide(line):
    return len(line) > LIMITS["wide"] and not TABLE_ROW.match(line)


def breaks_of(root):
    """{(rule, what): how much}, where what is a path, or path:function."""
    breaks = {}

    def note(rule, what, n):
        if n > LIMITS[rule]:
            breaks[rule, what] = max(n, breaks.get((rule, what), 0))

    for folder, names in files_of(root).items():
        note("folder", folder, len(names))
        for name in names:
            path = os.path.join(folder, name)
            if not name.endswith(TEXTS):
                continue
            with open(os.path.join(root, path), encoding="utf-8") as f:
                text = f.read()
            lines = text.expandtabs(8).splitlines()
            if name.endswith(HEADERS + SOURCES) and name not in TABLES:
                note("header" if name.endswith(HEADERS) else "source", path, len(lines))
            for function, n in functions_of(path, text):
                note("function", path + ":" + function, n)
            if any(is_wide(line) for line in lines):
                breaks["wide", path] = max(len(line) for line in lines if is_wide(line))
    return breaks


SAYS = {"header": "has %d lines, a header at most %d", "source": "has %d lines, a source file at most %d",
        "function": "has %d lines, a function at most %d", "folder": "has %d files, a folder at most %d",
        "wide": "has a line of %d columns, of at most %d"}


def faults(breaks, exceptions):
    """Sentences about what breaks a rule without an exception, and about exceptions without need."""
    allowed = {(rule, what) for rule, whats in exceptions.items() for what in whats}
    found = ["%s %s" % (what, SAYS[rule] % (n, LIMITS[rule]))
             for (rule, what), n in breaks.items() if (rule, what) not in allowed]
    found += ["%s is within the limit (%s), or gone: take it off EXCEPTIONS" % (what, rule)
              for rule, what in allowed - set(breaks)]
    return sorted(found)


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    print("shape: exceptions left: " + ", ".join("%d %s" % (len(whats), rule) for rule, whats in EXCEPTIONS.items()))
    wrong = faults(breaks_of(root), EXCEPTIONS)
    for sentence in wrong:
        print("shape: " + sentence, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
