"""Every family's checkpoint against its golden.json on --device xla, with a PJRT plugin for the CPU from PyPI:
logits to 2e-3, tokens, in one ragged step, in chunks, four prompts side by side. Of the models with random weights a
few, drawn anew each time; which, and the seed, are in what a failure prints.

Not in make test-fast: XLA compiles some hundred programs."""
import os, random, subprocess, unittest

from packages import ROOT
from xla_plugin import environment

BUILD = os.path.join(ROOT, os.environ.get("BUILD", "build/release"))
RANDOM_MODELS = 8  # one of so many is taken


def ways(name, **asked):
    def test(self):
        p = subprocess.run([os.path.join(BUILD, "tests", name)], cwd=ROOT, text=True, errors="replace",
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           env=dict(environment(self), GYRE_TEST_BACKEND="xla", GYRE_TEST_DTYPE="float32", **asked))
        self.assertEqual(p.returncode, 0, f"{p.stdout[:300]} ... {p.stdout[-3000:]}")

    return test


def goldens(way, models):
    part = {} if models == "trained" else {"GYRE_TEST_PART": f"{random.randint(1, RANDOM_MODELS)}/{RANDOM_MODELS}"}
    return ways("test_goldens", GYRE_TEST_ONLY=way + "*", GYRE_TEST_MODELS=models, **part)


class Goldens(unittest.TestCase):
    test_in_one_step = goldens("prompts_in_one_ragged_step", "trained")
    test_four_in_small_steps = goldens("four_prompts_in_small_steps", "trained")
    test_in_rings = goldens("models_with_windows", "trained")
    test_random_models_in_one_step = goldens("prompts_in_one_ragged_step", "random")
    test_random_models_in_chunks = goldens("prompts_in_chunks_of_64", "random")
    test_random_models_token_by_token = goldens("prompts_fed_token_by_token", "random")
    test_random_models_in_small_steps = goldens("four_prompts_in_small_steps", "random")


class Draws(unittest.TestCase):
    test_seeds_draw_what_the_reference_draws = ways("test_sample_rows")


if __name__ == "__main__":
    unittest.main()
