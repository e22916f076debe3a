"""A model over two cards, and two models on two, without a GPU: tests/ptx/machine.h. Two
of the tests, and two models by turns or from two threads, drawn anew each time (parts.py)."""
import os
import unittest

from parts import one_of, part, some_tests
from ptx_machine import MACHINE, ops, runs

TWO = {"GYRE_PTX_DEVICES": "2", "GYRE_PTX_PROCESSORS": "8"}


@some_tests(2)
class Ranks(unittest.TestCase):
    test_meetings = runs(os.path.join(MACHINE, "test_meeting"), GYRE_PTX_DEVICES="4")
    test_two_devices = runs(os.path.join(MACHINE, "test_two_devices"), GYRE_TEST_BRIEF="1", **TWO,
                            **one_of(("one_after_the_other*", "from_two_threads")))
    test_ranks = ops("test_ranks_engine", GYRE_TEST_ONLY="ranks_give*", **TWO)
    test_eight_bits = ops("test_ranks_engine", GYRE_TEST_ONLY="eight*", **TWO)
    test_whole_experts = ops("test_ranks_engine", GYRE_TEST_ONLY="*whole_experts*", **part(4), **TWO)
    test_unscaled_products = ops("test_ranks_engine", GYRE_TEST_ONLY="eight*", GYRE_LINEAR="split_k", **TWO)


if __name__ == "__main__":
    unittest.main()
