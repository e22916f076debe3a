/* decode_bytes_shape.cuh - of attention_decode_bytes.cu: sizes, shared memory, and places of a thread.
 *
 * A number x is the sum of terms of e4m3, x = t0 + t1/16 + t2/256, each the rest of those before it: three terms hold
 * the 11 bits of a float16, two hold 8. Terms stand as further rows of the right operand: rows (term * N_TILES + n) * 8
 * + column. */
#pragma once

#include "backend/cuda/attention/decode/decode_join.cuh"
#include "backend/cuda/ptx/wgmma_e4m3.cuh"
#include "backend/cuda/value.h"

namespace {

constexpr int max_of(int a, int b) { return a > b ? a : b; }

/* SHARE blocks of a cluster share a pair. A tile is a chain of instructions and waits, so where registers allow it
 * something else goes on meanwhile: a block with a pair of its own takes TILES tiles at once; one of a cluster, which
 * has few of a pair and waits for their bytes, starts the scores of the next tile before the values of this one are
 * added (AHEAD). SHARED_KV as in decode_shape.cuh. PREPARES: QKV_PREP is done on the way (decode_prep.cuh). */
template <int DIM_, int N_TILES_, int SHARE_, bool SHARED_KV_ = false, bool PREPARES_ = false> struct byte_shape {
    static constexpr bool SHARED_KV = SHARED_KV_, PREPARES = PREPARES_;
    static constexpr int DIM = DIM_, N_TILES = N_TILES_, COLUMNS = 8 * N_TILES, SHARE = SHARE_;
    static constexpr element E = ELEMENT_E4M3;
    static constexpr bool BYTES = true;
    static constexpr int ROW = DIM, PANEL = ROW % 128 == 0 ? 128 : 64, N_PANELS = ROW / PANEL;
    static constexpr int COMPUTE = 128, THREADS = COMPUTE + 64;
    static constexpr int M_TILES = DIM / 64; // of channels
    static constexpr int TILES = DIM <= 128 && N_TILES == 1 && SHARE == 1 ? 2 : 1;
    static constexpr bool AHEAD = SHARE > 1;
    static constexpr int AT_ONCE = M_TILES < 4 ? M_TILES : 4; // of M_TILES, whose products are under way
    static constexpr int QUERY_TERMS = 3, P_TERMS = 2;
    static constexpr int QUERY_ROWS = COLUMNS * QUERY_TERMS, P_ROWS = COLUMNS * P_TERMS;
    static constexpr int QUERY = QUERY_ROWS * DIM, P = P_ROWS * TILE; // bytes
    static constexpr int KEY_ROW = SHARED_KV ? SHARED_KV_DIM : 0, SIDE = (ROW + KEY_ROW) * TILE;
    static constexpr int STAGE = SIDE + PANEL * 8;               // panels of 8 rows are aligned
    static constexpr int MAX_ROW = DIM * 4 + 32;                 // as in decode_shape.cuh
    static constexpr int LEFT = (4 * M_TILES + 4) * N_TILES + 1; // floats that a thread leaves to the first block
    static constexpr int MERGE = max_of(2 * 64 * COLUMNS * 4, (SHARE - 1) * LEFT * 512);
    static constexpr int FIXED = QUERY + 2 * TILES * P + MERGE + COLUMNS * MAX_ROW + 2 * (COLUMNS * 24 + 80) +
                                 (2 * MAX_STAGES + 6) * 8 + (2 * COLUMNS + 1) * KEY_WARPS * 4 + 2 * COLUMNS * 4 +
                                 (PREPARES ? 8 * DIM + 64 : 0);
    static constexpr int BLOCKS = DIM == 512 || (DIM == 256 && SHARE > 1) ? 1 : 2; // an SM
    static constexpr int BUDGET = (BLOCKS == 1 ? 226 : 109) * 1024 - FIXED;
    static constexpr int N_STAGES = BUDGET / STAGE < MAX_STAGES ? BUDGET / STAGE : MAX_STAGES,
                         SHARED = FIXED + N_STAGES * STAGE + 1024;
    static_assert(N_STAGES >= 2 * TILES && DIM % 64 == 0,
                  "at least keys and values of the tiles that are taken at once fit");

    static __device__ constexpr int moved(int channel) { return SHARED_KV ? kv_moved_512(channel) : channel; }
};

template <class S> struct byte_memory {
    uint32_t ring, full, empty, queries_full, queries_empty, task_empty; // addresses in shared memory
    uint32_t joined, merge_empty;                                        // of SHARE blocks: what they summed
    uint32_t query, weights;                                             // operands: queries; P of TILES tiles, twice
    char *stages, *queries;
    task<S> *tasks;
    float *merge, *largest, *sum, *factor,
        *query_factor; // [COLUMNS + 1][KEY_WARPS], [COLUMNS][KEY_WARPS], [COLUMNS] twice

    __device__ explicit byte_memory(char *base) {
        char *at = base + (1024 - (shared_address(base) & 1023)) % 1024;
        stages = at;
        ring = shared_address(at);
        at += S::N_STAGES * S::STAGE;
        query = shared_address(at);
        at += S::QUERY;
        weights = shared_address(at);
        at += 2 * S::TILES * S::P;
        merge = reinterpret_cast<float *>(at);
        at += S::MERGE;
        queries = at;
        at += S::COLUMNS * S::MAX_ROW;
        tasks = reinterpret_cast<task<S> *>(at);
        at += 2 * sizeof(task<S>);
        full = shared_address(at);
        empty = full + MAX_STAGES * 8;
        queries_full = empty + MAX_STAGES * 8;
        queries_empty = queries_full + 8;
        task_empty = queries_empty + 8;
        joined = task_empty + 16;
        merge_empty = joined + 8;
        largest = reinterpret_cast<float *>(at + (2 * MAX_STAGES + 6) * 8);
        sum = largest + KEY_WARPS * (S::COLUMNS + 1);
        factor = sum + KEY_WARPS * S::COLUMNS;
        query_factor = factor + S::COLUMNS;
    }
};

/* Where a computing thread stands: keys 16 warp + group and + 8 of a tile; channels 16 warp + 2 group and + 1 of
 * every 64. */
struct byte_place {
    int lane, warp, group, quarter;
    int values;  // offset in a stage of what this lane gives to ldmatrix
    int weights; // offset in P of what this lane writes there: a column of its own, four keys
    int odd;     // bytes that it keeps of its own and its neighbour's four
    int scales;  // offset in a stage of its first key's scale; the second's is 8 further

