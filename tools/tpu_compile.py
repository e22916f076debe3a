#!/usr/bin/env python3
"""What models take of TPUs, by compiling for them without one: the table of docs/tpu.md.

    tools/tpu_compile.py [--plugin libtpu.so] [--only WORD]

libtpu comes from PyPI into build/venv-libtpu unless a plugin is named; its licence is Google's. gyre explain --topology
compiles each launch; nothing is executed. The last column is the time that a step cannot be under: bytes of weights
and caches that it must read, by the memory rate of a chip, or the plugin's count of operations by its bfloat16 rate,
whichever is longer. "GB moved" is the plugin's count too, of what operations read and write, on-chip memory among it,
and one round of a loop: to compare programs by. Neither the links between chips nor how near XLA's code comes are in
it.
"""
import argparse, glob, json, lzma, os, re, subprocess, sys, tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CHIPS = {"v6e": (1638e9, 918e12, 32), "v5e": (819e9, 197e12, 16)}  # bytes/s, FLOP/s, GB: Google's pages
GEMMA, QWEN, MOE = "nvidia--Gemma-4-31B-IT-NVFP4", "Qwen--Qwen2.5-7B", "Qwen--Qwen3-30B-A3B"
INT8 = ("--quantization", "int8")
CASES = [  # model, name, topology, devices, sequences, rows of each, context, flags
    (GEMMA, "Gemma-4-31B int8", "v6e:2x2", 4, 1, 1, 512, INT8),
    (GEMMA, "Gemma-4-31B int8", "v6e:2x2", 4, 768, 1, 512, INT8),
    (GEMMA, "Gemma-4-31B int8, int8 cache", "v6e:2x2", 4, 128, 1, 512, (*INT8, "--kv-cache-dtype", "int8")),
    (GEMMA, "Gemma-4-31B int8", "v6e:2x2", 4, 1, 1, 32768, INT8),
    (GEMMA, "Gemma-4-31B int8, int8 cache", "v6e:2x2", 4, 1, 1, 32768, (*INT8, "--kv-cache-dtype", "int8")),
    (GEMMA, "Gemma-4-31B int8, int8 cache, rings", "v6e:2x2", 4, 1, 1, 131072, (*INT8, "--kv-cache-dtype", "int8")),
    (GEMMA, "Gemma-4-31B int8, a prompt", "v6e:2x2", 4, 1, 512, 4096, INT8),
    (QWEN, "Qwen2.5-7B bf16", "v5e:2x2", 4, 1, 1, 512, ()),
    (QWEN, "Qwen2.5-7B bf16", "v5e:2x2", 4, 128, 1, 512, ()),
    (MOE, "Qwen3-30B-A3B int8", "v5e:2x2", 4, 1, 1, 512, INT8),
    (MOE, "Qwen3-30B-A3B int8", "v5e:2x2", 4, 32, 1, 512, INT8),
]


def libtpu():
    place = os.path.join(ROOT, "build", "venv-libtpu")
    pattern = os.path.join(place, "lib/python3*/site-packages/libtpu/libtpu.so")
    if not glob.glob(pattern):
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
        pip = [os.path.join(place, "bin/python"), "-m", "pip", "install", "-q", "--no-deps", "libtpu"]
        subprocess.run(pip, check=True)
    return glob.glob(pattern)[0]


def config_of(model, folder):
    """config.json of a model, unpacked and without what quantises it: weights are made int8, or bf16, by gyre."""
    path = os.path.join(ROOT, "tests/data/configs", model, "config.json")
    opener, path = (open, path) if os.path.exists(path) else (lzma.open, path + ".xz")
    with opener(path, "rt") as f:
        config = json.load(f)
    config.pop("quantization_config", None)
    out = os.path.join(folder, model, "config.json")
    os.makedirs(os.path.dirname(out), exist_ok=True)
    with open(out, "w") as f:
        json.dump(config, f)
    return out


def gib(text, what):
    return float(re.search(what + r"\s+([0-9.]+) GiB", text)[1])


def measure(gyre, plugin, config, case):
    _, name, topology, n, seqs, queries, context, flags = case
    line = [gyre, "explain", config, "--device", "xla", "--xla-plugin", plugin, "--topology", topology, "--rows",
            str(seqs), "--queries", str(queries), "--context", str(context), "--tensor-parallel-size", str(n), *flags]
    p = subprocess.run(line, capture_output=True, text=True)
    shape = f"| {name} | {topology} | {seqs} x {queries} | {context} |"
    if p.returncode != 0:
        return f"{shape} {p.stderr.strip().splitlines()[-1][:160]} | | | | | | |"
    t, (rate, flops, _) = p.stdout, CHIPS[topology[:3]]
    count, moved = map(float, re.search(r"([0-9.]+) GFLOP, ([0-9.]+) GB", t).groups())
    read = (gib(t, "weights a chip") + gib(t, "caches a chip")) * 2**30
    seconds = max(read / rate, count * 1e9 / flops)
    compiled = float(re.search(r"compiled in\s+([0-9.]+)", t)[1])
    return (f"{shape} {compiled:.0f} s | {gib(t, 'weights a chip'):.2f} | {gib(t, 'caches a chip'):.2f} | "
            f"{gib(t, 'values of the launch'):.2f} | {gib(t, 'in all'):.2f} | {count:.0f} | {moved:.1f} | "
            f"{seconds * 1e3:.2f} |")


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--plugin")
    a.add_argument("--only", default="", help="cases whose name has this")
    a.add_argument("--context", type=int, help="those of this context alone")
    a.add_argument("--gyre", default=os.path.join(ROOT, "build/gyre"))
    o = a.parse_args()
    plugin = o.plugin or libtpu()
    print("| model | chips | sequences x rows | context | compiled in | weights, GiB a chip | caches | values |"
          " in all | GFLOP a chip | GB moved | at least, ms |\n" + "|---" * 12 + "|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            if o.only in case[1] and o.context in (None, case[6]):
                print(measure(o.gyre, plugin, config_of(case[0], folder), case), flush=True)


if __name__ == "__main__":
    main()
