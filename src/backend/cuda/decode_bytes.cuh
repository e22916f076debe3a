/* decode_bytes.cuh - of attention_decode_bytes.cu: sizes, shared memory, and what the warpgroup does with queries and a tile.
 *
 * A number x is the sum of terms of e4m3, x = t0 + t1/16 + t2/256, each the rest of those before it: three terms hold the 11 bits of a
 * float16, two hold 8. Terms stand as further rows of the right operand: rows (term * N_TILES + n) * 8 + column. */
#pragma once

#include "backend/cuda/decode_join.cuh"
#include "backend/cuda/wgmma_bytes.cuh"

namespace {

constexpr int max_of(int a, int b) { return a > b ? a : b; }

/* SHARE blocks of a cluster share a pair. SHORT as in decode_shape.cuh. PREPARES: QKV_PREP is done on the way (decode_prep.cuh). */
template <int DIM_, int N_TILES_, int SHARE_, bool SHORT_ = false, bool PREPARES_ = false> struct byte_shape {
    static constexpr bool SHORT = SHORT_, PREPARES = PREPARES_;
    static constexpr int DIM = DIM_, N_TILES = N_TILES_, COLUMNS = 8 * N_TILES, SHARE = SHARE_;
    static constexpr element E = ELEMENT_E4M3;
    static constexpr bool BYTES = true;
    static constexpr int ROW = DIM, PANEL = ROW % 128 == 0 ? 128 : 64, N_PANELS = ROW / PANEL;
    static constexpr int COMPUTE = 128, THREADS = COMPUTE + 64;
    static constexpr int M_TILES = DIM / 64;                  // of channels
    static constexpr int AT_ONCE = M_TILES < 4 ? M_TILES : 4; // of them, whose products are under way
    static constexpr int QUERY_TERMS = 3, P_TERMS = 2;
    static constexpr int QUERY_ROWS = COLUMNS * QUERY_TERMS, P_ROWS = COLUMNS * P_TERMS;
    static constexpr int QUERY = QUERY_ROWS * DIM, P = P_ROWS * TILE; // bytes
    static constexpr int KEY_ROW = SHORT ? SHORT_TURNED : 0, SIDE = (ROW + KEY_ROW) * TILE;
    static constexpr int STAGE = SIDE + PANEL * 8;               // panels of 8 rows are aligned
    static constexpr int MAX_ROW = DIM * 4 + 32;                 // as in decode_shape.cuh
    static constexpr int LEFT = (4 * M_TILES + 4) * N_TILES + 1; // floats that a thread leaves to the first block
    static constexpr int MERGE = max_of(2 * 64 * COLUMNS * 4, (SHARE - 1) * LEFT * 512);
    static constexpr int FIXED = QUERY + 2 * P + MERGE + COLUMNS * MAX_ROW + 2 * (COLUMNS * 24 + 80) + (2 * MAX_STAGES + 6) * 8 +
                                 (2 * COLUMNS + 1) * KEY_WARPS * 4 + 2 * COLUMNS * 4 + (PREPARES ? 8 * DIM + 64 : 0);
    static constexpr int BLOCKS = DIM == 512 ? 1 : 2; // an SM
    static constexpr int BUDGET = (BLOCKS == 1 ? 226 : 109) * 1024 - FIXED;
    static constexpr int N_STAGES = BUDGET / STAGE < MAX_STAGES ? BUDGET / STAGE : MAX_STAGES, SHARED = FIXED + N_STAGES * STAGE + 1024;
    static_assert(N_STAGES >= 2 && DIM % 64 == 0, "at least keys and values of a tile fit");

    static __device__ constexpr int moved(int channel) { return SHORT ? kv_moved_512(channel) : channel; }
};

template <class S> struct byte_memory {
    uint32_t ring, full, empty, queries_full, queries_empty, task_empty; // addresses in shared memory
    uint32_t joined, merge_empty;                                        // of SHARE blocks: what they summed
    uint32_t query, weights;                                             // operands: queries; P, two of them
    char *stages, *queries;
    task<S> *tasks;
    float *merge, *largest, *sum, *factor, *query_factor; // [COLUMNS + 1][KEY_WARPS], [COLUMNS][KEY_WARPS], [COLUMNS] twice

    __device__ explicit byte_memory(char *base) {
        char *at = base + (1024 - (shared_address(base) & 1023)) % 1024;
        stages = at;
        ring = shared_address(at);
        at += S::N_STAGES * S::STAGE;
        query = shared_address(at);
        at += S::QUERY;
        weights = shared_address(at);
        at += 2 * S::P;
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

/* Where a computing thread stands: keys 16 warp + group and + 8 of a tile; channels 16 warp + 2 group and + 1 of every 64. */
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
        asm volatile("" : "+r"(values), "+r"(weights), "+r"(odd), "+r"(scales)); // not to be computed again for every tile
    }
};

constexpr float P_UNIT = 16, P_SLACK = 4; // P is multiplied by P_UNIT, and passes 1 by 2^P_SLACK at most: 256 in all

template <class S> struct byte_sums {
    float o[S::M_TILES][S::N_TILES][4];       // [k]: channel 2 group + k / 2, column 2 quarter + k % 2
    float m[S::N_TILES][2], l[S::N_TILES][2]; // of the columns; l of this thread's keys alone
    float base[S::N_TILES][2];                // m, or 0 where no key was seen: what scores are taken from
    float reference, per_reference;           // a power of two, no less than any scale of values yet; P_UNIT / reference

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
    uint16_t low, high;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(x.y), "f"(x.x));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(x.w), "f"(x.z));
    uint32_t term = low | (uint32_t)high << 16, a, b;
    e4m3_to_pairs(term, a, b);
    float2 p = __half22float2(reinterpret_cast<__half2 &>(a)), q = __half22float2(reinterpret_cast<__half2 &>(b));
    x = {(x.x - p.x) * 16, (x.y - p.y) * 16, (x.z - q.x) * 16, (x.w - q.y) * 16};
    return term;
}

