"""The machine that runs kernels without a GPU, and with it the products of many rows, each by itself: tests/ptx,
tests/cuda. Of the four largest programs two run, drawn anew each time (parts.py)."""
import unittest

from parts import some_tests
from ptx_machine import alone


class Machine(unittest.TestCase):
    test_lanes_warps_and_clusters = alone("test_machine")
    test_copies_that_land_late = alone("test_copies")
    test_matrices = alone("test_matrices")


class Kernels(unittest.TestCase):
    test_weights_as_they_are_placed = alone("test_place")
    test_experts_of_four_bits_as_they_are_placed = alone("test_place_blocks")
    test_sides_of_the_cache = alone("test_l2_topology")
    test_gemm_w4 = alone("test_gemm_w4")


@some_tests(2)
class Fp8(unittest.TestCase):
    test_quantise = alone("test_quantise")
    test_gemm_fp8_small_m = alone("test_gemm_fp8_small_m")
    test_gemm_fp8_gated = alone("test_gemm_fp8_gated")
    test_gemm_fp8_prefill = alone("test_gemm_fp8_prefill")


if __name__ == "__main__":
    unittest.main()
