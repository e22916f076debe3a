"""Screening of the head without a GPU: tests/ptx/machine.h. A minute of a processor, so it stands alone."""
import random
import unittest

from ptx_machine import alone


class Screening(unittest.TestCase):
    test_screening = alone("test_argmax_filter", str(random.randint(1, 10**6)), "12", "small")


if __name__ == "__main__":
    unittest.main()
