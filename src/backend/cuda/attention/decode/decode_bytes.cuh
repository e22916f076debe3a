/* decode_bytes.cuh - of attention_decode_bytes.cu: sizes, shared memory, and what the warpgroup does with queries and a
 * tile.
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

/* Four floats as a term of e4m3; they become 16 times what it left. */
__device__ uint32_t take_term(float4 &x) {
    uint32_t term = e4m3_of_floats(x.x, x.y) | (uint32_t)e4m3_of_floats(x.z, x.w) << 16, a, b;
    e4m3_to_pairs(term, a, b);
    float2 p = __half22float2(reinterpret_cast<__half2 &>(a)), q = __half22float2(reinterpret_cast<__half2 &>(b));
    x = {(x.x - p.x) * 16, (x.y - p.y) * 16, (x.z - q.x) * 16, (x.w - q.y) * 16};
    return term;
}

/* Likewise two pairs of float16. */
__device__ uint32_t take_term(__half2 &x, __half2 &y) {
    uint32_t term = e4m3_of_pairs(reinterpret_cast<uint32_t &>(x), reinterpret_cast<uint32_t &>(y)), a, b;
    e4m3_to_pairs(term, a, b);
    __half2 unit = __float2half2_rn(16);
    x = __hmul2(__hsub2(x, reinterpret_cast<__half2 &>(a)), unit);
    y = __hmul2(__hsub2(y, reinterpret_cast<__half2 &>(b)), unit);
    return term;
}

__device__ float4 four_of_16(uint2 x, element e) {
    float2 a, b;
    if (e == ELEMENT_F16) {
        a = __half22float2(reinterpret_cast<__half2 &>(x.x)), b = __half22float2(reinterpret_cast<__half2 &>(x.y));
    } else {
        a = {__uint_as_float(x.x << 16), __uint_as_float(x.x & 0xffff0000u)};
        b = {__uint_as_float(x.y << 16), __uint_as_float(x.y & 0xffff0000u)};
    }
    return {a.x, a.y, b.x, b.y};
}
__device__ float4 four_of_query(const char *row, element e, int channel) {
    return e == ELEMENT_F32 ? *reinterpret_cast<const float4 *>(row + channel * 4)
                            : four_of_16(*reinterpret_cast<const uint2 *>(row + channel * 2), e);
}

__device__ float largest_size(float4 a) { return fmaxf(fmaxf(fabsf(a.x), fabsf(a.y)), fmaxf(fabsf(a.z), fabsf(a.w))); }

/* What this warp and lane have of the queries: columns warp, warp + 4 ..., channels 4 lane .. and 128 further. All are
 * under way before one is used; columns that nobody has are zero, whatever lies there. */
template <class S, int EACH, int FOURS>
__device__ void load_queries(const arguments &p, const byte_memory<S> &m, int n_columns, const byte_place &at,
                             float4 (&x)[EACH][FOURS]) {
    int four = S::DIM < 128 ? at.lane % (S::DIM / 4) : at.lane;
    if (p.q.element == ELEMENT_F32) {
#pragma unroll
        for (int i = 0; i < EACH; i++)
#pragma unroll
            for (int j = 0; j < FOURS; j++)
                x[i][j] = reinterpret_cast<const float4 *>(m.queries + (at.warp + i * KEY_WARPS) *
                                                                           (S::DIM * 4 + 32))[four + 32 * j];
    } else {
        uint2 half[EACH][FOURS];
#pragma unroll
        for (int i = 0; i < EACH; i++)
#pragma unroll
            for (int j = 0; j < FOURS; j++)
                half[i][j] = reinterpret_cast<const uint2 *>(m.queries + (at.warp + i * KEY_WARPS) *
                                                                             (S::DIM * 2 + 32))[four + 32 * j];
#pragma unroll
        for (int i = 0; i < EACH; i++)
#pragma unroll
            for (int j = 0; j < FOURS; j++)
                x[i][j] = four_of_16(half[i][j], p.q.element);
    }
#pragma unroll
    for (int i = 0; i < EACH; i++)
#pragma unroll
        for (int j = 0; j < FOURS; j++)
            if (at.warp + i * KEY_WARPS >= n_columns || 4 * (at.lane + 32 * j) >= S::DIM)
                x[i][j] = {0, 0, 0, 0};
}

/* Queries as they came become the right operand, each times a power of two that makes its largest size 128 to 256;
 * query_factor undoes that. A warp takes every fourth. */
