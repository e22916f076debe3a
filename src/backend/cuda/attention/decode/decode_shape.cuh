/* decode_shape.cuh - of attention_decode.cu: sizes of a kernel, what it is given, and its shared memory. What it is
 * given, and a pair's description, are attention_decode_bytes.cu's too. */
#pragma once

#include "backend/cuda/attention/attention.h"
#include "backend/cuda/attention/attention_parts.h"
#include "backend/cuda/attention/decode/attention_decode.h"
#include "backend/cuda/attention/kv.cuh"
#include "backend/cuda/ptx/card.cuh"
#include "backend/cuda/ptx/late.cuh"
#include "backend/cuda/ptx/mma.cuh"
#include "backend/cuda/value.h"

namespace {

constexpr int TILE = 64, KEY_WARPS = 4, MAX_STAGES = 24;

/* SHARED_KV: of shared keys (kv.cuh), whose stages hold a tile's values, then what its keys have beside them; else keys
 * and values have one each. */
template <int DIM_, int N_TILES_, element E_, bool SHARED_KV_ = false> struct shape {
    static constexpr bool SHARED_KV = SHARED_KV_;
    static constexpr int DIM = DIM_, N_TILES = N_TILES_, COLUMNS = 8 * N_TILES;
    static constexpr element E = E_;
    static constexpr bool BYTES = E == ELEMENT_I8, BF16 = E == ELEMENT_BF16, PREPARES = false;
    static constexpr int ROW = DIM * (BYTES ? 1 : 2), PANEL = ROW % 128 == 0 ? 128 : 64, N_PANELS = ROW / PANEL;
    static constexpr int CHANNEL_WARPS = DIM * N_TILES > 2048 ? 4
                                         : DIM *N_TILES > 256 ? (DIM == 512 && N_TILES == 2 ? 4 : 2)
                                                              : 1;
    static constexpr bool QUERY_IN_SHARED = DIM == 512 && N_TILES == 2;
    static constexpr int COMPUTE = KEY_WARPS * CHANNEL_WARPS * 32, THREADS = COMPUTE + 64;
    static constexpr int CHANNELS = DIM / CHANNEL_WARPS, M_TILES = CHANNELS / 16, K_STEPS = DIM / 16;
    static constexpr int KEY_ROW = SHARED_KV ? SHARED_KV_DIM * (BYTES ? 1 : 2) : 0, SIDE = (ROW + KEY_ROW) * TILE;
    static constexpr int STAGE = SIDE + (BYTES ? TILE * 4 : 0);
    static constexpr int ROUND = N_TILES == 1 ? 64 : 32; // channels of a warp that are joined at a time
    static constexpr int MERGE_ROW = ROUND + 4;          // floats; 4 keep the stores of a warp in different banks
    static constexpr int MERGE = KEY_WARPS * CHANNEL_WARPS * COLUMNS * MERGE_ROW * 4;
    static constexpr int QUERY = QUERY_IN_SHARED ? K_STEPS * N_TILES * 32 * 8 : 0;
    static constexpr int MAX_ROW =
        DIM * 4 + 32; // of a query as it comes; 32 keep the reads of a warp in different banks
    static constexpr int FIXED = MERGE + QUERY + COLUMNS * MAX_ROW + (2 * KEY_WARPS + 3) * COLUMNS * 4 +
                                 2 * (COLUMNS * 24 + 80) + (2 * MAX_STAGES + 4) * 8;
    static constexpr int BLOCKS =
        CHANNEL_WARPS > 1 ? 1 : 2; // an SM; with 3 the ring of each is too short for long parts
    static constexpr int BUDGET = (BLOCKS == 1 ? 226 : 112) * 1024 - FIXED;
    static constexpr int N_STAGES = BUDGET / STAGE < MAX_STAGES ? BUDGET / STAGE : MAX_STAGES;
    static constexpr int SHARE = 1, SHARED = FIXED + N_STAGES * STAGE + 128;
    static_assert(N_STAGES >= (SHARED_KV ? 1 : 2) && DIM % 64 == 0 && CHANNELS % ROUND == 0,
                  "at least keys and values of a tile fit");

    static __device__ constexpr int moved(int channel) { return SHARED_KV ? kv_moved_512(channel) : channel; }
};

/* What is read before the first copy stands first and together: a kernel's constants come from memory too, a line at a
 * time. Quotients are the host's: the compiler takes a division ahead of every loop, and one by a softcap of 0 is a
 * call to code at the kernel's end. */
struct arguments {
    const int32_t *table; // of blocks, [max_seqs][table_width]
    int table_width, max_seqs, n_slots;
    uint32_t per_kv_head; // 2^32 / n_kv_heads, rounded up; 0 of one head
    int parts_on, kv_on;  // from a pair of a part and a KV head to the next of who takes it
    bool prefetch;
    float per_softcap; // 2 / softcap, or 0
    dattention a;
    dcache cache;
    dparts parts;
    dmat q, out;
    dweight sinks;
    dprep prep; // of shapes that do QKV_PREP too
};

inline arguments arguments_of(const launch *l, const dattention &a, const dparts &parts, bool prefetch, dmat q,
                              dweight sinks, dcache cache, dmat out) {
    uint32_t n_kv = (uint32_t)a.n_kv_heads, per_kv_head = n_kv > 1 ? 0xffffffffu / n_kv + 1 : 0;
    const device_plan &plan = l->plan;
    return {plan.block_table[cache.group],
            plan.table_width[cache.group],
            parts.max_seqs,
            l->block_size,
            per_kv_head,
            0,
            0,
            prefetch,
            a.softcap > 0 ? 2 / a.softcap : 0,
            a,
            cache,
            parts,
            q,
            out,
            sinks,
            {}};
}

/* For so many who take pairs. */
inline arguments taken_by(int takers, arguments p) {
    p.parts_on = takers / p.a.n_kv_heads;
    p.kv_on = takers % p.a.n_kv_heads;
    return p;
}

/* Which pairs of a part and a KV head a block, or a warp, takes. */
struct pair_walk {
    int part, kv;

