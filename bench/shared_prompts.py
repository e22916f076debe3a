#!/usr/bin/env python3
"""Eight answers to one new prompt of 900 tokens, and the same prompt once more: milliseconds at the client, with and
without the prefix cache.

    GYRE=build/release/gyre bench/shared_prompts.py [MODEL...]           (models/story tests/models/qwen3_5)
"""
import os
import random
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "cli", "rig"))
from serving import Server  # noqa: E402

PROMPT, ANSWERS, TIMES = 900, 8, 9


def post(server, prompt, n):
    start = time.monotonic()
    status, answer = server.post("/v1/completions", prompt=prompt, max_tokens=2, n=n, temperature=1, ignore_eos=True)
    assert status == 200, answer
    return (time.monotonic() - start) * 1e3


def measure(model, flags):
    server = Server(model, *flags)
    try:
        prompts = [[random.randrange(300, 900) for _ in range(PROMPT)] for _ in range(2 * TIMES)]
        many = [post(server, p, ANSWERS) for p in prompts[:TIMES]]
        again = [post(server, p, 1) for p in prompts[TIMES:] if post(server, p, 1)]
    finally:
        server.stop()
    return statistics.median(many), statistics.median(again)


def main():
    print("| model | prefix cache | %d answers | once more |\n|---|---|---|---|" % ANSWERS)
    for model in sys.argv[1:] or ["models/story", "tests/models/qwen3_5"]:
        for name, flags in ("yes", []), ("no", ["--no-enable-prefix-caching"]):
            print("| %s | %s | %.0f | %.1f |" % ((model, name) + measure(model, flags)))


if __name__ == "__main__":
    main()