/* Likewise two pairs of float16. */
__device__ uint32_t take_term(__half2 &x, __half2 &y) {
    uint16_t low, high;
    uint32_t a = reinterpret_cast<uint32_t &>(x), b = reinterpret_cast<uint32_t &>(y);
    asm("cvt.rn.satfinite.e4m3x2.f16x2 %0, %1;" : "=h"(low) : "r"(a));
    asm("cvt.rn.satfinite.e4m3x2.f16x2 %0, %1;" : "=h"(high) : "r"(b));
    uint32_t term = low | (uint32_t)high << 16;
    e4m3_to_pairs(term, a, b);
    __half2 unit = __float2half2_rn(16);
    x = __hmul2(__hsub2(x, reinterpret_cast<__half2 &>(a)), unit);
    y = __hmul2(__hsub2(y, reinterpret_cast<__half2 &>(b)), unit);
    return term;
}

__device__ float4 four_of_query(const char *row, element e, int channel) {
    if (e == ELEMENT_F32)
        return *reinterpret_cast<const float4 *>(row + channel * 4);
    uint2 x = *reinterpret_cast<const uint2 *>(row + channel * 2);
    float2 a, b;
    if (e == ELEMENT_F16) {
        a = __half22float2(reinterpret_cast<__half2 &>(x.x)), b = __half22float2(reinterpret_cast<__half2 &>(x.y));
    } else {
        a = {__uint_as_float(x.x << 16), __uint_as_float(x.x & 0xffff0000u)};
        b = {__uint_as_float(x.y << 16), __uint_as_float(x.y & 0xffff0000u)};
    }
    return {a.x, a.y, b.x, b.y};
}

