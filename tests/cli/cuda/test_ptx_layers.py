"""Whole layers on the CUDA backend as on the CPU, without a GPU: tests/ptx/machine.h. A thirtieth of the cases, drawn
anew each time (parts.py); which, and the seed, are in what a failure prints."""
import unittest

from parts import part
from ptx_machine import ops

PARTS = 30


class Layers(unittest.TestCase):
    test_layers = ops("test_ops_layer", **part(PARTS))
    test_layers_near = ops("test_ops_layer", GYRE_L2_COPIES="force", GYRE_LINEAR="split_k",
                           **part(PARTS))


if __name__ == "__main__":
    unittest.main()
