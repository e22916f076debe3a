#!/usr/bin/env python3
"""Runs tests side by side, each within a limit of processor time, and says in one line how each went.

    BUILD=... RESULTS=... TEST_TIMEOUT=SECONDS tests/side_by_side.py JOBS NAME...    (test_spec, test_serve.py)

Those that took longest in the last run begin first ($BUILD/seconds), so that none runs alone at the end; before them,
in the order given, those of which nothing is known.

What a test printed is in $RESULTS/NAME.out, its counts (passed, failed, skipped, its name and its seconds on the clock)
in $RESULTS/NAME.count. Each has a process that watches it (limit.py). Watchers and Python modules are forks of this
process, which has loaded what most modules import: an interpreter of its own for each took a fifth of make test-fast.
Test programs run behind the command of $RUN_WITH (tests/arm.sh).
"""
import gc
import http.client  # noqa: F401
import json  # noqa: F401
import os
import re
import runpy
import signal
import ssl  # noqa: F401
import subprocess  # noqa: F401
import sys
import tempfile  # noqa: F401
import time
import unittest  # noqa: F401

import limit

BUILD, RESULTS = os.environ["BUILD"], os.environ["RESULTS"]
SECONDS = os.path.join(BUILD, "seconds" + (".brief" if os.environ.get("GYRE_TEST_BRIEF") else ""))
CLI = os.path.join(os.path.dirname(os.path.abspath(__file__)), "cli")


def begin_module(name):
    """Runs a module below tests/cli in a fork of its own; the child ends as an interpreter does."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ["GYRE"], os.environ["PYTHONDONTWRITEBYTECODE"] = os.path.join(BUILD, "gyre"), "1"
    sys.dont_write_bytecode = True
    sys.argv, sys.path[0] = [os.path.join(CLI, "run_module.py"), name], CLI
    runpy.run_path(sys.argv[0], run_name="__main__")
    sys.exit(0)


def begin(name):
    if name.endswith(".py"):
        return begin_module(name)
    return limit.begin(os.environ.get("RUN_WITH", "").split() + [os.path.join(BUILD, "tests", name)])


def count(text):
    """(passed, failed, skipped) by cmocka's words, which run_module.py uses too; its summary repeats what failed."""
    return (len(re.findall(rb"^\[       OK \]", text, re.M)),
            len(set(re.findall(rb"^\[  FAILED  \] [^ \n]+$", text, re.M))),
            len(re.findall(rb"^\[  SKIPPED \] [^ \n]+$", text, re.M)))


def tell(name, rc, why, seconds, text):
    """The line of a test, with what it printed if it failed."""
    passed, failed, skipped = count(text)
    note = ""
    if rc == 124:
        failed, note = failed + 1, " (%s)" % why
    elif rc == 0 and passed + skipped == 0:
        failed, note = 1, " (ran no test)"
    elif rc != 0 and failed == 0:
        failed, note = 1, " (exit code %d)" % rc
    with open(os.path.join(RESULTS, name + ".count"), "w") as f:
        f.write("%d %d %d %s %.1f\n" % (passed, failed, skipped, name, seconds))
    line = "%s: %d passed" % (name, passed)
    line += ", %d FAILED%s" % (failed, note) if failed else ""
    line += ", %d skipped" % skipped if skipped else ""
    line += ", %s on a processor, %.0f s on the clock\n" % (why.removeprefix("used "), seconds)
    return line.encode() + (re.sub(rb"(?m)^", b"    ", text.rstrip(b"\n")) + b"\n" if failed else b"")


def watch(name):
    """Runs a test and tells how it went, in one write, so that the lines of tests that end together do not mix."""
    began, out, stdout = time.monotonic(), os.path.join(RESULTS, name + ".out"), os.dup(1)
    for fd, path, flags in (0, os.devnull, os.O_RDONLY), (1, out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC):
        opened = os.open(path, flags, 0o666)
        os.dup2(opened, fd)
        os.close(opened)
    os.dup2(1, 2)
    rc, why = limit.run(float(os.environ["TEST_TIMEOUT"]), lambda: begin(name))
    with open(out, "rb") as f:
        os.write(stdout, tell(name, rc, why, time.monotonic() - began, f.read()))


def last_seconds():
    """{name: seconds} of the tests that have run here."""
    if not os.path.exists(SECONDS):
        return {}
    with open(SECONDS) as f:
        return {name: float(seconds) for name, seconds in map(str.split, f)}


def keep_seconds(names):
    seconds = last_seconds()
    for name in names:
        with open(os.path.join(RESULTS, name + ".count")) as f:
            seconds[name] = float(f.read().split()[4])
    with open(SECONDS + ".new", "w") as f:
        f.writelines("%s %.1f\n" % pair for pair in sorted(seconds.items()))
    os.replace(SECONDS + ".new", SECONDS)


def main():
    seconds = last_seconds()
    names = sorted(sys.argv[2:], key=lambda name: -seconds.get(name, float("inf")))
    jobs, running = int(sys.argv[1]), 0
    gc.freeze()  # a collection in a fork would copy all that lies here
    for name in names:
        if running == jobs:
            os.wait()
            running -= 1
        if os.fork() == 0:
            watch(name)
            os._exit(0)
        running += 1
    while running:
        os.wait()
        running -= 1
    for name in names:
        if not os.path.exists(os.path.join(RESULTS, name + ".count")):
            os.write(1, tell(name, 1, "nobody knows how long", 0, b"who watched it has ended"))
    keep_seconds(names)


if __name__ == "__main__":
    main()