__device__ float largest_size(float4 a) { return fmaxf(fmaxf(fabsf(a.x), fabsf(a.y)), fmaxf(fabsf(a.z), fabsf(a.w))); }

/* Queries as they came become the right operand, each times a power of two that makes its largest size 128 to 256; query_factor undoes
 * that. A warp takes every eighth
 * or so; columns that nobody has are zero. */
template <class S> __device__ void place_queries(const arguments &p, const byte_memory<S> &m, int n_columns, const byte_place &at) {
    constexpr int FOURS = (S::DIM + 127) / 128; // of a lane
    int pitch = S::DIM * (p.q.element == ELEMENT_F32 ? 4 : 2) + 32;
    constexpr int WARPS = S::COMPUTE / 32, EACH = (S::COLUMNS + WARPS - 1) / WARPS; // columns of a warp
    float4 x[EACH][FOURS];
    float by[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int column = threadIdx.x / 32 + i * WARPS;
        float most = 0;
#pragma unroll
        for (int j = 0; j < FOURS; j++) {
            int channel = 4 * (at.lane + 32 * j);
            bool there = column < n_columns && channel < S::DIM;
            x[i][j] = there ? four_of_query(m.queries + column * pitch, p.q.element, channel) : float4{0, 0, 0, 0};
            most = fmaxf(most, largest_size(x[i][j]));
        }
        int exponent = (int)(__reduce_max_sync(0xffffffffu, __float_as_uint(most)) >> 23);
        exponent = min(max(exponent, 30), 230);
        by[i] = __uint_as_float((uint32_t)(261 - exponent) << 23);
        if (at.lane == 0 && column < S::COLUMNS)
            m.query_factor[column] = __uint_as_float((uint32_t)(exponent - 7) << 23);
    }
#pragma unroll
    for (int i = 0; i < EACH; i++)
#pragma unroll
        for (int j = 0; j < FOURS; j++) {
            int column = threadIdx.x / 32 + i * WARPS, channel = 4 * (at.lane + 32 * j);
            float4 rest = {x[i][j].x * by[i], x[i][j].y * by[i], x[i][j].z * by[i], x[i][j].w * by[i]};
#pragma unroll
            for (int term = 0; term < S::QUERY_TERMS; term++) {
                int row = term * S::COLUMNS + column;
                uint32_t word = take_term(rest);
                int to = S::moved(channel);
                if (channel < S::DIM && column < S::COLUMNS)
                    store_shared(m.query + (to / S::PANEL) * S::QUERY_ROWS * S::PANEL + row * S::PANEL +
                                     kv_swizzled(S::PANEL, row, to % S::PANEL),
                                 word);
            }
        }
    fence_bulk();
    threads_sync(1, S::COMPUTE); // the queries are there
}

/* The left operand of a tile's values: of every 64 channels this warp's 16, by two times 32 keys. Row g is channel 2g, row g + 8
 * channel 2g + 1; of 16 keys, column 4t .. 4t + 3 are keys 2t, 2t + 1, 2t + 8, 2t + 9. */
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
template <class S> __device__ void clear_values(int tile, int low, int end, const byte_place &at, uint32_t (&v)[S::M_TILES][2][4]) {
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int half = 0; half < 2; half++) { // 16 keys
            uint32_t mask = 0;
            for (int b = 0; b < 4; b++) {
                int key = tile + 32 * h + 16 * half + 2 * at.quarter + b % 2 + b / 2 * 8;
                mask |= key >= low && key < end ? 0xffu << 8 * b : 0;
            }
#pragma unroll
            for (int i = 0; i < S::M_TILES; i++) {
                v[i][h][2 * half] &= mask;
                v[i][h][2 * half + 1] &= mask;
            }
        }
}