template <class S>
__device__ void place_queries(const arguments &p, const byte_memory<S> &m, int n_columns, const byte_place &at) {
    constexpr int FOURS = (S::DIM + 127) / 128;  // of a lane
    constexpr int EACH = S::COLUMNS / KEY_WARPS; // columns of a warp
    float4 x[EACH][FOURS];
    float by[EACH];
    load_queries<S>(p, m, n_columns, at, x);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int column = at.warp + i * KEY_WARPS;
        float most = 0;
#pragma unroll
        for (int j = 0; j < FOURS; j++)
            most = fmaxf(most, largest_size(x[i][j]));
        int exponent = (int)(__reduce_max_sync(0xffffffffu, __float_as_uint(most)) >> 23);
        exponent = min(max(exponent, 30), 230);
        by[i] = __uint_as_float((uint32_t)(261 - exponent) << 23);
        if (at.lane == 0)
            m.query_factor[column] = __uint_as_float((uint32_t)(exponent - 7) << 23);
    }
#pragma unroll
    for (int i = 0; i < EACH; i++)
#pragma unroll
        for (int j = 0; j < FOURS; j++) {
            int column = at.warp + i * KEY_WARPS, channel = 4 * (at.lane + 32 * j);
            float4 rest = {x[i][j].x * by[i], x[i][j].y * by[i], x[i][j].z * by[i], x[i][j].w * by[i]};
#pragma unroll
            for (int term = 0; term < S::QUERY_TERMS; term++) {
                int row = term * S::COLUMNS + column;
                uint32_t word = take_term(rest);
                int to = S::moved(channel);
                if (channel < S::DIM)
                    store_shared(m.query + (to / S::PANEL) * S::QUERY_ROWS * S::PANEL + row * S::PANEL +
                                     kv_swizzled(S::PANEL, row, to % S::PANEL),
                                 word);
            }
        }
    fence_bulk();
    threads_sync(1, S::COMPUTE); // the queries are there
}

/* The left operand of a tile's values: of every 64 channels this warp's 16, by two times 32 keys. Row g is channel 2g,
 * row g + 8 channel 2g + 1; of 16 keys, column 4t .. 4t + 3 are keys 2t, 2t + 1, 2t + 8, 2t + 9. */
template <class S> __device__ void load_values(uint32_t stage, const byte_place &at, uint32_t (&v)[S::M_TILES][2][4]) {
#pragma unroll
    for (int i = 0; i < S::M_TILES; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t words[4];
            // Piece 4 i + warp of row 32 h + lane; a panel of 128 bytes has eight, and the swizzle is an exclusive or.
            load_matrices_turned(words, ((stage + at.values) ^ (i % 2 * 64)) + i / 2 * TILE * 128 + h * 32 * S::PANEL);
            v[i][h][0] = __byte_perm(words[0], words[1], 0x6420);
            v[i][h][1] = __byte_perm(words[0], words[1], 0x7531);
            v[i][h][2] = __byte_perm(words[2], words[3], 0x6420);
            v[i][h][3] = __byte_perm(words[2], words[3], 0x7531);
        }
}

/* Zeroes values of keys that nobody sees, which may be anything: 0 times it must be 0. */
template <class S>
__device__ void clear_values(int tile, int low, int end, const byte_place &at, uint32_t (&v)[S::M_TILES][2][4]) {
    int first = tile + 2 * at.quarter; // key of bit 0
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint32_t seen = bits_below(end - first - 32 * h) & ~bits_below(low - first - 32 * h);
#pragma unroll
        for (int half = 0; half < 2;
             half++) {     // 16 keys; of them this lane's are bits 0, 1, 8 and 9, which become the signs of bytes
            uint32_t mask; // __byte_perm knows no signs
            asm("prmt.b32 %0, %1, %2, 0xd9c8;" : "=r"(mask) : "r"(seen >> 16 * half << 7), "r"(seen >> 16 * half << 6));
#pragma unroll
            for (int i = 0; i < S::M_TILES; i++) {
                v[i][h][2 * half] &= mask;
                v[i][h][2 * half + 1] &= mask;
            }
        }
    }
}

/* s = K q^T of this thread's keys and columns, times the scales of keys and queries, scale and log2 e, through the
 * softcap. */
