#!/usr/bin/env python3
"""Runs the server tests of other engines, unchanged, against gyre serve, and prints a table of what passed and why not.

usage: tools/suites.py llama.cpp|vllm SOURCE [--gyre build/gyre] [--model models/story] [--write docs/clients.md]

SOURCE is the unpacked source package that holds the tests: llama-cpp-python's (vendor/llama.cpp/tools/server/tests) or
vllm's (tests/entrypoints). They are copied to a scratch folder and run there by pytest in an environment below
build/suites; nothing of them comes into the repository. What stands between them and gyre is in tools/suites: what
takes the other server's flags, and NAME.txt with the files that are run and reasons.

A test that fails is "not applicable" where what it wants is none of gyre's: an endpoint, a field or a flag that gyre
refuses by name, or what NAME.txt says. Everything else that fails, fails. Ends with 1 if anything does.
"""
import argparse
import collections
import fnmatch
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HERE = os.path.join(ROOT, "tools", "suites")
SECONDS = 3600


class Suite:
    """NAME.txt: `folder PATH` of the source, `into PATH` of the scratch folder, `cwd PATH` to run in, `also PATH PATH`
    besides, `support FILE PATH` of ours, `plugin NAME` of pytest, `package NAME==VERSION`, `run FILE`, and `PATTERN
    REASON` for tests that are not applicable."""
    def __init__(self, name):
        self.name, self.folder, self.into, self.cwd, self.also = name, "", "tests", None, []
        self.packages, self.plugins, self.files, self.support, self.reasons = [], [], [], [], []
        with open(os.path.join(HERE, name + ".txt")) as f:
            for line in f:
                word, _, rest = line.strip().partition(" ")
                if word == "folder":
                    self.folder = rest.strip()
                elif word == "into":
                    self.into = rest.strip()
                elif word == "cwd":
                    self.cwd = rest.strip()
                elif word == "also":
                    self.also.append(rest.split())
                elif word == "support":
                    self.support.append(rest.split())
                elif word == "plugin":
                    self.plugins.append(rest.strip())
                elif word == "package":
                    self.packages.append(rest.strip())
                elif word == "run":
                    self.files += rest.split()
                elif word and not word.startswith("#"):
                    self.reasons.append((word, rest.strip()))

    def reason(self, test):
        return next((why for pattern, why in self.reasons if fnmatch.fnmatchcase(test, pattern)), None)


def environment(suite):
    place = os.path.join(ROOT, "build", "suites", suite.name)
    python, mark = os.path.join(place, "bin", "python"), os.path.join(place, "ready")
    wanted = "\n".join(suite.packages)
    if not os.path.exists(mark) or open(mark).read() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", place], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *suite.packages], check=True)
        with open(mark, "w") as f:
            f.write(wanted)
    return python


def prepare_model(model, folder):
    """The model under another context: tests of others want more than the 1,024 tokens of models/story."""
    shutil.copytree(model, folder)
    for name, field in (("config.json", "max_position_embeddings"), ("tokenizer_config.json", "model_max_length")):
        path = os.path.join(folder, name)
        with open(path) as f:
            config = json.load(f)
        with open(path, "w") as f:
            json.dump(dict(config, **{field: 2048}), f)


def free_port():
    """A port that nobody listens on, for suites that choose theirs."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run(suite, source, python, args, scratch):
    """The report of pytest, as XML."""
    tests, model = os.path.join(scratch, suite.into), os.path.join(scratch, "model")
    shutil.copytree(os.path.join(source, suite.folder), tests, symlinks=False)
    for name, place in suite.support:
        shutil.copy(os.path.join(HERE, name), os.path.join(scratch, place))
    for name, place in suite.also:
        shutil.copytree(os.path.join(source, name), os.path.join(scratch, place))
    cwd = os.path.join(scratch, suite.into if suite.cwd is None else suite.cwd)
    prepare_model(args.model, model)
    report = os.path.join(scratch, "report.xml")
    env = dict(os.environ, GYRE=os.path.abspath(args.gyre), GYRE_MODEL=model, HF_HUB_OFFLINE="1",
               PYTHONPATH=HERE + os.pathsep + scratch, LLAMA_SERVER_BIN_PATH=os.path.join(HERE, "llama_server.py"),
               PORT=str(free_port()), HOME=scratch, TMPDIR=scratch)
    command = [
        python, "-m", "pytest", "-v", "--tb=short", "-p", "heard", "-p", "no:cacheprovider",
        "--continue-on-collection-errors", "--junitxml", report, "-o", "junit_logging=all", "-o",
        "junit_log_passing_tests=false"
    ]
    command += [word for plugin in suite.plugins for word in ("-p", plugin)] + (["-k", args.k] if args.k else [])
    with open(os.path.join(scratch, "output"), "w") as out:
        files = [os.path.relpath(os.path.join(tests, f), cwd) for f in suite.files]
        subprocess.run(command + files, cwd=cwd, env=env, stdout=out, stderr=subprocess.STDOUT, timeout=SECONDS)
    if not os.path.exists(report):
        with open(os.path.join(scratch, "output")) as f:
            sys.exit(f.read()[-4000:])
    return xml.etree.ElementTree.parse(report)


def run_in_scratch(suite, args):
    python = environment(suite)
    with tempfile.TemporaryDirectory() as scratch:
        try:
            return run(suite, args.source, python, args, scratch)
        finally:
            if args.keep:
                shutil.copytree(scratch, args.keep, dirs_exist_ok=True, ignore_dangling_symlinks=True)


# What a server says of a template of the suite's that Jinja, or the model it is given to, has no answer for.
REFUSALS = (
    ("the template shows no calls", "a template without tools, for which llama.cpp writes a prompt of its own"),
    ("'bos_token' is undefined", "a template that wants a bos_token, which models/story does not have"),
    ("is not JSON serializable", "a template that Jinja refuses too"),
    ("maximum context length", "a prompt of more tokens than the context, by the tokenizer that is here"),
)


def reason_heard(case, text):
    """Why a test is none of gyre's, from what the server or the launcher said; None: it is."""
    found = re.search(r"^(?:E +RuntimeError: )?not applicable: ([^\n\\]+?)(?:-----.*)?$", text, re.M)
    if found:
        return found.group(1)
    refusal = "(?:does not support it|is not supported|does not call them)"
    found = re.search(r"(?:- |')([\w.\[\]]+): (?:[^\n]*)" + refusal, text)
    if found:
        return "gyre does not take " + found.group(1)
    for words, why in REFUSALS:
        if words in text:
            return why
    properties = [p.get("value") for p in case.iter("property") if p.get("name") == "heard"]
    for answer in json.loads(properties[-1]) if properties else []:
        if "there is nothing at this path" in answer["text"]:
            return "gyre has no " + answer["path"]
        for words, why in REFUSALS:
            if words in answer["text"]:
                return why
        found = re.search(
            r'"message": ?"([\w.\[\]]+): (?:[^"]*)(?:does not support it|is not supported|does not call them)',
            answer["text"])
        if found:
            return "gyre does not take " + re.sub(r"\[\d+\]", "[]", found.group(1))
    return None


