"""What stands between products, and graphs of them, without a GPU: tests/ptx/machine.h."""
import unittest

from ptx_machine import alone


class Backend(unittest.TestCase):
    test_nodes = alone("test_nodes")
    test_graphs = alone("test_graphs")


if __name__ == "__main__":
    unittest.main()
