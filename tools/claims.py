#!/usr/bin/env python3
"""The speed that is claimed of one GPU, measured claim by claim on it, beside what is wanted.

    tools/claims.py --models FOLDER [--gyre build/gyre] [--only qwen,llama,gemma,long,serve,start,torch] [--out FOLDER]

FOLDER has qwen2.5-7b (config.json and a tokenizer), llama-3.1-8b and gemma-4-31b (config.json). Weights are random
(--load-format dummy), but for one start: that writes 15 GB in bfloat16 to the temporary folder ($TMPDIR), where so much
must be free, and reads them out of the page cache.

    qwen     Qwen2.5-7B in FP8, 1 to 512 sequences of 16 + 512 tokens; a prompt of 2,048; the first tokens of 128
             prompts
    llama    Llama-3.1-8B, one sequence, 16 bits and FP8
    gemma    Gemma-4-31B in FP8, 1 to 256 sequences of 448 + 64 tokens; a prompt of 2,048
    long     Gemma-4-31B behind a prompt of 130,000 tokens
    serve    Qwen2.5-7B over HTTP, 128 requests at a time, as a share of qwen's figure (measured anew without qwen)
    start    exec to the first token: random weights, with nothing kept and with kept plans; the checkpoint likewise
    torch    PyTorch's figures for Qwen2.5-7B (tools/yardstick.py); nothing is wanted of them

What each command prints goes to --out. The exit status is 1 if something falls short, and 2 if it could not be
measured."""
import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from array import array
from math import prod
from random import Random

HERE = os.path.dirname(os.path.abspath(__file__))
DUMMY = ["--load-format", "dummy", "--device", "cuda"]
FP8 = ["--quantization", "fp8", "--kv-cache-dtype", "fp8"]


class Fault(Exception):
    pass


class Bench:
    def __init__(self, o):
        self.gyre, self.models, self.out, self.scratch = os.path.abspath(o.gyre), os.path.abspath(
            o.models), os.path.abspath(o.out), None
        self.offline = None  # tokens/s of 128 sequences without a server

    def model(self, name):
        return os.path.join(self.models, name)

    def config(self, name):
        """A config.json whose weights may be random: a checkpoint's own quantisation says nothing of those."""
        with open(os.path.join(self.model(name), "config.json")) as f:
            config = json.load(f)
        config.pop("quantization_config", None)
        path = os.path.join(self.scratch, name + ".json")
        with open(path, "w") as f:
            json.dump(config, f)
        return path

    def run(self, log, command, **more):
        with open(os.path.join(self.out, log + ".log"), "w") as f:
            code = subprocess.run(command, stdout=f, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                  **more).returncode
        if code != 0:
            raise Fault("%s: exit status %d, %s.log says why" % (" ".join(command[:3]), code, log))

    def decode(self, log, name, flags):
        path = os.path.join(self.out, log + ".json")
        self.run(log, [self.gyre, "bench", "decode", self.config(name), *DUMMY, *flags, "--output-json", path])
        with open(path) as f:
            report = json.load(f)
        return {row["batch"]: row
                for row in report["decode"]}, [p["first_token_ms"]["median"] for p in report["prefill"]]

    def rate(self, log, name, flags):
        """Tokens/s of a run of one size."""
        (row,) = self.decode(log, name, flags)[0].values()
        return row["tokens_per_s"]["median"]


def claim(what, seen, least=None, most=None, unit="tokens/s"):
    return what, seen, least, most, unit


def table(rows, what, wanted):
    return [
        claim("%s, N=%d" % (what, n), rows[n]["tokens_per_s"]["median"], least=least) for n, least in wanted.items()
    ]


def qwen(b):
    wanted = {1: 440, 8: 3450, 32: 13200, 128: 45000, 256: 61000, 512: 65000}
    rows, (prompt, ) = b.decode(
        "qwen", "qwen2.5-7b",
        [*FP8, "--batch", ",".join(map(str, wanted)), "--prefill", "2048", "--warmup-seconds", "3", "--num-iters", "3"])
    b.offline = rows[128]["tokens_per_s"]["median"]
    return [
        *table(rows, "Qwen2.5-7B FP8, 16 + 512", wanted),
        claim("Qwen2.5-7B FP8, a prompt of 2,048", prompt, most=26, unit="ms"),
        claim("Qwen2.5-7B FP8, first tokens of 128 prompts", rows[128]["first_token_ms"]["median"], most=32, unit="ms")
    ]


def llama(b):
    flags = ["--batch", "1", "--warmup-seconds", "2", "--num-iters", "3"]
    return [claim("Llama-3.1-8B, 16 bits, 16 + 512, N=1", b.rate("llama", "llama-3.1-8b", flags), least=240),
            claim("Llama-3.1-8B FP8, 16 + 512, N=1", b.rate("llama-fp8", "llama-3.1-8b", [*FP8, *flags]), least=430)]