def judge(suite, report):
    """[(file, test, outcome, why)]"""
    results = []
    for case in report.iter("testcase"):
        name = "%s::%s" % (case.get("classname").replace(".", "/") + ".py", case.get("name"))
        fault = case.find("failure") if case.find("failure") is not None else case.find("error")
        file = name.split("::")[0]
        if case.find("skipped") is not None:
            results.append((file, name, "not applicable",
                            "skipped by itself: " + (case.find("skipped").get("message") or "").split(":")[0][:60]))
        elif fault is None:
            results.append((file, name, "passed", ""))
        else:
            text = "\n".join([fault.text or ""] + [e.text or "" for e in case if e.tag.startswith("system")])
            why = reason_heard(case, text) or suite.reason(name)
            results.append((file, name, "not applicable" if why else "failed", why or
                            (fault.get("message") or "").split("\n")[0][:200]))
    return results


def table(suite, results):
    counts, reasons = collections.defaultdict(collections.Counter), collections.defaultdict(collections.Counter)
    for file, _, outcome, why in results:
        counts[file][outcome] += 1
        if outcome == "not applicable":
            reasons[file][why] += 1
    rows = ["| %s | passed | failed | not applicable, and why |" % suite.name, "| --- | --- | --- | --- |"]
    for file, n in sorted(counts.items()):
        why = "; ".join("%d %s" % (k, text) for text, k in reasons[file].most_common())
        rows.append("| %s | %d | %d | %s |" % (file, n["passed"], n["failed"], why or "0"))
    total = sum(counts.values(), collections.Counter())
    rows.append("| all | %d | %d | %d |" % (total["passed"], total["failed"], total["not applicable"]))
    failed = ["- %s: %s" % (name, why) for _, name, outcome, why in results if outcome == "failed"]
    return "\n".join(rows + ([""] + failed if failed else [])) + "\n"


def write_between_marks(path, name, text):
    begin, end = "<!-- tools/suites.py %s writes from here -->\n" % name, "<!-- %s ends here -->" % name
    with open(path) as f:
        before, rest = f.read().split(begin)
    with open(path, "w") as f:
        f.write(before + begin + text + end + rest.split(end)[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=["llama.cpp", "vllm"])
    parser.add_argument("source")
    parser.add_argument("--gyre", default=os.path.join(ROOT, "build", "gyre"))
    parser.add_argument("--model", default=os.path.join(ROOT, "models", "story"))
    parser.add_argument("--write", metavar="FILE")
    parser.add_argument("--keep", metavar="FOLDER", help="leave the scratch folder there")
    parser.add_argument(
        "--report", metavar="FILE", action="append",
        help="judge that report of before, and run nothing; the files of a later one replace an earlier's")
    parser.add_argument("--only", metavar="WORD", default="", help="run the files that have it in their names")
    parser.add_argument("-k", metavar="WORDS", help="of pytest")
    args = parser.parse_args()
    suite = Suite(args.suite)
    suite.files = [f for f in suite.files if args.only in f]
    results = []
    for report in [xml.etree.ElementTree.parse(f) for f in args.report or []] or [run_in_scratch(suite, args)]:
        new = judge(suite, report)
        results = [r for r in results if r[0] not in {file for file, *_ in new}] + new
    results = [r for r in results if any(f in r[0] for f in suite.files)]
    text = table(suite, results)
    print(text)
    if args.write:
        write_between_marks(args.write, suite.name, text)
    return 1 if any(outcome == "failed" for _, _, outcome, _ in results) else 0


if __name__ == "__main__":
    sys.exit(main())
