"""A model over two cards, and two models on two, without a GPU: tests/ptx/machine.h. Two
of the tests, and two models by turns or from two threads, drawn anew each time (parts.py)."""
import os
import unittest

from parts import one_of, part, some_tests
from ptx_machine import MACHINE, needs_machine, ops, runs
from serving import SMALL, Server

TWO = {"GYRE_PTX_DEVICES": "2", "GYRE_PTX_PROCESSORS": "8"}
APART = {"GYRE_PTX_NO_PEERS": "1"}  # a kernel that reaches for another card's memory ends the program


@some_tests(2)
class Ranks(unittest.TestCase):
    test_meetings = runs(os.path.join(MACHINE, "test_meeting"), GYRE_PTX_DEVICES="4")
    test_meetings_by_the_host = runs(os.path.join(MACHINE, "test_meeting"), GYRE_PTX_DEVICES="4", **APART)
    test_ranks_by_the_host = ops("test_ranks_engine", GYRE_TEST_ONLY="ranks_give*", **TWO, **APART)
    test_two_devices = runs(os.path.join(MACHINE, "test_two_devices"), GYRE_TEST_BRIEF="1", **TWO,
                            **one_of(("one_after_the_other*", "from_two_threads")))
    test_ranks = ops("test_ranks_engine", GYRE_TEST_ONLY="ranks_give*", **TWO)
    test_eight_bits = ops("test_ranks_engine", GYRE_TEST_ONLY="eight*", **TWO)
    test_whole_experts = ops("test_ranks_engine", GYRE_TEST_ONLY="*whole_experts*", **part(4), **TWO)
    test_unscaled_products = ops("test_ranks_engine", GYRE_TEST_ONLY="eight*", GYRE_LINEAR="split_k", **TWO)


@needs_machine
class Slow(unittest.TestCase):
    def test_that_sums_go_through_the_host_is_said(self):
        for env, flags, said in ((APART, (), "GPU 0 does not reach the memory of GPU 1"),
                                 ({}, ("--device-option", "peer-access=0"), "as peer-access=0 asks")):
            with self.subTest(said=said):
                server = Server(SMALL, "--device", "cuda", "-tp", "2", "--max-model-len", "64", "--max-num-seqs", "1",
                                "--device-option", "patience=3000", *flags,
                                env=dict(os.environ, GYRE_PLUGINS=MACHINE, **TWO, **env))
                self.addCleanup(lambda s=server: s.process.poll() is None and s.process.kill())
                self.assertIn(said, "".join(server.log))
                self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main()
