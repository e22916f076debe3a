"""Screening of the head without a GPU: tests/ptx/machine.h. Three random cases, or twelve
(parts.py), of five seconds each."""
import random
import unittest

from parts import TAKES_ALL
from ptx_machine import alone


class Screening(unittest.TestCase):
    test_screening = alone("test_argmax_filter", str(random.randint(1, 10**6)), "12" if TAKES_ALL else "3",
                           "small")


if __name__ == "__main__":
    unittest.main()
