#!/usr/bin/env python3
"""Between two tokens of eight running streams while a prompt of 8,000 arrives: percentiles by the clock at the client, with and without --itl-target.

    GYRE=build/release/gyre bench/itl.py [TARGET_MS...]           (0, 50 and 20; 0 is no bound)

The model is small (2 layers of 256, random weights, 16,384 positions), so that a step of single tokens takes about a millisecond.
"""
import http.client
import json
import os
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "cli"))
from serving import ROOT, Server  # noqa: E402

STREAMS, PROMPT = 8, 8000
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 2,
          "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 4096, "max_position_embeddings": 16384, "rms_norm_eps": 1e-5,
          "rope_theta": 10000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16"}


def model_folder(folder):
    story = os.path.join(ROOT, "models/story")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        os.symlink(os.path.join(story, name), os.path.join(folder, name))
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(CONFIG, f)
    return folder


def stream(port, prompt, max_tokens, times, over):
    """Appends the time of each event until the end, or until it is over."""
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    c.request("POST", "/v1/completions", json.dumps({"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "stream": True, "seed": 1}),
              {"Content-Type": "application/json"})
    r = c.getresponse()
    while not over.is_set():
        line = r.readline()
        if not line:
            break
        if line.startswith(b"data: {"):
            times.append(time.monotonic())
    c.sock.close()


def percentile(values, p):
    return sorted(values)[min(len(values) - 1, int(len(values) * p / 100))]


def gaps(all_times, begin, end):
    return [(b - a) * 1e3 for times in all_times for a, b in zip(times, times[1:]) if b > begin and a < end]


def measure(folder, target):
    server = Server(folder, "--load-format", "dummy", "--itl-target", str(target), "--max-num-batched-tokens", "2048", "--kv-cache-memory", "512MiB",
                    "--disable-log-requests", "--no-enable-prefix-caching")
    try:
        over, all_times = threading.Event(), [[] for _ in range(STREAMS)]
        threads = [threading.Thread(target=stream, args=(server.port, [5 + i] * 16, 12000, t, over), daemon=True) for i, t in enumerate(all_times)]
        for t in threads:
            t.start()
        while min(len(t) for t in all_times) < 100:
            time.sleep(0.02)
        quiet_from = time.monotonic()
        time.sleep(2)
        begin, first = time.monotonic(), []
        stream(server.port, [(i * 2654435761 >> 8) % 4000 + 5 for i in range(PROMPT)], 1, first, threading.Event())
        end = time.monotonic()
        over.set()
        quiet, busy = gaps(all_times, quiet_from, begin), gaps(all_times, begin, end)
        print("target %3g ms: streams alone p50 %5.2f p99 %6.2f ms; beside the prompt p50 %6.2f p99 %7.2f max %7.2f ms; the prompt's first token after %.2f s" % (
            target, percentile(quiet, 50), percentile(quiet, 99), percentile(busy, 50), percentile(busy, 99), max(busy), first[0] - begin), flush=True)
    finally:
        server.process.kill()
        server.process.wait()


def main():
    with tempfile.TemporaryDirectory() as folder:
        model_folder(folder)
        for target in [float(a) for a in sys.argv[1:]] or [0, 50, 20]:
            measure(folder, target)


if __name__ == "__main__":
    main()
