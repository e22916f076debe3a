"""Drafts without a GPU: heads, blocks, states that go back, what predictors of mixtures and DSpark say, over the CUDA
backend from PTX (tests/ptx/machine.h). Two of the tests, drawn anew each time (parts.py); all of them run on a card."""
import unittest

from parts import some_tests
from ptx_machine import ops


@some_tests(2)
class Drafts(unittest.TestCase):
    test_heads = ops("test_draft_models", GYRE_TEST_ONLY="heads*")
    test_blocks = ops("test_draft_models", GYRE_TEST_ONLY="blocks*")
    test_fewer_get_guesses = ops("test_draft_models", GYRE_TEST_ONLY="fewer*")
    test_states = ops("test_draft_models", GYRE_TEST_ONLY="recurrent*")
    test_mixtures = ops("test_mixture_predictors", GYRE_TEST_ONLY="qwen3_5_with_experts_one*")
    test_dspark = ops("test_dspark", GYRE_TEST_ONLY="guesses_behind*")


if __name__ == "__main__":
    unittest.main()
