/* decode_warp_shape.cuh - of decode_warp.cuh: sizes, a warp's sums and places, loads from shared memory. */
#pragma once

#include "backend/cuda/attention/decode/decode_join.cuh"
#include "backend/cuda/value.h"

namespace {

/* TEAM warps take a pair together, its stages in turn; at its end each finishes OWN of the pieces of channels. */
template <int TEAM_> struct warp_shape {
    static constexpr int TEAM = TEAM_, BLOCKS = TEAM, WARPS = 8 / BLOCKS, THREADS = 32 * WARPS,
                         TEAMS = WARPS / TEAM;          // of an SM; of a block
    static constexpr int KEYS = 32, STEP = TEAM * KEYS; // of a stage; from a warp's stage to its next
    static constexpr int N_STAGES = TEAM > 1 ? 2 : 3,
                         N_BEGUN = TEAM > 1 ? 1 : N_STAGES; // of a warp; those asked for before queries
    static constexpr int DIM = 128, COLUMNS = 8, PIECES = DIM / 16, M_TILES = KEYS / 16, OWN = PIECES / TEAM;
    static constexpr int SIDE = KEYS * DIM, SCALES = 2 * SIDE,
                         STAGE = SCALES + 2 * KEYS * 4;            // keys, values, their scales
    static constexpr int ENDS = (PIECES - OWN) * 512;              // sums of pieces that are another's
    static constexpr int MAIL = TEAM > 1 ? ENDS + COLUMNS * 8 : 0; // those, base and total: what a warp leaves its team
    static constexpr int SHARED = WARPS * (N_STAGES * (STAGE + 8) + MAIL) + 128;
    static_assert(STAGE % 128 == 0, "the swizzle");
    static_assert(
        TEAM <= 2,
        "a sequence in parts has two at least, and as many counters: one for each of a team (join_warp_parts)");
};

constexpr float WARP_UNIT = 32,
                MOST_P =
                    1024; // P is multiplied by WARP_UNIT; sums of a lane's of a stage that pass MOST_P raise the base

/* Of a pair. */
struct warp_sums {
    float o[8][4];
    float base[2], l[2]; // what scores of the columns are taken from; sums of P of this lane's keys
    float reference;     // a power of two, no less than any scale of values yet

    __device__ void clear_sums() {
#pragma unroll
        for (int c = 0; c < 8; c++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                o[c][k] = 0;
    }
    __device__ void clear() {
        clear_sums();
        base[0] = base[1] = l[0] = l[1] = reference = 0;
    }
};

/* Where a lane stands in a stage. */
struct warp_place {
    int lane, group, quarter;
    uint32_t rows; // row lane % 16 of a panel, piece lane / 16, as ldmatrix takes it

    __device__ warp_place() {
        lane = threadIdx.x % 32, group = lane / 4, quarter = lane % 4;
        rows = lane % 16 * 128 + kv_swizzled(128, lane, lane / 16 * 16);
    }
};

__device__ float load_shared_float(uint32_t at) {
    float x;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(at) : "memory");
    return x;
}

__device__ float4 load_shared_floats(uint32_t at) {
    float4 x;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "r"(at)
                 : "memory");
    return x;
}
__device__ void store_shared_floats(uint32_t at, float4 x) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w)
                 : "memory");
}

} // namespace
