"""Whole layers on the CUDA backend as on the CPU, without a GPU: tests/ptx/machine.h. One of six cases, drawn anew each
time; which, and the seed, are in what a failure prints."""
import random
import unittest

from ptx_machine import ops

PARTS = 6


class Layers(unittest.TestCase):
    test_layers = ops("test_ops_layer", GYRE_TEST_PART="%d/%d" % (random.randint(1, PARTS), PARTS))
    test_layers_near = ops("test_ops_layer", GYRE_L2_COPIES="force", GYRE_LINEAR="split_k",
                           GYRE_TEST_PART="%d/%d" % (random.randint(1, PARTS), PARTS))


if __name__ == "__main__":
    unittest.main()
