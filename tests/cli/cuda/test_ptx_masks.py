"""Masks of grammars and a screened head without a GPU: tests/ptx/machine.h. With few multiprocessors each has several
tiles of the head."""
import os
import random
import unittest

from parts import TAKES_ALL, part
from ptx_machine import MACHINE, ops, runs


class Masks(unittest.TestCase):
    test_kernels = runs(os.path.join(MACHINE, "test_argmax_filter"), str(random.randint(1, 10**6)),
                        "4" if TAKES_ALL else "2", "small", GYRE_PTX_PROCESSORS="4")
    test_rows = ops("test_ops_head", GYRE_ARGMAX_FILTER="500", **part(6))
    test_answers = ops("test_screened_masks")


if __name__ == "__main__":
    unittest.main()
