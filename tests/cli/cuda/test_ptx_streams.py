"""Products by streams without a GPU: tests/ptx/machine.h. Of the
shapes of models an eighth, drawn anew each time (parts.py): all of them take a minute of a processor."""
import os
import unittest

from parts import part
from ptx_machine import MACHINE, runs


class Streams(unittest.TestCase):
    test_streams = runs(os.path.join(MACHINE, "test_gemv"), GYRE_TEST_BRIEF="1", **part(8))


if __name__ == "__main__":
    unittest.main()
