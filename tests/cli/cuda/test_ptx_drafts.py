"""Drafts without a GPU: heads, blocks and states that go back, over the CUDA backend from PTX (tests/ptx/machine.h).
Two of the tests, drawn anew each time (parts.py); all of them run on a card."""
import unittest

from parts import some_tests
from ptx_machine import ops


@some_tests(2)
class Drafts(unittest.TestCase):
    test_heads = ops("test_draft_models", GYRE_TEST_ONLY="heads*")
    test_blocks = ops("test_draft_models", GYRE_TEST_ONLY="blocks*")
    test_fewer_get_guesses = ops("test_draft_models", GYRE_TEST_ONLY="fewer*")
    test_states = ops("test_draft_models", GYRE_TEST_ONLY="recurrent*")


if __name__ == "__main__":
    unittest.main()