def gemma(b):
    wanted = {1: 112, 8: 870, 32: 2800, 128: 6800, 256: 7900}
    rows, (prompt, ) = b.decode("gemma", "gemma-4-31b", [
        *FP8, "--batch", ",".join(map(str, wanted)), "--input-len", "448", "--output-len", "64", "--prefill", "2048",
        "--warmup-seconds", "3", "--num-iters", "3"
    ])
    return [
        *table(rows, "Gemma-4-31B FP8, 448 + 64", wanted),
        claim("Gemma-4-31B FP8, a prompt of 2,048", prompt, most=115, unit="ms")
    ]


def long(b):
    flags = [
        "--batch", "1", "--input-len", "130000", "--output-len", "64", "--num-iters", "1", "--num-iters-warmup", "0"
    ]
    return [claim("Gemma-4-31B FP8, 130,000 + 64, N=1", b.rate("long", "gemma-4-31b", [*FP8, *flags]), least=90)]


def port_of(server, log):
    for line in server.stderr:
        log.write(line)
        found = re.search(r"listening on https?://[^ ]+:(\d+)", line)
        if found:
            return found.group(1)
    raise Fault("gyre serve did not start; serve.log says why")


def serve(b):
    offline = b.offline or b.rate("offline", "qwen2.5-7b",
                                  [*FP8, "--batch", "128", "--warmup-seconds", "3", "--num-iters", "3"])
    model, shares = b.model("qwen2.5-7b"), []
    with open(os.path.join(b.out, "serve.log"), "w") as log:
        server = subprocess.Popen([b.gyre, "serve", model, *DUMMY, *FP8, "--port", "0", "--disable-log-requests"],
                                  stderr=subprocess.PIPE, stdout=log, text=True)
        try:
            port = port_of(server, log)
            for turn in range(3):  # the first is for the clocks
                b.run("load-%d" % turn, [
                    b.gyre, "bench", "serve", "--port", port, "--tokenizer", model, "--num-prompts", "256",
                    "--max-concurrency", "128", "--input-len", "16", "--output-len", "512", "--disable-tqdm",
                    "--save-result", "--result-dir", b.out, "--result-filename",
                    "load-%d.json" % turn
                ])
                with open(os.path.join(b.out, "load-%d.json" % turn)) as f:
                    shares.append(100 * json.load(f)["output_throughput"] / offline)
        finally:
            server.terminate()
            log.write(server.communicate()[1])
    return [
        claim("HTTP, 256 requests of 16 + 512, 128 at a time, of %.0f tokens/s" % offline, share, least=95, unit="%")
        for share in shares[1:]
    ]


def seconds_to_first_token(b, log, model, cache, *flags):
    """From exec to the first byte of the answer; the process is waited for."""
    command = [
        b.gyre, "run", model, "--device", "cuda", *flags, "--no-chat", "-p", "Once upon a time", "-n", "1", "--output",
        "ids"
    ]
    with open(os.path.join(b.out, log + ".log"), "w") as f:
        begin = time.perf_counter()
        p = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=f,
                             env=os.environ | {"XDG_CACHE_HOME": cache})
        first = p.stdout.read(1)
        taken = time.perf_counter() - begin
        p.stdout.read()
        if p.wait() != 0 or not first:
            raise Fault("gyre run: exit status %d, %s.log says why" % (p.returncode, log))
    return taken


