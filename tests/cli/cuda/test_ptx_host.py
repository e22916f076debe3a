"""The host side of the CUDA backend on a device that computes nothing: tests/cuda/dry/device.h. Of the calls
of a start and two requests a third fails, drawn anew each time (parts.py)."""
import os
import unittest

from parts import TAKES_ALL
from ptx_machine import MACHINE, runs


class Host(unittest.TestCase):
    test_calls_that_fail = runs(os.path.join(MACHINE, "dry/test_dry"),
                                **({} if TAKES_ALL else {"GYRE_TEST_BRIEF": "1"}))
    test_what_a_start_says = runs(os.path.join(MACHINE, "dry/test_warnings"))
    test_what_is_kept_as_it_is_stored = runs(os.path.join(MACHINE, "dry/test_quads"))


if __name__ == "__main__":
    unittest.main()
