"""A model over two cards, and two models on two, without a GPU: tests/ptx/machine.h. Two models run
by turns or from two threads, drawn anew each time (parts.py)."""
import os
import unittest

from parts import one_of
from ptx_machine import MACHINE, ops, runs

TWO = {"GYRE_PTX_DEVICES": "2", "GYRE_PTX_PROCESSORS": "8"}


class Ranks(unittest.TestCase):
    test_meetings = runs(os.path.join(MACHINE, "test_meeting"), GYRE_PTX_DEVICES="4")
    test_two_devices = runs(os.path.join(MACHINE, "test_two_devices"), GYRE_TEST_BRIEF="1", **TWO,
                            **one_of(("one_after_the_other*", "from_two_threads")))
    test_ranks = ops("test_ranks_engine", **TWO)
    test_unscaled_products = ops("test_ranks_engine", GYRE_TEST_ONLY="eight*", GYRE_LINEAR="split_k", **TWO)


if __name__ == "__main__":
    unittest.main()