/* s = K q^T of this thread's keys and columns, times the scales of keys and queries, scale and log2 e, through the softcap. */
template <class S>
__device__ void finish_scores(const arguments &p, const float (&d)[S::QUERY_ROWS / 2], const float (&by)[S::N_TILES][2], float key0,
                              float key1, float (&s)[S::N_TILES][4]) {
    constexpr float LOG2_E = 1.4426950408889634f;
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++)
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float x = d[4 * n + k] + 0.0625f * (d[4 * (S::N_TILES + n) + k] + 0.0625f * d[4 * (2 * S::N_TILES + n) + k]);
            s[n][k] = x * ((k < 2 ? key0 : key1) * by[n][k % 2]);
        }
    if (p.a.softcap > 0) { // cap * tanh(x / cap), as 1 - 2 / (1 + e^2x); s has log2 e in it
        float cap = p.a.softcap * LOG2_E, per_cap = 2 / p.a.softcap;
#pragma unroll
        for (int n = 0; n < S::N_TILES; n++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                s[n][k] = cap * (1.0f - __fdividef(2.0f, 1.0f + exp2_fast(s[n][k] * per_cap)));
    }
}

/* P of this thread's keys and columns, times by0 and by1 of its keys, as terms in the right operand; l: the sums with it. */
template <class S>
__device__ void place_weights(uint32_t to, const float (&s)[S::N_TILES][4], const byte_sums<S> &o, float by0, float by1,
                              const byte_place &at, float (&l)[S::N_TILES][2]) {
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++) {
        float x[4];
#pragma unroll
        for (int k = 0; k < 4; k++)
            x[k] = exp2_fast(s[n][k] - o.base[n][k % 2]);
        l[n][0] = o.l[n][0] + (x[0] + x[2]);
        l[n][1] = o.l[n][1] + (x[1] + x[3]);
        __half2 first = __floats2half2_rn(x[0] * by0, x[1] * by0), second = __floats2half2_rn(x[2] * by1, x[3] * by1);
#pragma unroll
        for (int term = 0; term < S::P_TERMS; term++) { // two lanes swap: four keys of one column each
            uint32_t mine = take_term(first, second), other = __shfl_xor_sync(0xffffffffu, mine, 4);
            store_shared(to + at.weights + (term * S::COLUMNS + 8 * n) * TILE, __byte_perm(mine, other, at.odd));
        }
    }
    fence_bulk();
}

