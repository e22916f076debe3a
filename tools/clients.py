#!/usr/bin/env python3
"""Runs clients of OpenAI's and Anthropic's APIs, as PyPI has them, against one gyre serve; prints a table of passes.

usage: tools/clients.py [--gyre build/gyre] [--model models/story] [--write docs/clients.md] [NAME ...]

A client is a file tools/clients/NAME.py:

    '''What it is, in a line: the table's second column.'''
    PACKAGES = ["openai==3.52.0"]              # of PyPI, pinned; the first one's version is shown

    def a_claim_as_a_name(server):             # each function of one argument, server, is a check, but for _helpers
        assert ...

Checks run in a virtual environment of the client's own (build/clients/NAME, made when PACKAGES change), in the order of
the file, in a scratch folder. server.url is http://127.0.0.1:PORT, server.v1 that with /v1, server.model the name that
requests use, server.folder the model's folder, server.context its context in tokens. `with server.script(TEXT, ...) as
v1` gives the address of one whose model says those texts, one a request, and whose template knows tools. A check fails
by an exception; server.skip("why") says that it does not apply. The server listens on a port of loopback that the
system chooses; nothing but PyPI is reached, and no model or data set is fetched.

Ends with 1 where a check failed.
"""

import argparse
import ast
import contextlib
import glob
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HERE = os.path.join(ROOT, "tools", "clients")
CONTEXT = 1024
# One that knows tools.
TEMPLATE = os.path.join(ROOT, "tests", "data", "chat", "templates", "Qwen-Qwen3-0.6B.jinja")
SECONDS = 900  # a client's checks together


def read_client(path):
    """(summary, packages, names of the checks), without importing what only its environment has."""
    with open(path) as f:
        tree = ast.parse(f.read(), path)
    packages = [
        ast.literal_eval(n.value)
        for n in tree.body
        if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "PACKAGES"
    ][0]
    checks = [
        n.name
        for n in tree.body
        if isinstance(n, ast.FunctionDef) and n.name[0] != "_" and n.args.args and n.args.args[0].arg == "server"
    ]
    return ast.get_docstring(tree).split("\n")[0].rstrip("."), packages, checks


