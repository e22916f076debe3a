"""Dense copies of caches (src/backend/xla/dense.h): sequences that come, go, are preempted and come back get the tokens
that the CPU gives them, and those that gathered keys and values give; what it counts says that copies were used. Three
of the tests, drawn anew each time (parts.py).

Not in make test-fast: XLA compiles some programs."""
import os, random, threading, unittest

from parts import some_tests
from serving import Server
from xla_plugin import environment

BLOCK_BYTES = 49152  # of 16 tokens of qwen3
COUNTS = ("gyre:filled_blocks_total", "gyre:drained_blocks_total", "vllm:num_preemptions_total",
          "vllm:prefix_cache_hits_total")
WORDS = "Once upon a time there was a little dog who lived in the big wood near a river and liked to sing".split()


@some_tests(3)
class Dense(unittest.TestCase):
    def answers(self, model, prompts, *flags):
        """Of all at once, greedily; and what the server counted."""
        os.environ.update(environment(self))
        server = Server("tests/models/" + model, "--served-model-name", "m", "--max-num-batched-tokens", "64",
                        "--block-size", "16", "--max-num-seqs", "8", *flags)
        self.addCleanup(server.stop)
        got = [None] * len(prompts)

        def ask(i):
            status, r = server.post("/v1/completions", model="m", prompt=prompts[i][0], max_tokens=prompts[i][1],
                                    temperature=0, ignore_eos=True)
            got[i] = r["choices"][0]["text"] if status == 200 else r

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(prompts))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        counts = {} if "cpu" in flags else {name: server.metric(name) for name in COUNTS}
        server.stop()
        return got, counts

    def compare(self, model, *flags, usual=("--device", "cpu")):
        seed = random.randrange(10**6)
        rng = random.Random(seed)
        prompts = [(" ".join(rng.choices(WORDS, k=rng.randint(1, 60))), rng.randint(1, 60)) for _ in range(20)]
        wanted, _ = self.answers(model, prompts, *usual)
        got, counts = self.answers(model, prompts, "--device", "xla", *flags)
        self.assertEqual(got, wanted, (seed, counts))
        return counts

    def test_sequences_come_and_go(self):
        counts = self.compare("llama")
        self.assertGreater(counts["gyre:filled_blocks_total"], 40)
        self.assertGreater(counts["gyre:drained_blocks_total"], 20) # rows that others took

    def told(self, model, seed, *flags):
        """Stories that are told on: each request begins with the tokens that were answered to the one before, so that
        it finds blocks that steps of one token have left in copies alone. Of the first nobody else takes the place;
        the others come and go beside each other."""
        os.environ.update(environment(self))
        server = Server("tests/models/" + model, "--served-model-name", "m", "--max-num-batched-tokens", "64",
                        "--block-size", "16", "--max-num-seqs", "4", *flags)
        self.addCleanup(server.stop)
        rng = random.Random(seed)
        told = [[[rng.randint(5, 200) for _ in range(rng.randint(1, 30))]] for _ in range(9)]
        counts_of_first = {}

        def tell(story, lengths):
            for n in lengths:
                status, r = server.post("/v1/completions", model="m", prompt=story[-1], max_tokens=n, temperature=0,
                                        ignore_eos=True, return_token_ids=True)
                self.assertEqual(status, 200, r)
                story.append(story[-1] + r["choices"][0]["token_ids"] + [5 + n])

        tell(told[0], [40, 20, 30])
        if "cpu" not in flags:
            counts_of_first = {name: server.metric(name) for name in COUNTS}
        threads = [threading.Thread(target=tell, args=(s, [rng.randint(1, 50) for _ in range(4)])) for s in told[1:]]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        server.stop()
        return told, counts_of_first

    def test_what_was_decoded_is_found_by_its_prefix(self):
        for model, *flags in (("qwen3",), ("gemma3", "--xla-steps", "4"), ("deepseek_v3",)):
            seed = random.randrange(10**6)
            wanted, _ = self.told(model, seed, "--device", "cpu")
            got, counts = self.told(model, seed, "--device", "xla", *flags)
            self.assertEqual(got, wanted, (model, seed, counts))
            self.assertGreater(counts["gyre:drained_blocks_total"], 0)
            self.assertGreater(counts["vllm:prefix_cache_hits_total"], 40)

    def test_windows_go_round(self):
        self.assertGreater(self.compare("gemma3", "--xla-steps", "4")["gyre:filled_blocks_total"], 40)

    def test_who_was_preempted_is_filled_anew(self):
        counts = self.compare("qwen3", "--max-model-len", "256", "--kv-cache-memory", str(24 * BLOCK_BYTES))
        self.assertGreater(counts["gyre:filled_blocks_total"], 40)
        self.assertGreater(counts["vllm:num_preemptions_total"], 0)

    def test_int8_has_copies_of_its_scales_too(self):
        how = ("--kv-cache-dtype", "int8", "--max-model-len", "256")
        for model in ("qwen3", "gemma3"):
            usual = ("--device", "xla", "--device-option", "dense=0", *how)
            self.assertGreater(self.compare(model, *how, usual=usual)["gyre:filled_blocks_total"], 40)

    def test_rings_are_beside_copies_of_any_length(self):
        counts = self.compare("gemma4", "--device-option", "rings=0", "--device-option", "blockwise=32",
                              "--xla-steps", "4")
        self.assertGreater(counts["gyre:filled_blocks_total"], 40)

    def test_without_memory_for_them_all_is_gathered(self):
        self.assertEqual(self.compare("llama", "--device-option", "dense=0")["gyre:filled_blocks_total"], 0)


if __name__ == "__main__":
    unittest.main()
