/* prefill_halves.cuh - of attention_prefill_halves.cu: what a block of threads has in shared memory, and what its
 * copying warps do.
 *
 *     queries   [8 panels][64 rows][128 bytes]          e4m3 twice, prefill_rows.cuh
 *     keys      [2 warpgroups][4 panels][64 keys][128]  of a warpgroup's half of a step's keys
 *     values    [2 warpgroups][2 panels][128 keys][128] of a warpgroup's half of the channels
 *     weights   [2 steps][2 terms][64 rows][128 keys]   P, of both warpgroups: wgmma's right operand
 *     scales    [2 warpgroups][2 steps][keys 64, values 64]
 *
 * Each of the four copying warps feeds one of the four buffers of keys and values, which a single warpgroup reads. */
#pragma once

#include "backend/cuda/attention/prefill/prefill_bytes.cuh"
#include "backend/cuda/value.h"

namespace {

struct halves {
    static constexpr int DIM = 512;
    static constexpr element E = ELEMENT_E4M3;
    static constexpr bool BYTES = true, BF16 = false, KEYS_AS_THEY_ARE = true;
    static constexpr int SHARERS = 2, ROWS = 64, KEYS = 64, STEP = GROUPS * KEYS, CHANNELS = DIM / GROUPS;
    static constexpr int PANEL = 128 * KEYS, RAW_WIDTH = 128, RAW_PANEL = PANEL;
    static constexpr int N_PANELS = 2 * DIM / 128, QUERY_PANEL = ROWS * 128, QUERY = N_PANELS * QUERY_PANEL;
    static constexpr int SIDE = KEYS * DIM;                      // of keys or values
    static constexpr int TERM = ROWS * STEP, WEIGHTS = 2 * TERM; // of P
    static constexpr int KEYS_AT = QUERY, VALUES_AT = KEYS_AT + GROUPS * SIDE, WEIGHTS_AT = VALUES_AT + GROUPS * SIDE;
    static constexpr int SCALES_AT = WEIGHTS_AT + 2 * WEIGHTS, LARGEST_AT = SCALES_AT + GROUPS * 2 * 2 * KEYS * 4;
    static constexpr int SHRINK_AT = LARGEST_AT + GROUPS * ROWS * 4, REFERENCE_AT = SHRINK_AT + ROWS * 2;
    static constexpr int BARRIERS_AT = REFERENCE_AT + GROUPS * 4,
                         SHARED = BARRIERS_AT + 4 * GROUPS * 8 + (WARP_ARRIVALS > 1 ? 8 : 0);
    static constexpr int COPY_REGISTERS = 24, COMPUTE_REGISTERS = 240;
    static_assert(STEP == 128 && SHARED <= 227 * 1024, "a row of P is a panel's, and a block has room");
};

/* Addresses in shared memory, and the barriers: of keys and of values of a warpgroup, when they are there (full) and
 * left (empty). */
template <> struct memory<halves> {
    typedef halves S;
    char *base; // a multiple of 1,024
    uint32_t query;
    int group; // whose keys and values are meant

    __device__ memory(char *shared, int group_) : base(shared), query(shared_address(shared)), group(group_) {}
    __device__ char *at(uint32_t address) const { return base + (address - query); }
    __device__ float *floats(int from) const { return reinterpret_cast<float *>(base + from); }

    __device__ uint32_t keys(int) const { return query + S::KEYS_AT + group * S::SIDE; }
    __device__ uint32_t values(int) const { return query + S::VALUES_AT + group * S::SIDE; }
    __device__ uint32_t weights(int step) const { return query + S::WEIGHTS_AT + (step & 1) * S::WEIGHTS; }
    __device__ uint32_t key_scales(int step) const {
        return query + S::SCALES_AT + (group * 2 + (step & 1)) * 2 * S::KEYS * 4;
    }
    __device__ uint32_t value_scales(int step) const { return key_scales(step) + S::KEYS * 4; }
    __device__ uint32_t row_scales() const { return query + S::LARGEST_AT; } // until the first step is done
    __device__ float *largest() const { return floats(S::LARGEST_AT); }      // [warpgroup][row]
    __device__ __nv_bfloat16 *shrink(int) const {
        return reinterpret_cast<__nv_bfloat16 *>(base + S::SHRINK_AT);
    }                                                                       // [row]
    __device__ float *reference() const { return floats(S::REFERENCE_AT); } // [warpgroup]

    __device__ uint32_t key_full(int = 0) const { return query + S::BARRIERS_AT + group * 32; }
    __device__ uint32_t key_empty() const { return key_full() + 8; }
    __device__ uint32_t value_full(int = 0) const { return key_full() + 16; }
    __device__ uint32_t value_empty() const { return key_full() + 24; }

    /* Both warpgroups meet here. racecheck and synccheck name the named barrier, which is at two places of the program;
     * in a build for them it is one in shared memory, with which racecheck is clean, and `any` is always so. */
    __device__ uint32_t meeting() const { return query + S::SHARED - 8; }
    __device__ void meet() const {
        if constexpr (WARP_ARRIVALS > 1)
            barrier_meet(meeting());
        else
            threads_sync(BOTH, COMPUTE);
    }
    __device__ bool any(bool x) const {
        if constexpr (WARP_ARRIVALS > 1)
            meet();
        return WARP_ARRIVALS > 1 || threads_any(BOTH, COMPUTE, x);
    }

    __device__ void start() const { // of this warpgroup
        barrier_init(key_full(), 1);
        barrier_init(value_full(), 1);
        barrier_init(key_empty(), 4 * WARP_ARRIVALS); // a warp each
        barrier_init(value_empty(), 4 * WARP_ARRIVALS);
        if (WARP_ARRIVALS > 1 && group == 0)
            barrier_init(meeting(), COMPUTE);
    }
};

/* A copying warp, of keys or of values. */
__device__ void feed(const memory<halves> &m, const source &s, bool keys, int n_steps) {
    for (int i = 0; i < n_steps; i++) {
        int tile = s.first + i * halves::STEP;
        barrier_wait(keys ? m.key_empty() : m.value_empty(), (i & 1) ^ 1);
        if (keys)
            copy_step_keys(m, s, tile + m.group * halves::KEYS, i);
        else
            copy_step_values(m, s, tile, m.group * (halves::CHANNELS / 128), i);
    }
}

} // namespace