def write_checkpoint(config, folder):
    """Qwen2's tensors in bfloat16, four layers a file; values N(0, 1/in), the same million over and over. Returns their
    bytes."""
    with open(config) as f:
        c = json.load(f)
    hidden, ffn, vocab = c["hidden_size"], c["intermediate_size"], c["vocab_size"]
    kv = hidden // c["num_attention_heads"] * c["num_key_value_heads"]
    random = Random(0)
    drawn = [random.gauss(0, 1) for _ in range(1000003)]  # a prime, so that no two rows of a tensor are the same
    pools = {}

    def pool(n_in):
        """The numbers drawn over sqrt(n_in), each cut to the upper half of a float32."""
        if n_in not in pools:
            floats = array("f", [v / n_in**0.5 for v in drawn]).tobytes()
            pools[n_in] = bytearray(2 * len(drawn))
            pools[n_in][0::2], pools[n_in][1::2] = floats[2::4], floats[3::4]
        return pools[n_in]

    def layer(i):
        at = "model.layers.%d." % i
        for name, n_out, n_in in (("self_attn.q_proj", hidden, hidden), ("self_attn.k_proj", kv, hidden),
                                  ("self_attn.v_proj", kv, hidden), ("self_attn.o_proj", hidden, hidden),
                                  ("mlp.gate_proj", ffn, hidden), ("mlp.up_proj", ffn, hidden), ("mlp.down_proj",
                                                                                                 hidden, ffn)):
            yield at + name + ".weight", (n_out, n_in)
            if name[10:] in ("q_proj", "k_proj", "v_proj"):
                yield at + name + ".bias", (n_out,)
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield at + name + ".weight", (hidden,)

    def write(path, tensors):
        header, end = {}, 0
        for name, shape in tensors:
            size = 2 * prod(shape)
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
            end += size
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(path, "wb") as f:
            f.write(len(text).to_bytes(8, "little") + text)
            for name, shape in tensors:
                size, block = 2 * prod(shape), pool(shape[-1])
                while size:
                    size -= f.write(block[:size])

    total, weight_map = 0, {}
    groups = [[("model.embed_tokens.weight", (vocab, hidden)), ("lm_head.weight", (vocab, hidden)),
               ("model.norm.weight", (hidden, ))]]
    groups += [[t
                for i in range(k, min(k + 4, c["num_hidden_layers"]))
                for t in layer(i)]
               for k in range(0, c["num_hidden_layers"], 4)]
    for k, tensors in enumerate(groups):
        name = "model-%05d-of-%05d.safetensors" % (k + 1, len(groups))
        write(os.path.join(folder, name), tensors)
        weight_map |= {t: name for t, _ in tensors}
        total += sum(2 * prod(shape) for _, shape in tensors)
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {"total_size": total}, "weight_map": weight_map}, f)
    return total


def start(b):
    claims, model, caches = [], b.model("qwen2.5-7b"), os.path.join(b.scratch, "plans")
    for n, plans in enumerate(("nothing kept", "kept plans")):
        claims.append(
            claim("Qwen2.5-7B FP8, random weights, exec to first token, " + plans,
                  seconds_to_first_token(b, "start-%d" % n, model, caches, *DUMMY[:2], *FP8), most=6, unit="s"))
    folder = os.path.join(b.scratch, "checkpoint")
    shutil.copytree(model, folder)
    size = write_checkpoint(os.path.join(model, "config.json"), folder)
    for n, (how, flags) in enumerate((("16 bits", []), ("FP8", FP8))):
        for k, plans in enumerate(("nothing kept", "kept plans")):
            claims.append(
                claim("%.1f GB of bfloat16 in the page cache, %s, exec to first token, %s" % (size / 1e9, how, plans),
                      seconds_to_first_token(b, "checkpoint-%d-%d" % (n, k), folder, caches + str(n), *flags), most=12,
                      unit="s"))
    return claims


def torch(b):
    b.run("torch", [sys.executable, os.path.join(HERE, "yardstick.py")])
    with open(os.path.join(b.out, "torch.log")) as f:
        return [
            claim("PyTorch, Qwen2.5-7B FP8, N=%s" % n, float(rate))
            for n, rate in re.findall(r"^N +(\d+) .* ([\d.]+) tokens/s$", f.read(), re.M)
        ]


SECTIONS = {f.__name__: f for f in (qwen, serve, llama, gemma, long, start, torch)}


def line(what, seen, least, most, unit):
    figure = lambda v: "{:,.{}f}".format(v, 0 if v >= 1000 else 1 if v >= 10 else 2)
    wanted = ">= " + figure(least) if least else "<= " + figure(most) if most else ""
    verdict = "" if not wanted else "holds" if (seen >= least if least else seen <= most) else "SHORT"
    print("%-84s %9s %-8s %-10s %s" % (what, figure(seen), unit, wanted, verdict), flush=True)
    return verdict != "SHORT"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--models", required=True)
    p.add_argument("--gyre", default=os.path.join(HERE, "../build/gyre"))
    p.add_argument("--out", default="build/claims")
    p.add_argument("--only", default=",".join(SECTIONS))
    o = p.parse_args()
    asked = o.only.split(",")
    unknown = [name for name in asked if name not in SECTIONS]
    if unknown:
        p.error("--only: %s is none of %s" % (unknown[0], ", ".join(SECTIONS)))
    os.makedirs(o.out, exist_ok=True)
    bench, n_short, n_faults = Bench(o), 0, 0
    for name, section in SECTIONS.items():
        if name not in asked:
            continue
        begin = time.perf_counter()
        with tempfile.TemporaryDirectory() as bench.scratch:
            try:
                n_short += sum(not line(*c) for c in section(bench))
            except (Fault, OSError, ValueError, KeyError) as fault:
                n_faults += 1
                print("%s: %s" % (name, fault), flush=True)
        print("%s: %.0f s" % (name, time.perf_counter() - begin), file=sys.stderr, flush=True)
    print("%d fall short, %d could not be measured" % (n_short, n_faults))
    sys.exit(2 if n_faults else 1 if n_short else 0)


if __name__ == "__main__":
    main()
