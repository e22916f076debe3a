"""LINEAR and ATTENTION of the CUDA backend against double precision, without a GPU: tests/ptx/machine.h. Of LINEAR's
many cases one of twenty, drawn anew each time; which, and the seed, are in what a failure prints."""
import random
import unittest

from ptx_machine import ops

PARTS = 20


class Rows(unittest.TestCase):
    test_attention = ops("test_ops_attention")
    # Of so few multiprocessors one has several chunks of a task, and of five and seven tokens other tasks are cut.
    test_latent = ops("test_ops_latent", GYRE_PTX_PROCESSORS="2", GYRE_TEST_ONLY="latent*")
    test_absorbed = ops("test_ops_latent", GYRE_TEST_ONLY="absorbed*")
    test_rows = ops("test_ops_rows", GYRE_TEST_PART="%d/%d" % (random.randint(1, PARTS), PARTS))
    test_rows_near = ops("test_ops_rows", GYRE_L2_COPIES="force", GYRE_LINEAR="gated",
                         GYRE_TEST_PART="%d/%d" % (random.randint(1, PARTS), PARTS))


if __name__ == "__main__":
    unittest.main()