    __device__ byte_place(int panel, int side) { // side: bytes of a stage without the scales
        lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / 4, quarter = lane % 4;
        int column = 2 * quarter + group % 2;
        values = lane * panel + kv_swizzled(panel, lane, 16 * warp);
        weights = column * TILE + kv_swizzled(TILE, column, 16 * warp + 4 * (group / 2));
        odd = group % 2 ? 0x3715 : 0x6240;
        scales = side + (16 * warp + group) * 4;
        asm volatile(""
                     : "+r"(values), "+r"(weights), "+r"(odd), "+r"(scales)); // not to be computed again for every tile
    }
};

constexpr float P_UNIT = 16, P_SLACK = 4; // P is multiplied by P_UNIT, and passes 1 by 2^P_SLACK at most: 256 in all

template <class S> struct byte_sums {
    float o[S::M_TILES][S::N_TILES][4];       // [k]: channel 2 group + k / 2, column 2 quarter + k % 2
    float m[S::N_TILES][2], l[S::N_TILES][2]; // of the columns; l of this thread's keys alone
    float base[S::N_TILES][2];                // m, or 0 where no key was seen: what scores are taken from
    float reference, per_reference; // a power of two, no less than any scale of values yet; P_UNIT / reference

    __device__ void clear() {
        for (int i = 0; i < S::M_TILES; i++)
            for (int n = 0; n < S::N_TILES; n++)
                for (int k = 0; k < 4; k++)
                    o[i][n][k] = 0;
        for (int n = 0; n < S::N_TILES; n++)
            for (int k = 0; k < 2; k++) {
                m[n][k] = -INFINITY;
                l[n][k] = base[n][k] = 0;
            }
        reference = per_reference = 0;
    }
    __device__ void shrink(int n, float by0, float by1) {
#pragma unroll
        for (int i = 0; i < S::M_TILES; i++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                o[i][n][k] *= k % 2 ? by1 : by0;
    }
};

} // namespace
