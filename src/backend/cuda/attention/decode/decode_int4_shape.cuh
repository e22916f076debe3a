/* decode_int4_shape.cuh - of attention_decode_int4.cu: sizes of a kernel, where a tile lies in a stage, and who brings
 * it.
 *
 * A stage is a tile of 64 slots of a KV head, a whole block of it: four pieces of the cache as they lie there
 * (kv_int4.cuh).
 *
 *     keys          [byte][64 slots]     bulk copies of DIM / 2 * 64 bytes
 *     values        [64 slots][byte]
 *     key scales    [group][64 slots]    and of DIM / 32 * 128 bytes
 *     value scales  [64 slots][group] */
#pragma once

#include "backend/cuda/attention/decode/decode_feed.cuh"
#include "backend/cuda/attention/decode/decode_join.cuh"
#include "backend/cuda/attention/kv_int4.cuh"

namespace {

template <int DIM_> struct shape_int4 {
    static constexpr int DIM = DIM_, N_TILES = 1, COLUMNS = 8;
    static constexpr bool PREPARES = false;
    static constexpr float ROTATION = DIM == 64    ? 0.125f
                                      : DIM == 128 ? 0.088388347648318447f
                                                   : 0.0625f;           // sqrt(1 / DIM)
    static constexpr int GROUPS = DIM / KV_INT4_GROUP, CODES = DIM / 2; // of a row; bytes
    static constexpr int VALUES = CODES * TILE, KEY_SCALES = 2 * VALUES, VALUE_SCALES = KEY_SCALES + GROUPS * TILE * 2;
    static constexpr int STAGE = VALUE_SCALES + GROUPS * TILE * 2;
    static constexpr int COMPUTE = KEY_WARPS * 32, THREADS = COMPUTE + 64;
    static constexpr int MERGE_ROW = DIM + 4; // floats; 4 keep the stores of a warp in different banks
    static constexpr int MERGE = KEY_WARPS * COLUMNS * MERGE_ROW * 4, QUERY = 0;
    static constexpr int MAX_ROW = DIM * 4 + 32; // of a query as it comes
    static constexpr int FIXED = MERGE + COLUMNS * MAX_ROW + (2 * KEY_WARPS + 3) * COLUMNS * 4 +
                                 2 * (COLUMNS * 24 + 80) + (2 * MAX_STAGES + 4) * 8;
    static constexpr int BLOCKS = DIM <= 128 ? 2 : 1; // an SM: sums of more take its registers and memory
    static constexpr int BUDGET = (BLOCKS == 1 ? 226 : 112) * 1024 - FIXED;
    static constexpr int N_STAGES = BUDGET / STAGE < MAX_STAGES ? BUDGET / STAGE : MAX_STAGES;
    static constexpr int SHARE = 1, SHARED = FIXED + N_STAGES * STAGE + 128;
    static_assert(N_STAGES >= KEY_WARPS, "each warp has a tile");
    static_assert(STAGE % 128 == 0, "pieces are whole lines");
};

/* Lanes 0 to 3 bring the pieces of a tile. */
template <int DIM, class M> struct lane_copies<shape_int4<DIM>, M> {
    typedef shape_int4<DIM> S;
    const M &m;
    const char *from; // in block 0, of KV head 0
    int64_t block_bytes;
    int lane, n_bytes;
    uint32_t to;   // in stage 0
    ring_place at; // with the parity that `empty` has when it may be written

    __device__ lane_copies(const arguments &p, const M &memory) : m(memory) {
        int4_shape shape = {p.a.n_kv_heads, DIM, DIM, TILE};
        lane = threadIdx.x % 32;
        bool scales = lane >= 2;
        int64_t piece = lane == 0 ? shape.keys() : lane == 1 ? shape.values() : lane == 2 ? 0 : shape.value_scales();
        from = static_cast<const char *>(p.cache.at) + piece;
        block_bytes = p.cache.block_elements;
        n_bytes = scales ? S::GROUPS * TILE * 2 : S::CODES * TILE;
        to = m.ring + (lane == 0 ? 0 : lane == 1 ? S::VALUES : lane == 2 ? S::KEY_SCALES : S::VALUE_SCALES);
        at = {0, 1};
    }
    /* All of a block, whatever of it is seen: n is 0 where there is none. */
    __device__ void take(int id, int kv, int, int n) {
        uint32_t full = m.full + at.stage * 8;
        barrier_wait(m.empty + at.stage * 8, at.parity);
        if (lane == 0)
            barrier_expect(full, n > 0 ? S::STAGE : 0);
        __syncwarp();
        if (lane < 4 && n > 0)
            bulk_copy(to + at.stage * S::STAGE, from + id * block_bytes + (int64_t)kv * n_bytes, n_bytes, full);
        __syncwarp();
        at.next(S::N_STAGES);
    }
};

} // namespace
