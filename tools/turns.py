#!/usr/bin/env python3
"""Builds of a backend, or settings of one, by turns on one machine: tokens a second of each at each number of
sequences.

    tools/turns.py before=/tmp/old after=build/release no-l2-copies=build/release,GYRE_L2_COPIES=0 \
        [--rounds 3] [--gyre build/gyre] -- MODEL|config.json [FLAGS of gyre bench decode]

A side is a name, the folder whose libgyre-cuda.so it loads (GYRE_PLUGINS) and whose gyre it runs, if there is one, and
variables that it sets. In a round each side has one turn, in the order given, after a run that does not count; what
clocks and neighbours do to one they do to all. The table has the figure of each turn, its median, and per cent of the
first side's; of a run that is broken off, by a fault or by hand, it has the rounds that all sides have ended. gyre runs
with dummy weights, FP8 weights and FP8 cache on a GPU, 16 + 144 tokens at 128, 256 and 512 sequences, two repeats a
turn after half a second, and flags that are given say otherwise."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

FLAGS = [
    "--load-format", "dummy", "--device", "cuda", "--quantization", "fp8", "--kv-cache-dtype", "fp8", "--input-len",
    "16", "--output-len", "144", "--batch", "128,256,512", "--num-iters", "2", "--warmup-seconds", "0.5"
]


class Fault(Exception):
    pass


class Side:
    def __init__(self, text):
        self.name, _, rest = text.partition("=")
        folder, *variables = rest.split(",")
        bad = [v for v in variables if "=" not in v]
        if not self.name or not folder or bad:
            raise argparse.ArgumentTypeError(f"{text!r} is not NAME=FOLDER[,VARIABLE=VALUE...]")
        if not os.path.isdir(folder):
            raise argparse.ArgumentTypeError(f"{self.name}: there is no folder {folder}")
        own = os.path.join(folder, "gyre")
        self.gyre = os.path.abspath(own) if os.path.isfile(own) else None  # builds of another interface need their own
        self.environment = dict(v.split("=", 1) for v in variables) | {"GYRE_PLUGINS": os.path.abspath(folder)}
        self.figures = {}  # of each number of sequences, and of prompts: one a turn

    def run(self, gyre, arguments):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "figures.json")
            try:
                done = subprocess.run([self.gyre or gyre, "bench", "decode", *arguments, "--output-json", path],
                                      env=os.environ | self.environment, stdout=subprocess.DEVNULL,
                                      stderr=subprocess.PIPE, text=True)
                if done.returncode:
                    raise Fault(f"{self.name}: {done.stderr.strip() or done.returncode}")
                with open(path) as figures:
                    return json.load(figures)
            except (OSError, ValueError) as fault:
                raise Fault(f"{self.name}: {gyre} bench decode: {fault}") from fault

    def turn(self, gyre, arguments):
        report = self.run(gyre, arguments)
        for d in report["decode"]:
            self.figures.setdefault(f"{d['batch']} sequences, tokens/s", []).append(d["tokens_per_s"]["median"])
        for p in report["prefill"]:
            self.figures.setdefault(f"prompt of {p['input_len']}, ms", []).append(p["first_token_ms"]["median"])


def table(sides):
    width = max(len(s.name) for s in sides)
    for what in sides[0].figures:
        whole = min(len(s.figures.get(what, [])) for s in sides)  # rounds that all sides have ended
        if whole:
            print(what)
        for side in sides if whole else []:
            turns, base = side.figures[what][:whole], statistics.median(sides[0].figures[what][:whole])
            median = statistics.median(turns)
            change = "" if side is sides[0] else f"{100 * (median / base - 1):+.1f} %"
            print(f"  {side.name:{width}}  {median:>10,.1f}  {change:>8}   {'  '.join(f'{t:,.1f}' for t in turns)}")


def take_turns(options, arguments):
    print(options.sides[0].run(options.gyre, arguments)["device"])  # files and clocks are warm behind it
    for n in range(options.rounds):
        for side in options.sides:
            side.turn(options.gyre, arguments)
            print(f"round {n + 1}, {side.name}", file=sys.stderr)


def positive(text):
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)


def main():
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s [--rounds N] [--gyre FILE] NAME=FOLDER[,VARIABLE=VALUE...]... -- MODEL|config.json [FLAGS]")
    parser.add_argument("sides", nargs="+", type=Side, metavar="NAME=FOLDER[,VARIABLE=VALUE...]")
    parser.add_argument("--rounds", type=positive, default=3, metavar="N", help="turns of each side (3)")
    parser.add_argument("--gyre", default="build/gyre", metavar="FILE", help="the program (build/gyre)")
    options = parser.parse_intermixed_args(sys.argv[1:split])
    model, *flags = sys.argv[split + 1:] or parser.error("behind -- stands the model, or its config.json")
    why = None
    try:
        take_turns(options, [model, *FLAGS, *flags])  # of a flag twice the last counts
    except (Fault, KeyboardInterrupt) as fault:
        why = fault if isinstance(fault, Fault) else "broken off"
    table(options.sides)
    sys.exit(f"turns.py: {why}" if why else 0)


if __name__ == "__main__":
    main()
