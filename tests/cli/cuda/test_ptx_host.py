"""The host side of the CUDA backend on a device that computes nothing: tests/cuda/dry/device.h."""
import unittest

from ptx_machine import alone


class Host(unittest.TestCase):
    test_calls_that_fail = alone("dry/test_dry")


if __name__ == "__main__":
    unittest.main()
