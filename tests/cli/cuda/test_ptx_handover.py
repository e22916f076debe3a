"""A prompt's cache from one card to another, without a GPU: tests/ptx/machine.h. Two of the tests, drawn
anew each time (parts.py)."""
import unittest

from parts import some_tests
from ptx_machine import alone, ops


@some_tests(2)
class Handover(unittest.TestCase):
    test_kernels = alone("test_handed")
    test_one_engine = ops("test_handover", GYRE_TEST_ONLY="an_answer*")
    test_another_window = ops("test_handover", GYRE_TEST_ONLY="what_is_behind_another*")


if __name__ == "__main__":
    unittest.main()
