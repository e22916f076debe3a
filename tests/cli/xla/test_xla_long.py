"""Long contexts over a PJRT plugin for the CPU: rings of sliding layers, context in pieces, and growth from one to the
other; int8 caches, which are written by tiles. Tokens are those of the CPU. Goldens in rings: test_xla_goldens.py.
Of ways to cut steps, and to launch them, one is drawn anew each time (parts.py).

Not in make test-fast: XLA compiles some dozens of programs."""
import json, os, subprocess, threading, unittest

from packages import ROOT
from parts import some
from serving import Server
from xla_plugin import environment

GYRE = os.path.abspath(os.environ["GYRE"])
MODEL = "tests/models/gemma4"  # windows of 48 tokens, so rings of 128
PROMPT = "Once upon a time there was a"
RINGS = ("--device", "xla", "--device-option", "rings=0", "--device-option", "blockwise=256", "--device-option",
         "piece=64", "--max-num-batched-tokens", "32", "--block-size", "16")
PAGED = "--device-option", "dense=0"  # without copies, of which none is attended to in pieces


def ids(test, prompt, *flags):
    p = subprocess.run([GYRE, "run", os.path.join(ROOT, MODEL), "--prompt", prompt, "--no-chat", "--output", "json",
                        "--temperature", "0", "--ignore-eos", *flags],
                       capture_output=True, text=True, timeout=1000, env=environment(test))
    test.assertEqual(p.returncode, 0, p.stderr)
    return json.loads(p.stdout)["ids"]


class Int8(unittest.TestCase):
    def test_rows_leave_the_same_in_whatever_steps_they_come(self):
        """A row is rounded by itself: whole prompts, pieces that end within tiles, blocks of one tile and of two."""
        how = ("-n", "40", "--device", "xla", "--kv-cache-dtype", "int8")
        whole = ids(self, PROMPT * 6, *how)
        for steps in some((("--max-num-batched-tokens", "5"), ("--max-num-batched-tokens", "33", "--block-size", "16"),
                           ("--device-option", "rings=0", "--max-num-batched-tokens", "33"),
                           ("--device-option", "dense=0", "--max-num-batched-tokens", "1"))):
            self.assertEqual(ids(self, PROMPT * 6, *how, *steps), whole)


class Rings(unittest.TestCase):
    def test_a_sequence_grows_from_one_path_to_the_other(self):
        """Round the rings twice; its context is attended to at once up to 256 tokens, and in pieces beyond."""
        text = PROMPT * 25
        n = int(subprocess.run([GYRE, "tokenize", os.path.join(ROOT, MODEL), "-p", text, "--output", "count"],
                               capture_output=True, text=True).stdout)
        self.assertTrue(200 < n < 256 < n + 70, n)
        usual = ids(self, text, "-n", "70")
        self.assertEqual(ids(self, text, *RINGS, *PAGED, "-n", "70"), usual)
        for more in some((("--xla-steps", "8", *PAGED), ("--tensor-parallel-size", "2", *PAGED), ("--xla-steps", "8"))):
            self.assertEqual(ids(self, text, *RINGS, "-n", "70", *more), usual)

    def test_the_longest_sequence_chooses(self):
        for longest, word in ((512, "cache of a window of 48"), (513, "rings of 128 tokens")):
            server = Server(MODEL, *RINGS, "--device-option", "rings=512", "--max-model-len", str(longest),
                            env=environment(self))
            self.assertEqual(server.stop(), 0)
            self.assertIn(word, "".join(server.log))

    def test_what_is_no_number_is_refused(self):
        p = subprocess.run([GYRE, "run", os.path.join(ROOT, MODEL), "--device", "xla", "-p", "a", "--device-option",
                            "rings=x"], capture_output=True, text=True, timeout=100, env=environment(self))
        self.assertEqual((p.returncode, p.stderr.count("\n")), (1, 1), p.stderr)
        self.assertIn("rings=x", p.stderr)


class Served(unittest.TestCase):
    """Guesses are taken back, sequences give way, texts that begin alike go on from a checkpoint of their rings."""

    def serve(self, *flags):
        server = Server(MODEL, "--served-model-name", "m", *flags, env=environment(self))
        self.addCleanup(server.stop)
        return server

    def ask(self, server, prompt, n):
        status, r = server.request("POST", "/v1/completions", {
            "model": "m", "prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True}, timeout=1000)
        self.assertEqual(status, 200, r)
        return r["choices"][0]["text"], r["usage"]["prompt_tokens_details"]["cached_tokens"]

    def all_of(self, server, prompts, n):
        got = [None] * len(prompts)

        def one(i):
            got[i] = self.ask(server, prompts[i], n)[0]

        threads = [threading.Thread(target=one, args=(i,)) for i in range(len(prompts))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        return got

    def test_it_serves_as_the_cpu_does(self):
        guesses = ("--speculative-config", json.dumps({"method": "ngram", "num_speculative_tokens": 3}))
        cpu = self.serve()
        xla = self.serve(*RINGS, *guesses, "--kv-cache-memory", "2700000")  # two rings, and blocks for 1360 tokens
        prompts = [word + PROMPT * k for word, k in (("", 1), ("A dog. ", 9), ("One day ", 60), ("Lily had ", 62))]
        wanted = [self.ask(cpu, p, 250)[0] for p in prompts]
        self.assertEqual(self.all_of(xla, prompts, 250), wanted)
        for _ in range(6):  # one gives way where the long two are far along at once: guesses let either run ahead
            if xla.metric("vllm:num_preemptions_total") == 0:
                self.assertEqual(self.all_of(xla, prompts[2:], 250), wanted[2:])
        accepted = xla.metric("vllm:spec_decode_num_accepted_tokens_total")
        self.assertGreater(accepted, 0)
        self.assertGreater(xla.metric("vllm:spec_decode_num_draft_tokens_total"), accepted)
        self.assertGreater(xla.metric("vllm:num_preemptions_total"), 0)

    def test_texts_that_begin_alike_go_on_from_a_checkpoint(self):
        xla = self.serve(*RINGS, "--max-num-seqs", "2")
        first, n = self.ask(xla, PROMPT * 20, 20)
        again, n_again = self.ask(xla, PROMPT * 20, 20)
        self.assertEqual((again, n), (first, 0))
        self.assertGreaterEqual(n_again, 128)


if __name__ == "__main__":
    unittest.main()