template <class S>
__device__ void finish_scores(const arguments &p, const float (&d)[S::QUERY_ROWS / 2], const float (&by)[S::N_TILES][2],
                              float key0, float key1, float (&s)[S::N_TILES][4]) {
    constexpr float LOG2_E = 1.4426950408889634f;
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++)
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float x =
                d[4 * n + k] + 0.0625f * (d[4 * (S::N_TILES + n) + k] + 0.0625f * d[4 * (2 * S::N_TILES + n) + k]);
            s[n][k] = x * ((k < 2 ? key0 : key1) * by[n][k % 2]);
        }
    if (p.a.softcap > 0) { // cap * tanh(x / cap), as 1 - 2 / (1 + e^2x); s has log2 e in it
        float cap = p.a.softcap * LOG2_E, per_cap = p.per_softcap;
#pragma unroll
        for (int n = 0; n < S::N_TILES; n++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                s[n][k] = cap * (1.0f - __fdividef(2.0f, 1.0f + exp2_fast(s[n][k] * per_cap)));
    }
}

/* P of this thread's keys and columns, times by0 and by1 of its keys, as terms in the right operand; l: the sums with
 * it. */
template <class S>
__device__ void place_weights(uint32_t to, const float (&s)[S::N_TILES][4], const byte_sums<S> &o, float by0, float by1,
                              const byte_place &at, float (&l)[S::N_TILES][2]) {
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++) {
        float x[4];
#pragma unroll
        for (int k = 0; k < 4; k++)
            x[k] = exp2_fast(s[n][k] - o.base[n][k % 2]);
        l[n][0] += x[0] + x[2];
        l[n][1] += x[1] + x[3];
        __half2 first = __floats2half2_rn(x[0] * by0, x[1] * by0), second = __floats2half2_rn(x[2] * by1, x[3] * by1);
#pragma unroll
        for (int term = 0; term < S::P_TERMS; term++) { // two lanes swap: four keys of one column each
            uint32_t mine = take_term(first, second), other = __shfl_xor_sync(0xffffffffu, mine, 4);
            store_shared(to + at.weights + (term * S::COLUMNS + 8 * n) * TILE, __byte_perm(mine, other, at.odd));
        }
    }
}

/* Raises m to the largest score yet and the reference to the largest scale of values, over the group; what was summed
 * shrinks. */
template <class S>
__device__ void raise_largest(const byte_memory<S> &m, const float (&tops)[S::N_TILES][2], float top_scale,
                              const byte_place &at, byte_sums<S> &o) {
    uint32_t scale = __reduce_max_sync(0xffffffffu, __float_as_uint(fminf(fmaxf(top_scale, 1e-30f), 1e30f)));
    float *largest = m.largest;
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float most = largest_of_keys(tops[n][k]);
            if (at.group == 0)
                largest[4 * (8 * n + 2 * at.quarter + k) + at.warp] = most;
        }
    if (at.lane == 0)
        largest[4 * S::COLUMNS + at.warp] = __uint_as_float(scale);
    threads_sync(1, S::COMPUTE); // every warp's largest are there
    float4 scales = *reinterpret_cast<const float4 *>(largest + 4 * S::COLUMNS);
    float highest = fmaxf(fmaxf(scales.x, scales.y), fmaxf(scales.z, scales.w));
    float reference = fmaxf(o.reference, __uint_as_float((__float_as_uint(highest) + 0x7fffffu) & 0x7f800000u));
    float per = __uint_as_float((254u << 23) - __float_as_uint(reference)), fewer = o.reference * per;
    o.reference = reference;
    o.per_reference = per * P_UNIT;
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++) {
        float by[2];
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float4 of = *reinterpret_cast<const float4 *>(largest + 4 * (8 * n + 2 * at.quarter + k));
            float most = fmaxf(fmaxf(fmaxf(of.x, of.y), fmaxf(of.z, of.w)), o.m[n][k]);
            by[k] = most == -INFINITY ? 1.0f : exp2_fast(o.m[n][k] - most);
            o.m[n][k] = most;
            o.base[n][k] = most == -INFINITY ? 0.0f : most;
            o.l[n][k] *= by[k];
        }
        o.shrink(n, by[0] * fewer, by[1] * fewer);
    }
}

/* Whether a score passes what P can hold, or a scale of values the reference. */
template <class S> __device__ bool passes(const float (&tops)[S::N_TILES][2], float top_scale, const byte_sums<S> &o) {
    bool passed = top_scale > o.reference;
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++)
#pragma unroll
        for (int k = 0; k < 2; k++)
            passed = passed || tops[n][k] > o.m[n][k] + P_SLACK;
    return passed;
}

