/* ring.cuh - of the products whose operands come through a ring of stages in shared memory (gemm_fp8_small_m.cu,
 * gemm_fp8_gated.cu, gemm_fp8_split_k.cu, lm_head.cu, argmax_filter.cu): what they have in common of a thread. A stage
 * has 128 bytes of some rows, in the 128-byte swizzle that wgmma reads. */
#pragma once

#include "backend/cuda/value.h"

#include <stdint.h>

enum {
    PIECE_BYTES = 128, // of each row in a stage
    ATOM = 1024,       // of the swizzle: eight rows
    WARPGROUP = 128,
};

/* A place in the ring and which time round it is. */
struct ring_place {
    int slot, n_slots, parity;
    __device__ void step() {
        if (++slot == n_slots) {
            slot = 0;
            parity ^= 1;
        }
    }
    __device__ void skip(int n) {
        slot += n;
        parity ^= slot / n_slots & 1;
        slot %= n_slots;
    }
};

/* In a register: else the compiler finds out again at every use where shared memory lies, which is 50 clocks. */
static __device__ __forceinline__ uint32_t kept(uint32_t v) {
    asm volatile("" : "+r"(v));
    return v;
}
/* The same in all lanes, as the compiler sees it: what the tensor core is told must be the warp's, or every product
 * waits for its operands' way into uniform registers. */
static __device__ __forceinline__ uint32_t of_warp(uint32_t v) { return __shfl_sync(0xffffffffu, v, 0); }
