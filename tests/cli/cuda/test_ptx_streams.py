"""Products by streams without a GPU: tests/ptx/machine.h. A minute of a processor."""
import unittest

from ptx_machine import alone


class Streams(unittest.TestCase):
    test_streams = alone("test_gemv")


if __name__ == "__main__":
    unittest.main()