/* What a thread knows of a pair. */
template <class S> struct byte_pair {
    int low, end, inside_from, inside_to;
    float by[S::N_TILES][2]; // of its columns: what scores are multiplied by
};

/* d = K q^T of a stage, once it is full, under way. */
template <class S>
__device__ void start_scores(const byte_memory<S> &m, const ring_place &r, float (&d)[S::QUERY_ROWS / 2]) {
    uint32_t keys = byte_rows_low(m.ring + r.stage * S::STAGE), queries = byte_rows_low(m.query);
    products_begin();
#pragma unroll
    for (int k = 0; k < S::DIM / 32; k++) {
        int panel = k * 32 / S::PANEL, step = k % (S::PANEL / 32) * 2;
        int side = S::SHARED_KV && panel == 0 ? S::ROW * TILE : panel * TILE * S::PANEL;
        e4m3_product<S::QUERY_ROWS>::multiply(
            d, byte_rows_at<S::PANEL>(keys + (side / 16 + step)),
            byte_rows_at<S::PANEL>(queries + (panel * S::QUERY_ROWS * S::PANEL / 16 + step)), k > 0);
    }
    products_commit();
}

/* Values nobody sees become 0, and scores of keys that a column does not see -inf. by: scales of this thread's two rows
 * of values. */
template <class S>
__device__ void hide_unseen(const task<S> &t, const byte_pair<S> &c, int tile, const byte_place &at,
                            uint32_t (&v)[S::M_TILES][2][4], float (&by)[2], float (&s)[S::N_TILES][4]) {
    if (tile >= c.inside_from && tile + TILE <= c.inside_to)
        return; // most tiles: all columns see all keys
    clear_values<S>(tile, c.low, c.end, at, v);
    int key = tile + 16 * at.warp + at.group;
    bool seen[2]; // by any column
#pragma unroll
    for (int k = 0; k < 2; k++) {
        seen[k] = key + 8 * k >= c.low && key + 8 * k < c.end;
        by[k] = seen[k] ? by[k] : 0.0f;
    }
    if (c.low == c.inside_from && c.end == c.inside_to) { // all columns see the same
#pragma unroll
        for (int n = 0; n < S::N_TILES; n++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                s[n][k] = seen[k / 2] ? s[n][k] : -INFINITY;
    } else {
        hide<S>(t, key, at, s);
    }
}

/* P of N tiles in the right operand, and the sums with it; behind a barrier, so that it is there. raise: nothing was
 * seen yet, so that the largest scores are to be found first. They are too where a score passes what P can hold, which
 * the barrier tells all. */
template <class S, int N>
__device__ void place_tiles(const byte_memory<S> &m, uint32_t weights, const float (&s)[N][S::N_TILES][4],
                            const float (&by)[N][2], const byte_place &at, bool raise, byte_sums<S> &o) {
    float l[S::N_TILES][2], tops[S::N_TILES][2], top_scale = 0;
#pragma unroll
    for (int j = 0; j < N; j++) {
        top_scale = fmaxf(top_scale, fmaxf(by[j][0], by[j][1]));
#pragma unroll
        for (int n = 0; n < S::N_TILES; n++)
#pragma unroll
            for (int k = 0; k < 2; k++)
                tops[n][k] = fmaxf(fmaxf(s[j][n][k], s[j][n][k + 2]), j ? tops[n][k] : -INFINITY);
    }
    auto place = [&] {
#pragma unroll
        for (int n = 0; n < S::N_TILES; n++)
            l[n][0] = o.l[n][0], l[n][1] = o.l[n][1];
#pragma unroll
        for (int j = 0; j < N; j++)
            place_weights<S>(weights + j * S::P, s[j], o, by[j][0] * o.per_reference, by[j][1] * o.per_reference, at,
                             l);
        fence_bulk();
    };
    if (!raise) { // most tiles: nothing passes
        bool passed = passes<S>(tops, top_scale, o);
        place();
        raise = threads_any(1, S::COMPUTE, passed); // P is there
    }
    if (raise) {
        raise_largest<S>(m, tops, top_scale, at, o);
        place();
        threads_sync(1, S::COMPUTE); // P is there
    }
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++)
        o.l[n][0] = l[n][0], o.l[n][1] = l[n][1];
}

/* o += V^T P^T of N tiles. meanwhile() starts other products while the first of these are under way, or commits none.
 */
