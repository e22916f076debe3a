"""Ops of the CUDA backend against double precision, without a GPU: their kernels run from PTX (tests/ptx/machine.h).
Four of the tests, and where there are many cases a part, drawn anew each time (parts.py); which, and the seed, are in
what a failure says."""
import unittest

from parts import part, some_tests
from ptx_machine import ops


@some_tests(4)
class Ops(unittest.TestCase):
    test_ops = ops("test_ops", **part(5))
    test_norms = ops("test_ops_norm", **part(4))
    test_heads = ops("test_ops_head", **part(2))
    test_experts = ops("test_ops_moe", **part(5))
    test_recurrent = ops("test_ops_recurrent", **part(3))
    test_recurrent_of_unscaled_products = ops("test_ops_recurrent", GYRE_LINEAR="library", GYRE_PTX_PROCESSORS="8",
                                              GYRE_TEST_ONLY="a_delta_layer_reads*")
    test_recurrent_in_bfloat16 = ops("test_ops_recurrent", GYRE_TEST_STATE="bfloat16", GYRE_TEST_ONLY="a_delta*")
    test_recurrent_on_few_processors = ops("test_ops_recurrent", GYRE_PTX_PROCESSORS="8", GYRE_TEST_ONLY="a_delta*")
    test_refusals = ops("test_ops_refusals")
    test_drawing = ops("test_sample_rows")


if __name__ == "__main__":
    unittest.main()
