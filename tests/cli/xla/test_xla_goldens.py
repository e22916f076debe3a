"""Every family's checkpoint against its golden.json on --device xla, with a PJRT plugin for the CPU from PyPI:
logits to 2e-3, tokens, in one ragged step, in chunks, four prompts side by side. A tenth of the trained
models and a few of those with random weights, drawn anew each time (parts.py); which, and the seed, are in what a
failure prints. What goes in one step is another tenth than what goes in small steps.

Not in make test-fast: XLA compiles some hundred programs."""
import os, random, subprocess, unittest

from packages import ROOT
from parts import part
from xla_plugin import environment

BUILD = os.path.join(ROOT, os.environ.get("BUILD", "build/release"))
RANDOM_MODELS = 24  # one of so many is taken
SEED = os.environ.get("GYRE_TEST_SEED") or str(random.randint(1, 10**9))
TENTH = int(SEED) % 10  # which are whose depends on the seed


def ways(name, **asked):
    def test(self):
        p = subprocess.run([os.path.join(BUILD, "tests", name)], cwd=ROOT, text=True, errors="replace",
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           env=dict(environment(self), GYRE_TEST_BACKEND="xla", GYRE_TEST_DTYPE="float32", **asked))
        self.assertEqual(p.returncode, 0, f"{asked} {p.stdout[:300]} ... {p.stdout[-3000:]}")

    return test


def trained(way, turn=0):
    return ways("test_goldens", GYRE_TEST_ONLY=way + "*", GYRE_TEST_MODELS="trained", GYRE_TEST_SEED=SEED,
                **part(10, (TENTH + turn) % 10 + 1))


def random_ones(way):
    return ways("test_goldens", GYRE_TEST_ONLY=way + "*", GYRE_TEST_MODELS="random", **part(RANDOM_MODELS))


class Goldens(unittest.TestCase):
    test_in_one_step = trained("prompts_in_one_ragged_step")
    test_four_in_small_steps = trained("four_prompts_in_small_steps", 1)
    test_in_rings = ways("test_goldens", GYRE_TEST_ONLY="models_with_windows*", GYRE_TEST_MODELS="trained", **part(4))
    test_random_models_in_one_step = random_ones("prompts_in_one_ragged_step")
    test_random_models_in_chunks = random_ones("prompts_in_chunks_of_64")
    test_random_models_token_by_token = random_ones("prompts_fed_token_by_token")
    test_random_models_in_small_steps = random_ones("four_prompts_in_small_steps")


class Draws(unittest.TestCase):
    test_seeds_draw_what_the_reference_draws = ways("test_sample_rows")


if __name__ == "__main__":
    unittest.main()