/* Raises m to the largest score yet and the reference to the largest scale of values, over the group; what was summed shrinks. */
template <class S>
__device__ void raise_largest(const byte_memory<S> &m, const float (&s)[S::N_TILES][4], float scale0, float scale1, const byte_place &at,
                              byte_sums<S> &o) {
    uint32_t scale = __reduce_max_sync(0xffffffffu, __float_as_uint(fminf(fmaxf(fmaxf(scale0, scale1), 1e-30f), 1e30f)));
    float *largest = m.largest;
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float most = largest_of_keys(fmaxf(s[n][k], s[n][k + 2]));
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

/* What a thread knows of a pair. */
template <class S> struct byte_pair {
    int low, end, inside_from, inside_to;
    float by[S::N_TILES][2]; // of its columns: what scores are multiplied by
};

/* d = K q^T of a stage, under way. */
template <class S> __device__ void start_scores(const byte_memory<S> &m, int stage, float (&d)[S::QUERY_ROWS / 2]) {
    uint64_t keys = byte_rows(m.ring, S::PANEL) + (uint32_t)(stage * (S::STAGE / 16)), queries = byte_rows(m.query, S::PANEL);
    products_begin();
#pragma unroll
    for (int k = 0; k < S::DIM / 32; k++) {
        int panel = k * 32 / S::PANEL, step = k % (S::PANEL / 32) * 2;
        int side = S::SHORT ? (panel == 0 ? S::ROW * TILE : panel * TILE * S::PANEL) : panel * TILE * S::PANEL;
        byte_product<S::QUERY_ROWS>::of_shared(d, keys + (side / 16 + step), queries + (panel * S::QUERY_ROWS * S::PANEL / 16 + step),
                                               k > 0);
    }
    products_commit();
}

/* o += V^T P^T. */
template <class S> __device__ void add_values(uint32_t weights, const uint32_t (&v)[S::M_TILES][2][4], byte_sums<S> &o) {
    uint64_t right = byte_rows(weights, TILE);
#pragma unroll
    for (int i0 = 0; i0 < S::M_TILES; i0 += S::AT_ONCE) {
        float acc[S::AT_ONCE][S::P_ROWS / 2] = {};
        products_begin();
#pragma unroll
        for (int i = 0; i < S::AT_ONCE; i++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                byte_product<S::P_ROWS>::of_registers(acc[i], v[i0 + i][h], right + 2 * h, h);
        products_commit();
        products_wait<0>();
#pragma unroll
        for (int i = 0; i < S::AT_ONCE; i++) {
            registers_settle(acc[i]);
#pragma unroll
            for (int n = 0; n < S::N_TILES; n++)
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    static_assert(S::P_TERMS == 2, "two terms");
                    o.o[i0 + i][n][k] += acc[i][4 * n + k] + acc[i][4 * (S::N_TILES + n) + k] * 0.0625f;
                }
        }
    }
}

template <class S>
__device__ void take_bytes(const arguments &p, const byte_memory<S> &m, const task<S> &t, int tile, const byte_pair<S> &c,
                           const byte_place &at, ring_place &r, int buffer, bool raise, byte_sums<S> &o) {
    float d[S::QUERY_ROWS / 2] = {}, s[S::N_TILES][4];
    bool inside = tile >= c.inside_from && tile + TILE <= c.inside_to; // all columns see all keys
    int stage = r.stage, key = tile + 16 * at.warp + at.group;
    barrier_wait(m.full + stage * 8, r.parity);
    start_scores<S>(m, stage, d);
    const float *scale = reinterpret_cast<const float *>(m.stages + stage * S::STAGE + at.scales);
    float key0 = scale[0], key1 = scale[8];
    if (!S::SHORT)
        r.next(S::N_STAGES);

    // Values come to registers while the products of the keys run.
    uint32_t v[S::M_TILES][2][4];
    if (!S::SHORT)
        barrier_wait(m.full + r.stage * 8, r.parity);
    load_values<S>(m.ring + r.stage * S::STAGE, at, v);
    scale = reinterpret_cast<const float *>(m.stages + r.stage * S::STAGE + at.scales);
    float by0 = scale[0], by1 = scale[8];
    if constexpr (!S::SHORT) {
        __syncwarp(); // all lanes have read
        barrier_arrive_warp(m.empty + r.stage * 8, at.lane);
    }
    r.next(S::N_STAGES);
    if (!inside) {
        clear_values<S>(tile, c.low, c.end, at, v);
        by0 = key >= c.low && key < c.end ? by0 : 0.0f;
        by1 = key + 8 >= c.low && key + 8 < c.end ? by1 : 0.0f;
    }

    products_wait<0>();
    registers_settle(d);
    __syncwarp(); // all lanes have read the scales
    barrier_arrive_warp(m.empty + stage * 8, at.lane);
    finish_scores<S>(p, d, c.by, key0, key1, s);
    if (!inside)
        hide<S>(t, key, at, s);
    uint32_t weights = m.weights + buffer * S::P;
    float l[S::N_TILES][2];
    if (!raise) { // most tiles: nothing passes
        bool passed = fmaxf(by0, by1) > o.reference;
#pragma unroll
        for (int n = 0; n < S::N_TILES; n++)
#pragma unroll
            for (int k = 0; k < 2; k++)
                passed = passed || fmaxf(s[n][k], s[n][k + 2]) > o.m[n][k] + P_SLACK;
        place_weights<S>(weights, s, o, by0 * o.per_reference, by1 * o.per_reference, at, l);
        raise = threads_any(1, S::COMPUTE, passed); // P is there
    }
    if (raise) {
        raise_largest<S>(m, s, by0, by1, at, o);
        place_weights<S>(weights, s, o, by0 * o.per_reference, by1 * o.per_reference, at, l);
        threads_sync(1, S::COMPUTE); // P is there
    }
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++) {
        o.l[n][0] = l[n][0];
        o.l[n][1] = l[n][1];
    }
    add_values<S>(weights, v, o);
}

