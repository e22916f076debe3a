"""A server under load: 64 streams at a time, each with the tokens and log-probabilities that it has alone, in a cache
too small for all; and a short soak of mixed traffic (soak.py has the long one). Loopback only. Not in make test-fast:
the soak."""
import os
import random
import threading
import time
import unittest

from serving import Server
from soak import soak

STREAMS, REQUESTS = 64, 80


def random_body(rng, vocab_size):
    """Token ids, so that it is the same for models of any text; one of three beginnings, or none."""
    start = rng.randrange(4)
    prompt = [random.Random(start * 1000 + i).randrange(5, vocab_size) for i in range(70 if start else 0)]
    prompt += [rng.randrange(5, vocab_size) for _ in range(1 + rng.randrange(150 if rng.random() < 0.15 else 25))]
    return {
        "prompt": prompt, "max_tokens": rng.randint(1, 40), "logprobs": rng.randint(0, 2), "seed": rng.randrange(100),
        "ignore_eos": rng.random() < 0.5, "temperature": rng.choice((0, 0.7, 1.2)), "top_p": rng.choice((1, 0.9)),
        "top_k": rng.choice((0, 20)), "repetition_penalty": rng.choice((1, 1.2)), "priority": rng.choice((0, 0, 0, -1))
    }


def choice_of_stream(events):
    """Text, reason, tokens and their log-probabilities as one answer would have them."""
    text, reason, tokens, logprobs = "", None, [], []
    for c in (c for e in events if e != "[DONE]" for c in e["choices"]):
        text += c["text"]
        reason = c["finish_reason"] or reason
        if c.get("logprobs"):
            tokens += c["logprobs"]["tokens"]
            logprobs += c["logprobs"]["token_logprobs"]
    return text, reason, tokens, logprobs


class Exactness(unittest.TestCase):
    def crowd(self, model, vocab_size, memory):
        seed = os.environ.get("GYRE_TEST_SEED") or str(time.time_ns())
        print("GYRE_TEST_SEED=" + seed, flush=True)
        rng = random.Random(seed)
        server = Server(model, "--kv-cache-memory", memory, "--block-size", "16", "--max-num-batched-tokens", "160",
                        "--disable-log-requests")
        try:
            bodies = [random_body(rng, vocab_size) for _ in range(REQUESTS)]
            alone = [
                choice_of_stream(server.stream("/v1/completions", cache_salt="alone %d" % i, **b))
                for i, b in enumerate(bodies)
            ]
            delays = sorted(rng.random() * 0.15 for _ in bodies)
            got, places = [None] * REQUESTS, threading.Semaphore(STREAMS)

            def one(i):
                time.sleep(delays[i])
                with places:
                    got[i] = choice_of_stream(server.stream("/v1/completions", **bodies[i]))
            threads = [threading.Thread(target=one, args=(i,)) for i in range(REQUESTS)]
            [t.start() for t in threads]
            [t.join() for t in threads]
            for i in range(REQUESTS):
                self.assertEqual(got[i], alone[i], "request %d: %s" % (i, bodies[i]))
            n_preempted = server.metric("vllm:num_preemptions_total")
            print(
                "%s: %d preempted, %d of %d prompt tokens reused" %
                (model, n_preempted, server.metric("vllm:prefix_cache_hits_total"),
                 server.metric("vllm:prefix_cache_queries_total")), flush=True)
        finally:
            code = server.stop()
        self.assertEqual(code, 0)
        return n_preempted

    def test_64_streams_of_the_story_model(self):
        self.assertGreater(self.crowd("models/story", 4096, "5MiB"), 0)

    def test_64_streams_with_sliding_windows(self):
        self.assertGreater(self.crowd("tests/models/gemma4", 1024, "3MiB"), 0)

    def test_64_streams_with_recurrent_state(self):
        self.crowd("tests/models/qwen3_5", 1024, "4MiB")


class Soak(unittest.TestCase):
    def test_mixed_traffic_gets_right_answers_and_leaves_no_memory(self):
        wrong, done = soak(15)
        print(done)
        self.assertEqual(wrong, [])
        self.assertGreater(done["streamed"], 20)


if __name__ == "__main__":
    unittest.main()