    pair_walk() = default;
    __device__ pair_walk(const arguments &p, uint32_t first) {
        part = p.per_kv_head ? __umulhi(first, p.per_kv_head) : first;
        kv = first - part * p.a.n_kv_heads;
    }
    __device__ void next(const arguments &p) {
        part += p.parts_on;
        kv += p.kv_on;
        if (kv >= p.a.n_kv_heads) {
            kv -= p.a.n_kv_heads;
            part++;
        }
    }
};

/* What the computing warps are told of a pair. */
template <class S> struct alignas(16) task {
    dpart part;
    int n_columns, low;                      // low: the first key that any column sees
    int inside_from, inside_to;              // keys that every column sees
    int64_t out[S::COLUMNS];                 // where a column's result goes, in elements
    int first[S::COLUMNS], last[S::COLUMNS]; // keys that it sees
    float sink[S::COLUMNS];                  // in powers of two
};

template <class S> struct memory {
    uint32_t ring, full, empty, queries_full, queries_empty, task_empty; // addresses in shared memory
    char *stages, *queries;                                              // queries as they come, COLUMNS rows
    task<S> *tasks;                                                      // [2]
    float *merge, *largest, *sum, *factor; // [KEY_WARPS][COLUMNS] largest and sum; [3][COLUMNS] factor
    uint2 *query;

    __device__ explicit memory(char *base) {
        char *at = base + (128 - (shared_address(base) & 127)) % 128; // the ring is aligned as ldmatrix's banks are
        stages = at;
        ring = shared_address(at);
        at += S::N_STAGES * S::STAGE;
        merge = reinterpret_cast<float *>(at);
        at += S::MERGE;
        query = reinterpret_cast<uint2 *>(at);
        at += S::QUERY;
        queries = at;
        at += S::COLUMNS * S::MAX_ROW;
        tasks = reinterpret_cast<task<S> *>(at);
        at += 2 * sizeof(task<S>);
        full = shared_address(at);
        empty = full + MAX_STAGES * 8;
        queries_full = empty + MAX_STAGES * 8;
        queries_empty = queries_full + 8;
        task_empty = queries_empty + 8;
        largest = reinterpret_cast<float *>(at + (2 * MAX_STAGES + 4) * 8);
        sum = largest + KEY_WARPS * S::COLUMNS;
        factor = sum + KEY_WARPS * S::COLUMNS;
    }
};

struct ring_place {
    int stage, parity;
    __device__ void next(int n_stages) {
        if (++stage == n_stages) {
            stage = 0;
            parity ^= 1;
        }
    }
};

__device__ int first_visible(const dattention &a, int position) {
    int first = a.window > 0 && position >= a.window ? position - a.window + 1 : 0;
    return a.chunk > 0 ? max(first, position / a.chunk * a.chunk) : first;
}

/* Bits 0 .. n - 1. */
__device__ uint32_t bits_below(int n) {
    uint32_t bits;
    asm("bmsk.clamp.b32 %0, 0, %1;" : "=r"(bits) : "r"(max(n, 0)));
    return bits;
}

__device__ dpart load_part(const arguments &p, int i) {
    const int2 *from = reinterpret_cast<const int2 *>(p.parts.part + i);
    int2 w[5];
    for (int k = 0; k < 5; k++)
        w[k] = __ldcg(from + k);
    return {w[0].x, w[0].y, w[1].x, w[1].y, w[2].x, w[2].y, w[3].x, w[3].y, w[4].x, w[4].y};
}

/* Address of a 16-byte piece of a row of a stage; panels are TILE rows of PANEL bytes, swizzled as kv.cuh says. */
template <class S> __device__ uint32_t piece(uint32_t stage, int row, int c) {
    constexpr int PIECES = S::PANEL / 16;
    int turn = S::PANEL == 128 ? row & 7 : (row >> 1) & 3;
    return stage + (c / PIECES) * TILE * S::PANEL + row * S::PANEL + ((c % PIECES) ^ turn) * 16;
}

} // namespace
