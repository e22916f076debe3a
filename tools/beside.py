#!/usr/bin/env python3
"""gyre and PyTorch by turns on one GPU: tokens a second of both at each number of sequences, beside floor and ladder of
the same runs.

    tools/beside.py configs/Qwen--Qwen2.5-7B/config.json [--batch 1,8,32,128,256,512] [--rounds 2] [--gyre build/gyre]
    [-- FLAGS of gyre bench decode]

A round is gyre bench decode and then tools/yardstick.py, which has that model's shapes, an FP8 product with a scale a
row, and a cache of fixed length: the middle of gyre's window. What differs from round to round is the card's; the table
has the median of the rounds, their least and most. Without flags of its own gyre runs with dummy weights, FP8 weights
and FP8 cache, 16 + 512 tokens, five repeats after five seconds."""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
FLAGS = [
    "--load-format", "dummy", "--device", "cuda", "--quantization", "fp8", "--kv-cache-dtype", "fp8", "--num-iters",
    "5", "--warmup-seconds", "5"
]


def run(command):
    p = subprocess.run(command, capture_output=True, text=True)
    if p.returncode != 0:
        sys.exit("beside.py: %s: %s" % (command[0], (p.stderr.strip() or p.stdout.strip()).splitlines()[-1:]))
    return p.stdout


def of_gyre(o):
    """Rows of its JSON, by number of sequences."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rows.json")
        run([o.gyre, "bench", "decode", o.model, "--batch", o.batch, "--output-json", path] + (o.flags or FLAGS))
        with open(path) as f:
            return {row["batch"]: row for row in json.load(f)["decode"]}


def of_torch(o):
    """Tokens a second, by number of sequences."""
    out = run([sys.executable, o.yardstick, "--batch", o.batch, "--context", str(o.context)])
    return {int(n): float(rate) for n, rate in re.findall(r"^N +(\d+) .* ([\d.]+) tokens/s$", out, re.M)}


def spread(values):
    return "%10.1f (%.1f to %.1f)" % (statistics.median(values), min(values), max(values))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("--batch", default="1,8,32,128,256,512")
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--context", type=int, default=272)
    p.add_argument("--gyre", default=os.path.join(HERE, "../build/gyre"))
    p.add_argument("--yardstick", default=os.path.join(HERE, "yardstick.py"))
    p.add_argument("flags", nargs="*")
    o = p.parse_args()
    ours, theirs = [], []
    for i in range(o.rounds):
        ours.append(of_gyre(o))
        theirs.append(of_torch(o))
        print("round %d of %d" % (i + 1, o.rounds), file=sys.stderr, flush=True)
    print("%5s %36s %8s %9s %36s %7s" %
          ("batch", "gyre, tokens/s", "of floor", "of ladder", "PyTorch, tokens/s", "times"))
    for n in sorted(ours[0]):
        rates = [rows[n]["tokens_per_s"]["median"] for rows in ours]
        step_ms = n / statistics.median(rates) * 1e3
        floor, ladder = (statistics.median(rows[n][name] for rows in ours) for name in ("floor_ms", "ladder_ms"))
        torch = [rates_of[n] for rates_of in theirs]
        print("%5d %36s %6.1f %% %7.1f %% %36s %7.2f" %
              (n, spread(rates), 100 * floor / step_ms, 100 * ladder / step_ms, spread(torch),
               statistics.median(rates) / statistics.median(torch)))


if __name__ == "__main__":
    main()