template <class S, int N, class MEANWHILE>
__device__ void add_values(uint32_t weights, const uint32_t (&v)[N][S::M_TILES][2][4], byte_sums<S> &o,
                           MEANWHILE meanwhile) {
    uint32_t right = byte_rows_low(weights);
#pragma unroll
    for (int i0 = 0; i0 < S::M_TILES; i0 += S::AT_ONCE) {
        float acc[N][S::AT_ONCE][S::P_ROWS / 2] = {};
        products_begin();
#pragma unroll
        for (int j = 0; j < N; j++)
#pragma unroll
            for (int i = 0; i < S::AT_ONCE; i++)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    e4m3_product<S::P_ROWS>::multiply(acc[j][i], v[j][i0 + i][h],
                                                      byte_rows_at<TILE>(right + (j * S::P / 16 + 2 * h)), h);
        products_commit();
        if (i0 == 0 && S::AHEAD) {
            meanwhile();
            products_wait<1>();
        } else {
            products_wait<0>();
        }
#pragma unroll
        for (int j = 0; j < N; j++)
#pragma unroll
            for (int i = 0; i < S::AT_ONCE; i++) {
                registers_settle(acc[j][i]);
#pragma unroll
                for (int n = 0; n < S::N_TILES; n++)
#pragma unroll
                    for (int k = 0; k < 4; k++) {
                        static_assert(S::P_TERMS == 2, "two terms");
                        o.o[i0 + i][n][k] += acc[j][i][4 * n + k] + acc[j][i][4 * (S::N_TILES + n) + k] * 0.0625f;
                    }
            }
    }
}

/* N tiles of the pair, SHARE apart, which follow one another in the ring. d: their scores, which AHEAD are under way
 * already; meanwhile: see above. generation: 0 and 1 in turn, of P. */
template <class S, int N, class MEANWHILE>
__device__ void take_tiles(const arguments &p, const byte_memory<S> &m, const task<S> &t, int tile,
                           const byte_pair<S> &c, const byte_place &at, ring_place &r, int generation, bool raise,
                           byte_sums<S> &o, float (&d)[N][S::QUERY_ROWS / 2], MEANWHILE meanwhile) {
    float s[N][S::N_TILES][4], key_scale[N][2], by[N][2];
    uint32_t v[N][S::M_TILES][2][4];
    ring_place keys[N], values[N];
#pragma unroll
    for (int j = 0; j < N; j++) {
        keys[j] = r;
        if (!S::SHARED_KV)
            r.next(S::N_STAGES);
        values[j] = r;
        r.next(S::N_STAGES);
    }
    auto take_scales = [&](const ring_place &from, float(&to)[2]) {
        const float *scale = reinterpret_cast<const float *>(m.stages + from.stage * S::STAGE + at.scales);
        to[0] = scale[0], to[1] = scale[8];
    };
#pragma unroll
    for (int j = 0; j < N; j++) {
        if (!S::AHEAD) {
            barrier_wait(m.full + keys[j].stage * 8, keys[j].parity);
            start_scores<S>(m, keys[j], d[j]);
        }
        take_scales(keys[j], key_scale[j]);
    }
    // Values come to registers while the products of the keys run.
#pragma unroll
    for (int j = 0; j < N; j++) {
        if (!S::SHARED_KV)
            barrier_wait(m.full + values[j].stage * 8, values[j].parity);
        load_values<S>(m.ring + values[j].stage * S::STAGE, at, v[j]);
        take_scales(values[j], by[j]);
    }
    __syncwarp(); // all lanes have read
#pragma unroll
    for (int j = 0; j < N && !S::SHARED_KV; j++)
        barrier_arrive_warp(m.empty + values[j].stage * 8, at.lane);
    products_wait<0>();
#pragma unroll
    for (int j = 0; j < N; j++) {
        registers_settle(d[j]);
        barrier_arrive_warp(m.empty + keys[j].stage * 8, at.lane);
        finish_scores<S>(p, d[j], c.by, key_scale[j][0], key_scale[j][1], s[j]);
    }
#pragma unroll
    for (int j = 0; j < N; j++)
        hide_unseen<S>(t, c, tile + j * S::SHARE * TILE, at, v[j], by[j], s[j]);
    uint32_t weights = m.weights + generation * S::TILES * S::P;
    place_tiles<S, N>(m, weights, s, by, at, raise, o);
    add_values<S, N>(weights, v, o, meanwhile);
}

} // namespace
