#!/usr/bin/env python3
"""Between two tokens of eight running streams while a prompt of 8,000 arrives: percentiles by the clock at the client,
with and without --itl-target.

    GYRE=build/release/gyre bench/itl.py [TARGET_MS...]           (0, 50 and 20; 0 is no bound)

The model is small (2 layers of 256, random weights, 16,384 positions), so that a step of single tokens takes about a
millisecond.
"""
import json
import os
import selectors
import shutil
import socket
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "cli", "rig"))
from serving import ROOT, Server  # noqa: E402

STREAMS, PROMPT = 8, 8000
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 768,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 4096,
    "max_position_embeddings": 16384, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True,
    "torch_dtype": "bfloat16"
}


def model_folder(folder):
    story = os.path.join(ROOT, "models/story")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(os.path.join(story, name), os.path.join(folder, name))
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(CONFIG, f)
    return folder


class Clients:
    """All connections in one thread, which does nothing but wait and look at the clock: threads of Python would wait
    for each other for milliseconds."""

    def __init__(self, port):
        self.port = port
        self.ready = selectors.DefaultSelector()

    def start(self, prompt, max_tokens):
        """Returns the list to which the time of each event will be appended."""
        body = json.dumps({
            "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "stream": True, "seed": 1,
            "return_token_ids": True
        }).encode()  # so that a token without text, such as a part of a character, is an event too
        c = socket.create_connection(("127.0.0.1", self.port))
        c.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
            % len(body) + body)
        times = []
        self.ready.register(c, selectors.EVENT_READ, times)
        return times

    def watch(self, until):
        """Until `until` is true, which is asked after each wait."""
        while not until():
            for key, _ in self.ready.select(0.1):
                data = key.fileobj.recv(1 << 16)
                key.data.extend([time.monotonic()] * data.count(b"data: {"))
                if not data:
                    self.ready.unregister(key.fileobj)

    def stop(self):
        for key in list(self.ready.get_map().values()):
            key.fileobj.close()
        self.ready.close()


def percentile(values, p):
    return sorted(values)[min(len(values) - 1, int(len(values) * p / 100))]


def gaps(all_times, begin, end):
    return [(b - a) * 1e3 for times in all_times for a, b in zip(times, times[1:]) if b > begin and a < end]


def measure(folder, target):
    server = Server(folder, "--load-format", "dummy", "--itl-target", str(target), "--max-num-batched-tokens", "2048",
                    "--kv-cache-memory", "512MiB", "--disable-log-requests", "--no-enable-prefix-caching")
    try:
        clients = Clients(server.port)
        all_times = [clients.start([5 + i] * 16, 12000) for i in range(STREAMS)]
        clients.watch(lambda: min(len(t) for t in all_times) >= 100)
        quiet_from = time.monotonic()
        clients.watch(lambda: time.monotonic() > quiet_from + 2)
        begin = time.monotonic()
        first = clients.start([(i * 2654435761 >> 8) % 4000 + 5 for i in range(PROMPT)], 1)
        clients.watch(lambda: first)
        end = first[0]
        clients.stop()
        quiet, busy = gaps(all_times, quiet_from, begin), gaps(all_times, begin, end)
        over = sum(g > target for g in busy) if target else 0
        print(
            "target %3g ms: streams alone p50 %5.2f p99 %6.2f ms; beside the prompt p50 %6.2f p99 %7.2f max %7.2f ms, "
            "%d of %d above; the prompt's first token after %.2f s"
            % (target, percentile(quiet, 50), percentile(quiet, 99), percentile(busy, 50), percentile(
                busy, 99), max(busy), over, len(busy), end - begin), flush=True)
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
