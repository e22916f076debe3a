#!/usr/bin/env python3
"""Prints how long whole commands take, from the shell's point of view: what a person waits for.

usage: startup.py GYRE [RUNS]      the median of RUNS runs each (11), taken in turns, after one to warm the files
"""
import statistics, subprocess, sys, time

COMMANDS = [
    ("an empty process", ["version"], None),
    ("open an 11 MB tokenizer.json",
     ["tokenize", "build/data/tokenizers/qwen3/tokenizer.json", "-p", "hi", "--output", "count"], 250),
    ("first token of models/story", ["run", "models/story", "-p", "Once upon a time", "-n", "1", "--output",
                                     "ids"], 60),
    ("describe DeepSeek-V3 from its config", ["info", "tests/data/configs/deepseek-ai--DeepSeek-V3/config.json"], None),
]


def wall_ms(command):
    begin = time.perf_counter()
    p = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if p.returncode != 0:
        sys.exit("startup: %s: %s" % (" ".join(command), p.stderr.strip()))
    return 1000 * (time.perf_counter() - begin)


def main():
    gyre, runs = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 11
    times = [[] for _ in COMMANDS]
    for turn in range(runs + 1):
        for (_, words, _), taken in zip(COMMANDS, times):
            ms = wall_ms([gyre, *words])
            if turn > 0:
                taken.append(ms)
    print("%-40s %10s %10s %10s %10s" % ("command", "median ms", "least", "most", "wanted"))
    for (name, _, limit), taken in zip(COMMANDS, times):
        print("%-40s %10.1f %10.1f %10.1f %10s" %
              (name, statistics.median(taken), min(taken), max(taken), "< %d" % limit if limit else ""))


main()
