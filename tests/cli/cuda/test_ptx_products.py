"""The machine that runs kernels without a GPU, and with it the products of many rows, each by itself: tests/ptx,
tests/cuda."""
import unittest

from ptx_machine import alone


class Machine(unittest.TestCase):
    test_lanes_warps_and_clusters = alone("test_machine")
    test_copies_that_land_late = alone("test_copies")
    test_matrices = alone("test_matrices")


class Kernels(unittest.TestCase):
    test_weights_as_they_are_placed = alone("test_place")
    test_experts_of_four_bits_as_they_are_placed = alone("test_place_blocks")
    test_sides_of_the_cache = alone("test_l2_topology")
    test_quantise = alone("test_quantise")
    test_gemm_fp8_small_m = alone("test_gemm_fp8_small_m")
    test_gemm_fp8_gated = alone("test_gemm_fp8_gated")
    test_gemm_fp8_prefill = alone("test_gemm_fp8_prefill")
    test_gemm_w4 = alone("test_gemm_w4")


if __name__ == "__main__":
    unittest.main()
