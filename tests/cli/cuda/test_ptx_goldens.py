"""Checkpoints of many families against the float32 reference, on the CUDA backend and without a GPU:
tests/ptx/machine.h. Of 45 models one for each way that is asked for here, drawn anew each time; which, and the seed,
are in what a failure prints. All of them, with GYRE_TEST_ALL=1 (parts.py), take some ten minutes a way."""
import unittest

from parts import part
from ptx_machine import ops

MODELS = 45


def one_model(way, **environment):
    return ops("test_goldens", GYRE_TEST_ONLY=way + "*", **part(MODELS), **environment)


class Goldens(unittest.TestCase):
    test_in_one_step = one_model("prompts_in_one_ragged_step")
    test_in_small_steps = one_model("four_prompts_in_small_steps", GYRE_TEST_DTYPE="float32")
    test_in_chunks = one_model("prompts_in_chunks_of_64", GYRE_TEST_DTYPE="bfloat16")


if __name__ == "__main__":
    unittest.main()