/* The first block of a cluster gets what the others summed, [SHARE - 1][LEFT][128]; thread by thread, as all stand alike. i: how many pairs
 * were joined before. */
template <class S> __device__ void leave_to_first(const byte_memory<S> &m, int rank, int i, const byte_sums<S> &o) {
    if (i > 0)
        barrier_wait(m.merge_empty, (i - 1) & 1); // the first has read what was left before
    uint32_t joined = address_at_rank(m.joined, 0);
    uint32_t there = address_at_rank(shared_address(m.merge + (rank - 1) * S::LEFT * 128 + threadIdx.x), 0);
    store_at_rank(there, o.reference, joined);
#pragma unroll
    for (int n = 0, j = 1; n < S::N_TILES; n++) {
#pragma unroll
        for (int k = 0; k < 2; k++, j += 2) {
            store_at_rank(there + j * 512, o.m[n][k], joined);
            store_at_rank(there + (j + 1) * 512, o.l[n][k], joined);
        }
#pragma unroll
        for (int i = 0; i < S::M_TILES; i++)
#pragma unroll
            for (int k = 0; k < 4; k++, j++)
                store_at_rank(there + j * 512, o.o[i][n][k], joined);
    }
}

template <class S> __device__ void join_blocks(const byte_memory<S> &m, int i, byte_sums<S> &o) {
    int thread = threadIdx.x;
    if (thread == 0)
        barrier_expect(m.joined, (S::SHARE - 1) * S::LEFT * 512);
    barrier_wait(m.joined, i & 1); // what the others summed is there
    for (int n = 0; n < S::N_TILES; n++) {
        int j0 = 1 + n * (4 + 4 * S::M_TILES);
        float by[S::SHARE][2];
        for (int k = 0; k < 2; k++) {
            float most = o.m[n][k], l = 0;
            for (int g = 1; g < S::SHARE; g++)
                most = fmaxf(most, m.merge[((g - 1) * S::LEFT + j0 + 2 * k) * 128 + thread]);
            for (int g = 0; g < S::SHARE; g++) {
                const float *left = m.merge + (g - 1) * S::LEFT * 128 + thread;
                float w = weight_of(g ? left[(j0 + 2 * k) * 128] : o.m[n][k], most);
                l += w * (g ? left[(j0 + 2 * k + 1) * 128] : o.l[n][k]);
                by[g][k] = w * (g ? *left : o.reference);
            }
            o.m[n][k] = most;
            o.l[n][k] = l;
        }
        for (int i = 0; i < S::M_TILES; i++)
            for (int k = 0; k < 4; k++) {
                float x = o.o[i][n][k] * by[0][k % 2];
                for (int g = 1; g < S::SHARE; g++)
                    x += m.merge[((g - 1) * S::LEFT + j0 + 4 + 4 * i + k) * 128 + thread] * by[g][k % 2];
                o.o[i][n][k] = x;
            }
    }
    o.reference = 1;
}

