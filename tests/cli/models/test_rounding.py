"""--dtype bfloat16 on the CPU: activations are rounded where the processor can, and rows keep their bits."""
import os
import subprocess
import unittest

from serving import GYRE, ROOT, Server

STORY = os.path.join(ROOT, "models/story")
PROMPTS = ["Once upon a time", "The fox", "A mouse lived in a house, and", "Moon", "The old king said that he would"]


def has_bf16():
    try:
        with open("/proc/cpuinfo") as f:
            return "avx512_bf16" in f.read()
    except OSError:
        return False


def logprobs(server, prompt):
    r = server.post("/v1/completions", prompt=prompt, max_tokens=12, temperature=0, logprobs=1, ignore_eos=True)[1]
    return r["choices"][0]["logprobs"]["token_logprobs"]


class Refused(unittest.TestCase):
    def test_where_the_processor_or_the_plain_functions_cannot(self):
        words = [] if not has_bf16() else ["--device-option", "kernels=reference"]
        p = subprocess.run([GYRE, "run", STORY, "-p", "x", "-n", "1", "--dtype", "bfloat16", *words],
                           capture_output=True, text=True, timeout=60)
        self.assertEqual(p.returncode, 1)
        self.assertIn("AVX-512 BF16", p.stderr)


@unittest.skipUnless(has_bf16(), "this processor has no AVX-512 BF16")
class Rounding(unittest.TestCase):
    def served(self, *flags):
        s = Server("models/story", *flags)
        self.addCleanup(s.stop)
        return s

    def test_near_the_exact_ones_and_the_same_beside_others(self):
        exact, rounded = self.served("--dtype", "float32"), self.served("--dtype", "bfloat16")
        alone = [logprobs(rounded, p) for p in PROMPTS]
        for prompt, got in zip(PROMPTS, alone):
            wanted = logprobs(exact, prompt)
            self.assertLess(abs(got[0] - wanted[0]), 0.1)
        self.assertNotEqual(alone[0], logprobs(exact, PROMPTS[0]))
        r = rounded.post("/v1/completions", prompt=PROMPTS, max_tokens=12, temperature=0, logprobs=1,
                         ignore_eos=True)[1]
        self.assertEqual([c["logprobs"]["token_logprobs"] for c in r["choices"]], alone)

    def test_small_models_are_exact_by_themselves(self):
        self.assertEqual(logprobs(self.served(), PROMPTS[0]), logprobs(self.served("--dtype", "float32"), PROMPTS[0]))


if __name__ == "__main__":
    unittest.main()
