"""EMBED, LINEAR and ATTENTION of the CUDA backend against double precision, without a GPU: tests/ptx/machine.h. Five of
the tests, and of many cases a part, drawn anew each time (parts.py); which, and the seed, are in what a failure
prints."""
import unittest

from parts import part, some_tests
from ptx_machine import ops


def part_of(name, parts, **environment):
    return ops(name, **part(parts), **environment)


@some_tests(5)
class Rows(unittest.TestCase):
    test_attention = part_of("test_ops_attention", 5)
    # Of so few multiprocessors one has several chunks of a task, and of five and seven tokens other tasks are cut.
    test_latent = ops("test_ops_latent", GYRE_PTX_PROCESSORS="2", GYRE_TEST_ONLY="latent*")
    test_absorbed = ops("test_ops_latent", GYRE_TEST_ONLY="absorbed*")
    test_rows = part_of("test_ops_rows", 28)
    test_linear = part_of("test_ops_linear", 28)
    test_linear_by_e4m3 = part_of("test_ops_linear_e4m3", 28)
    test_gated = part_of("test_ops_gated", 28)
    test_linear_near = part_of("test_ops_linear_e4m3", 28, GYRE_L2_COPIES="force", GYRE_LINEAR="gated")
    test_gated_near = part_of("test_ops_gated", 28, GYRE_L2_COPIES="force", GYRE_LINEAR="gated")


if __name__ == "__main__":
    unittest.main()