def environment(name, packages):
    """The interpreter of the client's virtual environment."""
    place = os.path.join(ROOT, "build", "clients", name)
    python, mark = os.path.join(place, "bin", "python"), os.path.join(
        place, "ready-" + hashlib.sha256(repr(packages).encode()).hexdigest()[:16]
    )
    if not os.path.exists(mark):
        print("clients: installing", *packages, file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", place], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *packages], check=True)
        open(mark, "w").close()
    return python


@contextlib.contextmanager
def serve(gyre, model, name, *flags):
    """The address of a server that runs inside the block."""
    command = [
        gyre,
        "serve",
        model,
        "--port",
        "0",
        "--served-model-name",
        name,
        "--max-model-len",
        str(CONTEXT),
        "--disable-log-requests",
        *flags,
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    log = []
    try:
        for line in process.stderr:
            log.append(line)
            found = re.search(r"listening on (http://[^ ]+:\d+)", line)
            if found:
                break
        else:
            sys.exit("the server did not start: " + "".join(log))
        threading.Thread(target=lambda: log.extend(process.stderr), daemon=True).start()
        yield found.group(1)
    finally:
        process.terminate()
        if process.wait(timeout=60) != 0:
            sys.exit("the server ended with %d: %s" % (process.returncode, "".join(log[-20:])))


def run_client(path, url, tools_url, model, folder):
    """{"name", "summary", "version", "results": [(check, outcome, why)]}, outcome passed, failed or skipped."""
    name = os.path.splitext(os.path.basename(path))[0]
    summary, packages, checks = read_client(path)
    client = {
        "name": name,
        "summary": summary,
        "package": re.split("[=<>~\\[]", packages[0])[0],
        "version": "",
        "results": [],
    }
    try:
        python = environment(name, packages)
    except subprocess.CalledProcessError as e:
        client["results"] = [(check, "failed", "the packages cannot be installed: %s" % e) for check in checks]
        return client
    clean = {k: v for k, v in os.environ.items() if not k.endswith("_API_KEY")}
    with tempfile.TemporaryDirectory() as scratch:
        env = dict(
            clean,
            HOME=scratch,
            GYRE_URL=url,
            GYRE_TOOLS_URL=tools_url,
            GYRE_MODEL=model,
            GYRE_FOLDER=folder,
            GYRE_CONTEXT=str(CONTEXT),
            HF_HUB_OFFLINE="1",
            DO_NOT_TRACK="1",
            PYTHONWARNINGS="ignore",
        )
        report = os.path.join(scratch, "report.jsonl")
        try:
            r = subprocess.run(
                [python, os.path.join(HERE, "run", "checks.py"), path, report],
                cwd=scratch,
                env=env,
                capture_output=True,
                text=True,
                timeout=SECONDS,
            )
            said = r.stdout + r.stderr
        except subprocess.TimeoutExpired:
            said = "the checks took longer than %d s" % SECONDS
        lines = []
        if os.path.exists(report):
            with open(report) as f:
                lines = [json.loads(line) for line in f]
    done = {line["check"]: (line["outcome"], line["why"]) for line in lines if "check" in line}
    client["version"] = next((line["version"] for line in lines if "version" in line), "")
    client["results"] = [(check, *done.get(check, ("failed", said[-2000:]))) for check in checks]
    return client


def count(client, outcome):
    return sum(o == outcome for _, o, _ in client["results"])


def table(clients):
    rows = ["| client | what | version | passed | failed | not applicable |", "| --- | --- | --- | --- | --- | --- |"]
    for c in clients:
        rows.append(
            "| %s | %s | %s %s | %d | %d | %d |"
            % (
                c["name"],
                c["summary"],
                c["package"],
                c["version"],
                count(c, "passed"),
                count(c, "failed"),
                count(c, "skipped"),
            )
        )
    reasons = [
        "- %s, %s: %s (%s)" % (c["name"], check.replace("_", " "), why.strip().split("\n")[-1][:300], outcome)
        for c in clients
        for check, outcome, why in c["results"]
        if outcome != "passed"
    ]
    return "\n".join(rows + ([""] + reasons if reasons else [])) + "\n"


def write_between_marks(path, text):
    """Replaces what stands between the two comments."""
    begin, end = "<!-- tools/clients.py writes from here -->\n", "<!-- to here -->"
    with open(path) as f:
        before, rest = f.read().split(begin)
    with open(path, "w") as f:
        f.write(before + begin + text + end + rest.split(end)[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gyre", default=os.path.join(ROOT, "build", "gyre"))
    parser.add_argument("--model", default=os.path.join(ROOT, "models", "story"))
    parser.add_argument("--write", metavar="FILE")
    parser.add_argument("names", nargs="*", metavar="NAME")
    args = parser.parse_args()
    paths = sorted(glob.glob(os.path.join(HERE, "*.py")))
    known = [os.path.splitext(os.path.basename(p))[0] for p in paths]
    for name in args.names:
        if name not in known:
            sys.exit("there is no client %s; there are %s" % (name, ", ".join(known)))
    clients = []
    tools = serve(args.gyre, args.model, "story", "--chat-template", TEMPLATE)
    with serve(args.gyre, args.model, "story") as url, tools as tools_url:
        for name, path in zip(known, paths):
            if args.names and name not in args.names:
                continue
            clients.append(run_client(path, url, tools_url, "story", os.path.abspath(args.model)))
            for check, outcome, why in clients[-1]["results"]:
                print("[%7s] %s: %s" % (outcome, name, check.replace("_", " ")), flush=True)
                if outcome == "failed":
                    print("    " + why.rstrip().replace("\n", "\n    "), flush=True)
    text = table(clients)
    print(text)
    if args.write:
        write_between_marks(args.write, text)
    return 1 if any(count(c, "failed") for c in clients) else 0


if __name__ == "__main__":
    sys.exit(main())
