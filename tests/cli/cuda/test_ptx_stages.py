"""A model in stages on two cards, without a GPU: tests/ptx/machine.h."""
import unittest

from ptx_machine import ops


class Stages(unittest.TestCase):
    test_two_cards = ops("test_stages", GYRE_TEST_ONLY="stages_of_that*", GYRE_PTX_DEVICES="2", GYRE_PTX_PROCESSORS="8")


if __name__ == "__main__":
    unittest.main()
