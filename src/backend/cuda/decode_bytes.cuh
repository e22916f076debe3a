/* decode_bytes.cuh - of attention_decode_bytes.cu: sizes, shared memory, and what the warpgroup does with queries and a tile.
 *
 * A number x is the sum of terms of e4m3, x = t0 + t1/16 + t2/256, each the rest of those before it: three terms hold the 11 bits of a
 * float16, two hold 8. Terms stand as further rows of the right operand: rows (term * N_TILES + n) * 8 + column. */
#pragma once

#include "backend/cuda/decode_join.cuh"
#include "backend/cuda/wgmma_bytes.cuh"

namespace {

constexpr int max_of(int a, int b) { return a > b ? a : b; }

template <int DIM_, int N_TILES_, int GROUPS_> struct byte_shape {
    static constexpr int DIM = DIM_, N_TILES = N_TILES_, COLUMNS = 8 * N_TILES, GROUPS = GROUPS_;
    static constexpr element E = ELEMENT_E4M3;
    static constexpr bool BYTES = true;
    static constexpr int ROW = DIM, PANEL = ROW % 128 == 0 ? 128 : 64, N_PANELS = ROW / PANEL;
    static constexpr int COMPUTE = 128 * GROUPS, THREADS = COMPUTE + 64;
    static constexpr int M_TILES = DIM / 64;                  // of channels
    static constexpr int AT_ONCE = M_TILES < 4 ? M_TILES : 4; // of them, whose products are under way
    static constexpr int QUERY_TERMS = 3, P_TERMS = 2;
    static constexpr int QUERY_ROWS = COLUMNS * QUERY_TERMS, P_ROWS = COLUMNS * P_TERMS;
    static constexpr int QUERY = QUERY_ROWS * DIM, P = P_ROWS * TILE; // bytes
    static constexpr int STAGE = ROW * TILE + PANEL * 8;              // panels of 8 rows are aligned
    static constexpr int MAX_ROW = DIM * 4 + 32;                      // as in decode_shape.cuh
    static constexpr int LEFT = (4 * M_TILES + 4) * N_TILES + 1;      // floats that a thread of a group leaves to the first
    static constexpr int MERGE = max_of(2 * 64 * COLUMNS * 4, (GROUPS - 1) * LEFT * 512);
    static constexpr int FIXED = QUERY + 2 * P * GROUPS + MERGE + COLUMNS * MAX_ROW + 2 * (COLUMNS * 24 + 80) + (2 * MAX_STAGES + 4) * 8 +
                                 ((GROUPS + 1) * KEY_WARPS + 2) * COLUMNS * 4;
    static constexpr int BLOCKS = GROUPS > 1 || DIM == 512 ? 1 : 2; // an SM
    static constexpr int BUDGET = (BLOCKS == 1 && DIM > 128 ? 226 : BLOCKS < 3 ? 109 : 73) * 1024 - FIXED;
    static constexpr int RING = (BUDGET / STAGE < MAX_STAGES ? BUDGET / STAGE : MAX_STAGES) / GROUPS; // stages of a warpgroup
    static constexpr int N_STAGES = RING * GROUPS, SHARED = FIXED + N_STAGES * STAGE + 1024;
    static_assert(RING >= 2 && DIM % 64 == 0, "at least keys and values of a tile fit");
};

template <class S> struct byte_memory {
    uint32_t ring, full, empty, queries_full, queries_empty, task_empty; // addresses in shared memory
    uint32_t query, weights;                                             // operands: queries; P, two of them
    char *stages, *queries;
    task<S> *tasks;
    float *merge, *largest, *sum, *factor, *query_factor; // [GROUPS][KEY_WARPS][COLUMNS], [KEY_WARPS][COLUMNS], [COLUMNS] twice

    __device__ explicit byte_memory(char *base) {
        char *at = base + (1024 - (shared_address(base) & 1023)) % 1024;
        stages = at;
        ring = shared_address(at);
        at += S::N_STAGES * S::STAGE;
        query = shared_address(at);
        at += S::QUERY;
        weights = shared_address(at);
        at += 2 * S::P * S::GROUPS;
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
        largest = reinterpret_cast<float *>(at + (2 * MAX_STAGES + 4) * 8);
        sum = largest + S::GROUPS * KEY_WARPS * S::COLUMNS;
        factor = sum + KEY_WARPS * S::COLUMNS;
        query_factor = factor + S::COLUMNS;
    }
};

/* Where a computing thread stands: keys 16 warp + group and + 8 of a tile; channels 16 warp + 2 group and + 1 of every 64. */
struct byte_place {
    int lane, warp, group, quarter, of; // `of`: which warpgroup of the block
};

template <class S> struct byte_sums {
    float o[S::M_TILES][S::N_TILES][4];       // [k]: channel 2 group + k / 2, column 2 quarter + k % 2
    float m[S::N_TILES][2], l[S::N_TILES][2]; // of the columns; l of this thread's keys alone
    float reference;                          // a power of two, no less than any scale of values yet

    __device__ void clear() {
        for (int i = 0; i < S::M_TILES; i++)
            for (int n = 0; n < S::N_TILES; n++)
                for (int k = 0; k < 4; k++)
                    o[i][n][k] = 0;
        for (int n = 0; n < S::N_TILES; n++)
            for (int k = 0; k < 2; k++) {
                m[n][k] = -INFINITY;
                l[n][k] = 0;
            }
        reference = 0;
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

__device__ void store_two(const dmat &out, int64_t at, float2 x) {
    if (out.element == ELEMENT_F32)
        *reinterpret_cast<float2 *>(static_cast<float *>(out.at) + at) = x;
    else
        *reinterpret_cast<uint32_t *>(static_cast<char *>(out.at) + at * 2) =
            out.element == ELEMENT_F16 ? to_pair<false>(x.x, x.y) : to_pair<true>(x.x, x.y);
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
#pragma unroll
    for (int column = threadIdx.x / 32; column < S::COLUMNS; column += S::COMPUTE / 32) {
        float4 x[FOURS];
        float most = 0;
#pragma unroll
        for (int j = 0; j < FOURS; j++) {
            int channel = 4 * (at.lane + 32 * j);
            bool there = column < n_columns && channel < S::DIM;
            x[j] = there ? four_of_query(m.queries + column * pitch, p.q.element, channel) : float4{0, 0, 0, 0};
            most = fmaxf(most, largest_size(x[j]));
        }
        int exponent = (int)(__reduce_max_sync(0xffffffffu, __float_as_uint(most)) >> 23);
        exponent = min(max(exponent, 30), 230);
        float by = __uint_as_float((uint32_t)(261 - exponent) << 23);
        if (at.lane == 0)
            m.query_factor[column] = __uint_as_float((uint32_t)(exponent - 7) << 23);
#pragma unroll
        for (int j = 0; j < FOURS; j++) {
            int channel = 4 * (at.lane + 32 * j);
            x[j] = {x[j].x * by, x[j].y * by, x[j].z * by, x[j].w * by};
#pragma unroll
            for (int term = 0; term < S::QUERY_TERMS; term++) {
                int row = term * S::COLUMNS + column;
                uint32_t word = take_term(x[j]);
                if (channel < S::DIM)
                    store_shared(m.query + (channel / S::PANEL) * S::QUERY_ROWS * S::PANEL + row * S::PANEL +
                                     kv_swizzled(S::PANEL, row, channel % S::PANEL),
                                 word);
            }
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
            load_matrices_turned(words, piece<S>(stage, 32 * h + at.lane, 4 * i + at.warp));
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

/* P of this thread's keys and columns, times by0 and by1 of its keys, as terms in the right operand. */
template <class S>
__device__ void place_weights(uint32_t to, const float (&s)[S::N_TILES][4], const byte_sums<S> &o, float by0, float by1,
                              const byte_place &at, float (&l)[S::N_TILES][2]) {
    int odd = at.group & 1, column = 2 * at.quarter + odd;
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++) {
        float x[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float m = o.m[n][k % 2];
            x[k] = exp2_fast(s[n][k] - (m == -INFINITY ? 0.0f : m));
        }
        l[n][0] = o.l[n][0] + x[0] + x[2];
        l[n][1] = o.l[n][1] + x[1] + x[3];
        float4 rest = {x[0] * by0, x[1] * by0, x[2] * by1, x[3] * by1};
#pragma unroll
        for (int term = 0; term < S::P_TERMS; term++) { // two lanes swap: four keys of one column each
            uint32_t mine = take_term(rest), other = __shfl_xor_sync(0xffffffffu, mine, 4);
            int row = term * S::COLUMNS + 8 * n + column;
            store_shared(to + row * TILE + kv_swizzled(TILE, row, 16 * at.warp + 4 * (at.group / 2)),
                         __byte_perm(mine, other, odd ? 0x3715 : 0x6240));
        }
    }
    fence_bulk();
}

/* Raises m to the largest score yet, over the group; what was summed shrinks. */
template <class S>
__device__ void raise_largest(const byte_memory<S> &m, const float (&s)[S::N_TILES][4], const byte_place &at, byte_sums<S> &o) {
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++) {
        float most0 = largest_of_keys(fmaxf(s[n][0], s[n][2])), most1 = largest_of_keys(fmaxf(s[n][1], s[n][3]));
        if (at.group == 0)
            *reinterpret_cast<float2 *>(m.largest + (4 * at.of + at.warp) * S::COLUMNS + 8 * n + 2 * at.quarter) = {most0, most1};
    }
    threads_sync(2 + at.of, 128); // every warp's largest are there
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++) {
        float most[2] = {o.m[n][0], o.m[n][1]}, by[2];
#pragma unroll
        for (int w = 0; w < KEY_WARPS; w++) {
            float2 x = *reinterpret_cast<const float2 *>(m.largest + (4 * at.of + w) * S::COLUMNS + 8 * n + 2 * at.quarter);
            most[0] = fmaxf(most[0], x.x);
            most[1] = fmaxf(most[1], x.y);
        }
#pragma unroll
        for (int k = 0; k < 2; k++) {
            by[k] = most[k] == -INFINITY ? 1.0f : exp2_fast(o.m[n][k] - most[k]);
            o.m[n][k] = most[k];
            o.l[n][k] *= by[k];
        }
        o.shrink(n, by[0], by[1]);
    }
}

/* What a thread knows of a pair. */
template <class S> struct byte_pair {
    int low, end, inside_from, inside_to;
    float by[S::N_TILES][2]; // of its columns: what scores are multiplied by
};

constexpr float P_UNIT = 16, P_SLACK = 4; // P is multiplied by P_UNIT, and passes 1 by 2^P_SLACK at most: 256 in all

template <class S>
__device__ void take_bytes(const arguments &p, const byte_memory<S> &m, const task<S> &t, int tile, const byte_pair<S> &c,
                           const byte_place &at, ring_place &r, int buffer, bool raise, byte_sums<S> &o) {
    float d[S::QUERY_ROWS / 2] = {}, s[S::N_TILES][4];
    uint32_t keys = m.ring + r.stage * S::STAGE, keys_empty = m.empty + r.stage * 8;
    const char *key_scales = m.stages + r.stage * S::STAGE + S::ROW * TILE;
    barrier_wait(m.full + r.stage * 8, r.parity);
    products_begin();
#pragma unroll
    for (int k = 0; k < S::DIM / 32; k++) {
        int panel = k * 32 / S::PANEL, step = k % (S::PANEL / 32) * 2;
        byte_product<S::QUERY_ROWS>::of_shared(d, byte_rows(keys + panel * TILE * S::PANEL, S::PANEL) + step,
                                               byte_rows(m.query + panel * S::QUERY_ROWS * S::PANEL, S::PANEL) + step, k > 0);
    }
    products_commit();
    const float *scale = reinterpret_cast<const float *>(key_scales) + 16 * at.warp + at.group;
    float key0 = scale[0], key1 = scale[8];
    r.next(S::RING);

    // Values come to registers while the products of the keys run.
    uint32_t v[S::M_TILES][2][4];
    int j = tile + 16 * at.warp + at.group;
    barrier_wait(m.full + r.stage * 8, r.parity);
    load_values<S>(m.ring + r.stage * S::STAGE, at, v);
    if (tile < c.low || tile + TILE > c.end)
        clear_values<S>(tile, c.low, c.end, at, v);
    const float *scales = reinterpret_cast<const float *>(m.stages + r.stage * S::STAGE + S::ROW * TILE);
    float by0 = j >= c.low && j < c.end ? scales[16 * at.warp + at.group] : 0.0f;
    float by1 = j + 8 >= c.low && j + 8 < c.end ? scales[16 * at.warp + at.group + 8] : 0.0f;
    int k0 = tile + at.lane;
    float first = k0 >= c.low && k0 < c.end ? scales[at.lane] : 0.0f;
    float second = k0 + 32 >= c.low && k0 + 32 < c.end ? scales[at.lane + 32] : 0.0f;
    uint32_t most = __reduce_max_sync(0xffffffffu, __float_as_uint(fminf(fmaxf(fmaxf(first, second), 1e-30f), 1e30f)));
    __syncwarp(); // all lanes have read
    if (at.lane == 0)
        barrier_arrive(m.empty + r.stage * 8);
    r.next(S::RING);
    float reference = __uint_as_float((most + 0x7fffffu) & 0x7f800000u);
    if (reference > o.reference) { // alike in all warps
        float by = o.reference / reference;
#pragma unroll
        for (int n = 0; n < S::N_TILES; n++)
            o.shrink(n, by, by);
        o.reference = reference;
    }
    float per_reference = __uint_as_float((254u << 23) - __float_as_uint(o.reference)) * P_UNIT;

    products_wait<0>();
    registers_settle(d);
    __syncwarp(); // all lanes have read the scales
    if (at.lane == 0)
        barrier_arrive(keys_empty);
    finish_scores<S>(p, d, c.by, key0, key1, s);
    if (tile < c.inside_from || tile + TILE > c.inside_to)
        hide<S>(t, j, at, s);
    bool passed = false;
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            passed = passed || s[n][k] > o.m[n][k % 2] + P_SLACK;
    uint32_t weights = m.weights + (2 * at.of + buffer) * S::P;
    float l[S::N_TILES][2];
    if (!raise) { // most tiles: no score passes
        place_weights<S>(weights, s, o, by0 * per_reference, by1 * per_reference, at, l);
        raise = threads_any(2 + at.of, 128, passed); // P is there
    }
    if (raise) {
        raise_largest<S>(m, s, at, o);
        place_weights<S>(weights, s, o, by0 * per_reference, by1 * per_reference, at, l);
        threads_sync(2 + at.of, 128); // P is there
    }
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++) {
        o.l[n][0] = l[n][0];
        o.l[n][1] = l[n][1];
    }
#pragma unroll
    for (int i0 = 0; i0 < S::M_TILES; i0 += S::AT_ONCE) {
        float acc[S::AT_ONCE][S::P_ROWS / 2] = {};
        products_begin();
#pragma unroll
        for (int i = 0; i < S::AT_ONCE; i++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                byte_product<S::P_ROWS>::of_registers(acc[i], v[i0 + i][h], byte_rows(weights, TILE) + 2 * h, h);
        products_commit();
        products_wait<0>();
#pragma unroll
        for (int i = 0; i < S::AT_ONCE; i++) {
            registers_settle(acc[i]);
#pragma unroll
            for (int n = 0; n < S::N_TILES; n++)
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    float low = 0;
#pragma unroll
                    for (int term = S::P_TERMS - 1; term > 0; term--)
                        low = (acc[i][4 * (term * S::N_TILES + n) + k] + low) * 0.0625f;
                    o.o[i0 + i][n][k] += acc[i][4 * n + k] + low;
                }
        }
    }
}

/* The first warpgroup gets what the others summed; thread by thread, as all stand alike. */
template <class S> __device__ void join_groups(const byte_memory<S> &m, const byte_place &at, byte_sums<S> &o) {
    int thread = threadIdx.x % 128;
    if (at.of > 0) {
        float *left = m.merge + (at.of - 1) * S::LEFT * 128 + thread;
        *left = o.reference;
        for (int n = 0, j = 1; n < S::N_TILES; n++) {
            for (int k = 0; k < 2; k++, j += 2) {
                left[j * 128] = o.m[n][k];
                left[(j + 1) * 128] = o.l[n][k];
            }
            for (int i = 0; i < S::M_TILES; i++)
                for (int k = 0; k < 4; k++, j++)
                    left[j * 128] = o.o[i][n][k];
        }
    }
    threads_sync(1, S::COMPUTE); // what the others summed is there
    if (at.of > 0)
        return;
    for (int n = 0; n < S::N_TILES; n++) {
        int j0 = 1 + n * (4 + 4 * S::M_TILES);
        float by[S::GROUPS][2];
        for (int k = 0; k < 2; k++) {
            float most = o.m[n][k], l = 0;
            for (int g = 1; g < S::GROUPS; g++)
                most = fmaxf(most, m.merge[((g - 1) * S::LEFT + j0 + 2 * k) * 128 + thread]);
            for (int g = 0; g < S::GROUPS; g++) {
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
                for (int g = 1; g < S::GROUPS; g++)
                    x += m.merge[((g - 1) * S::LEFT + j0 + 4 + 4 * i + k) * 128 + thread] * by[g][k % 2];
                o.o[i][n][k] = x;
            }
    }
    o.reference = 1;
}

/* The result of a pair in one piece, or what its part leaves: by the first warpgroup. */
template <class S>
__device__ void finish_pair(const arguments &p, const byte_memory<S> &m, const task<S> &t, int kv, const byte_place &at, byte_sums<S> &o) {
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            o.l[n][k] = sum_of_keys(o.l[n][k]);
            if (at.group == 0)
                m.sum[at.warp * S::COLUMNS + 8 * n + 2 * at.quarter + k] = o.l[n][k];
        }
    threads_sync(2, 128); // every warp's sums are there
    bool whole = t.part.n_parts == 1;
    float *left = whole ? nullptr : partial_of<S>(p, t.part.at + t.part.part_of, kv), unit = o.reference / P_UNIT;
    uint32_t size = 0;
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            int c = 8 * n + 2 * at.quarter + k, channel = 16 * at.warp + 2 * at.group;
            float total = 0, by = unit;
            for (int w = 0; w < KEY_WARPS; w++)
                total += m.sum[w * S::COLUMNS + c];
            if (c >= t.n_columns)
                continue;
            if (whole) {
                float top = fmaxf(o.m[n][k], t.sink[c]);
                by *= weight_of(o.m[n][k], top) / (total * weight_of(o.m[n][k], top) + weight_of(t.sink[c], top));
            } else if (at.warp == 0 && at.group == 0) {
                __stcg(reinterpret_cast<float2 *>(left + S::COLUMNS * S::DIM + 2 * c), float2{o.m[n][k], total});
            }
#pragma unroll
            for (int i = 0; i < S::M_TILES; i++) {
                float2 x = {o.o[i][n][k] * by, o.o[i][n][k + 2] * by};
                size = max(size, max(size_bits(x.x), size_bits(x.y)));
                if (!whole)
                    __stcg(reinterpret_cast<float2 *>(left + c * S::DIM + 64 * i + channel), x);
                else
                    store_two(p.out, t.out[c] + 64 * i + channel, x);
            }
        }
    if (whole)
        fold_size<S>(p, t, size);
}

} // namespace