/* This thread's channels of its columns, times `by`, and the bits of their largest size. */
template <class S, class STORE>
__device__ uint32_t store_columns(const task<S> &t, const byte_place &at, const byte_sums<S> &o, const float (&by)[S::N_TILES][2],
                                  int pair_bytes, STORE store) {
    uint32_t size = 0;
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            int c = 8 * n + 2 * at.quarter + k;
            bool there = c < t.n_columns;
            int64_t to = (t.out[c] / 2 + 8 * at.warp + at.group) * pair_bytes;
#pragma unroll
            for (int i = 0; i < S::M_TILES; i++) {
                float2 x = {o.o[i][n][k] * by[n][k], o.o[i][n][k + 2] * by[n][k]};
                size = there ? max(size, max(size_bits(x.x), size_bits(x.y))) : size;
                if (there)
                    store(to + S::moved(64 * i) / 2 * pair_bytes, x);
            }
        }
    return size;
}

/* The result of a pair in one piece. total: sums of P of this thread's columns. */
template <class S>
__device__ void store_pair(const arguments &p, const task<S> &t, const byte_place &at, const float (&total)[S::N_TILES][2],
                           const byte_sums<S> &o) {
    float by[S::N_TILES][2];
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++) {
        float2 sink = *reinterpret_cast<const float2 *>(t.sink + 8 * n + 2 * at.quarter);
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float from = k ? sink.y : sink.x, top = fmaxf(o.m[n][k], from), w = weight_of(o.m[n][k], top);
            by[n][k] = o.reference * (1 / P_UNIT) * __fdividef(w, total[n][k] * w + weight_of(from, top));
        }
    }
    char *out = static_cast<char *>(p.out.at);
    uint32_t size;
    if (p.out.element == ELEMENT_F32)
        size = store_columns<S>(t, at, o, by, 8, [=](int64_t to, float2 x) { *reinterpret_cast<float2 *>(out + to) = x; });
    else if (p.out.element == ELEMENT_F16)
        size = store_columns<S>(t, at, o, by, 4,
                                [=](int64_t to, float2 x) { *reinterpret_cast<uint32_t *>(out + to) = to_pair<false>(x.x, x.y); });
    else
        size = store_columns<S>(t, at, o, by, 4,
                                [=](int64_t to, float2 x) { *reinterpret_cast<uint32_t *>(out + to) = to_pair<true>(x.x, x.y); });
    fold_size<S>(p, t, size);
}

/* What a part of several leaves. */
template <class S>
__device__ void leave_part(const arguments &p, const task<S> &t, int kv, const byte_place &at, const float (&total)[S::N_TILES][2],
                           const byte_sums<S> &o) {
    float *left = partial_of<S>(p, t.part.at + t.part.part_of, kv), by = o.reference * (1 / P_UNIT);
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            int c = 8 * n + 2 * at.quarter + k;
            if (c >= t.n_columns)
                continue;
            if (at.warp == 0 && at.group == 0)
                __stcg(reinterpret_cast<float2 *>(left + S::COLUMNS * S::DIM + 2 * c), float2{o.m[n][k], total[n][k]});
#pragma unroll
            for (int i = 0; i < S::M_TILES; i++)
                __stcg(reinterpret_cast<float2 *>(left + c * S::DIM + S::moved(64 * i) + 16 * at.warp + 2 * at.group),
                       float2{o.o[i][n][k] * by, o.o[i][n][k + 2] * by});
        }
}

/* By the first block. */
template <class S>
__device__ void finish_pair(const arguments &p, const byte_memory<S> &m, const task<S> &t, int kv, const byte_place &at, byte_sums<S> &o) {
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            o.l[n][k] = sum_of_keys(o.l[n][k]);
            if (at.group == 0)
                m.sum[4 * (8 * n + 2 * at.quarter + k) + at.warp] = o.l[n][k];
        }
    threads_sync(1, S::COMPUTE); // every warp's sums are there
    float total[S::N_TILES][2];
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float4 of = *reinterpret_cast<const float4 *>(m.sum + 4 * (8 * n + 2 * at.quarter + k));
            total[n][k] = of.x + of.y + (of.z + of.w);
        }
    if (t.part.n_parts == 1)
        store_pair<S>(p, t, at, total, o);
    else
        leave_part<S>(p, t, kv, at, total, o);
}

} // namespace
