/* kv_int4.cuh - a KV cache of int4 on the device: where its parts lie, and how a row gets in.
 *
 * What codes and scales mean says core/kv_int4.h. A block has the bytes that the CPU's has (backend/cpu/cpu.h), so that
 * blocks may go from one to the other; for n_slots slots
 *
 *     key scales     [head][group][slot]   bf16      slots side by side, as scores of neighbours are wanted at once
 *     value scales   [head][slot][group]   bf16
 *     keys           [head][byte][slot]
 *     values         [head][slot][byte]
 *
 * A row is stored by a warp with the CPU's arithmetic, operation by operation (products and sums are never one), so
 * that equal rows give equal bytes: tests/ops/test_ops_int4_cache.c.
 *
 * Shared keys (core/ops.def, rotary_dim) keep of a key its turned channels alone, one half's behind the other's; the
 * others are its value's times the norm's weight, which is in the query. */
#pragma once

#include "backend/cuda/attention/heads.cuh"
#include "core/kv_int4.h"

__host__ __device__ inline int int4_groups(int n) { return (n + KV_INT4_GROUP - 1) / KV_INT4_GROUP; }
__host__ __device__ inline int int4_bytes(int n) {
    return n / KV_INT4_GROUP * (KV_INT4_GROUP / 2) + (n % KV_INT4_GROUP + 1) / 2;
}
/* Of the Hadamard matrix that turns a row of n channels. */
__host__ __device__ inline int int4_block_width(int n) { return n & -n; }

/* One channel of a byte and the other; of a group of fewer than 32 the last byte's other may be none: n. */
struct int4_pair {
    int low, high;
};
__device__ inline int4_pair int4_channels(int byte, int n) {
    int group = byte / 16, first = 32 * group, m = min(32, n - first), half = (m + 1) / 2, low = byte - 16 * group;
    return {first + low, low + half < m ? first + low + half : n};
}

struct int4_shape {
    int n_heads, k_dim, v_dim, n_slots;

    __host__ __device__ int64_t value_scales() const { return (int64_t)n_heads * int4_groups(k_dim) * n_slots * 2; }
    __host__ __device__ int64_t keys() const {
        return (int64_t)n_heads * (int4_groups(k_dim) + int4_groups(v_dim)) * n_slots * 2;
    }
    __host__ __device__ int64_t values() const { return keys() + (int64_t)n_heads * int4_bytes(k_dim) * n_slots; }
};

/* A row's scales and bytes: the first of either, and how many elements it is to the next. */
struct int4_row {
    uint16_t *scales;
    uint8_t *codes;
    int scale_step, code_step;
};
__device__ inline int4_row int4_key_row(const int4_shape &s, char *block, int head, int slot) {
    return {reinterpret_cast<uint16_t *>(block) + (int64_t)head * int4_groups(s.k_dim) * s.n_slots + slot,
            reinterpret_cast<uint8_t *>(block) + s.keys() + (int64_t)head * int4_bytes(s.k_dim) * s.n_slots + slot,
            s.n_slots, s.n_slots};
}
__device__ inline int4_row int4_value_row(const int4_shape &s, char *block, int head, int slot) {
    int64_t row = (int64_t)head * s.n_slots + slot;
    return {reinterpret_cast<uint16_t *>(block + s.value_scales()) + row * int4_groups(s.v_dim),
            reinterpret_cast<uint8_t *>(block) + s.values() + row * int4_bytes(s.v_dim), 1, 1};
}

/* The block that holds a position of a sequence. */
__device__ inline char *int4_block(const device_plan &p, const dcache &c, int n_slots, int seq, int position) {
    return static_cast<char *>(c.at) + block_start(p, c, n_slots, seq, position);
}

__device__ inline float int4_scale(uint16_t bits) { return __uint_as_float((uint32_t)bits << 16); }

// ---- rotation -----------------------------------------------------------------------------------------------------

/* Whether channel i changes its sign: core/kv_int4.c. */
__device__ inline uint64_t int4_signs(uint32_t i) { // of channels 64 i on
    uint64_t z = (i + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}
__device__ inline float int4_signed(int channel, float factor) {
    return int4_signs((uint32_t)channel / 64) >> channel % 64 & 1 ? -factor : factor;
}

/* Sums and differences of channels 1, 2, 4 ... apart, of a row in a warp's registers as heads.cuh has it. */
template <int V, int P> __device__ void int4_hadamard(int width, float (&x)[P]) {
#pragma unroll
    for (int apart = 1; apart < 32 * P; apart *= 2) {
        if (apart >= width)
            break;
        if (apart >= V && apart < 32 * V) {
            bool second = threadIdx.x & apart / V;
#pragma unroll
            for (int i = 0; i < P; i++) {
                float other = __shfl_xor_sync(0xffffffffu, x[i], apart / V);
                x[i] = second ? __fsub_rn(other, x[i]) : __fadd_rn(x[i], other);
            }
        } else {
            int step = apart < V ? apart : apart / 32; // pieces of V are 32 V channels apart
#pragma unroll
            for (int i = 0; i < P; i++) {
                if (i & step)
                    continue;
                float a = x[i], b = x[(i | step) % P];
                x[i] = __fadd_rn(a, b);
                x[(i | step) % P] = __fsub_rn(a, b);
            }
        }
    }
}

/* A row of n channels, zeros behind them; factor: 1 / sqrt(int4_block_width(n)). */
template <int V, int P> __device__ void int4_rotate(int n, float factor, float (&x)[P]) {
#pragma unroll
    for (int i = 0; i < P; i++)
        x[i] = __fmul_rn(x[i], int4_signed(channel<V>(i), factor));
    int4_hadamard<V, P>(int4_block_width(n), x);
}
template <int V, int P> __device__ void int4_rotate_back(int n, float factor, float (&x)[P]) {
    int4_hadamard<V, P>(int4_block_width(n), x);
#pragma unroll
    for (int i = 0; i < P; i++)
        x[i] = __fmul_rn(x[i], int4_signed(channel<V>(i), factor));
}

// ---- rounding -----------------------------------------------------------------------------------------------------

/* Where channel i of a row lies in shared memory: groups begin in different banks. */
__device__ inline int int4_padded(int i) { return i + i / KV_INT4_GROUP; }
__host__ __device__ inline int int4_row_floats(int n) { return n + int4_groups(n) + 16; } // with its scales

__device__ inline int int4_code(float x, float per_scale) {
    float scaled = __fmul_rn(x, per_scale);
    scaled = scaled < 7.0f ? scaled : 7.0f; // what is not a number too
    scaled = scaled > -8.0f ? scaled : -8.0f;
    return __float2int_rn(scaled) + 8;
}

__device__ inline float int4_error(const float *x, int n, float scale) {
    float per_scale = __fdiv_rn(1.0f, scale), sum = 0;
    for (int i = 0; i < n; i++) {
        float off = __fsub_rn(x[i], __fmul_rn(scale, (float)(int4_code(x[i], per_scale) - 8)));
        sum = __fadd_rn(sum, __fmul_rn(off, off));
    }
    return sum;
}

/* The first of the largest, or what is not a number. */
__device__ inline float int4_largest(const float *x, int n) {
    float most = 0;
    for (int i = 0; i < n; i++)
        most = most == most && !(fabsf(x[i]) <= fabsf(most)) ? x[i] : most;
    return most;
}

/* By a warp: a rotated row in shared memory, int4_padded, to its place; its scales stand behind it then. Four lanes
 * take a group, each one of its scales, and the first that leaves least is kept. */
__device__ inline void int4_store_row(float *row, int n, const int4_row &to) {
    int lane = threadIdx.x % 32, n_groups = int4_groups(n);
    float *scales = row + n + n_groups;
    for (int first = 0; first < n_groups; first += 8) {
        int group = min(first + lane / 4, n_groups - 1), m = min(KV_INT4_GROUP, n - KV_INT4_GROUP * group);
        const float *x = row + int4_padded(KV_INT4_GROUP * group);
        float step = -7.0f - 0.5f * (lane % 4);
        uint16_t mine = __bfloat16_as_ushort(__float2bfloat16_rn(__fdiv_rn(int4_largest(x, m), step)));
        float error = int4_error(x, m, int4_scale(mine)), least = INFINITY;
        uint16_t best = __shfl_sync(0xffffffffu, mine, lane & ~3);
        for (int k = 0; k < 4; k++) {
            float its = __shfl_sync(0xffffffffu, error, (lane & ~3) + k);
            uint16_t scale = __shfl_sync(0xffffffffu, mine, (lane & ~3) + k);
            best = its < least ? scale : best;
            least = its < least ? its : least;
        }
        bool finite = isfinite(int4_scale(best));
        if (lane % 4 == 0 && first + lane / 4 < n_groups) {
            to.scales[(int64_t)group * to.scale_step] = finite ? best : 0x7fc0;
            scales[group] = finite && int4_scale(best) != 0.0f ? __fdiv_rn(1.0f, int4_scale(best)) : 0.0f;
        }
    }
    __syncwarp(); // the scales are there
    for (int byte = lane; byte < int4_bytes(n); byte += 32) {
        int4_pair c = int4_channels(byte, n);
        float per_scale = scales[c.low / KV_INT4_GROUP];
        int low = int4_code(row[int4_padded(c.low)], per_scale),
            high = c.high < n ? int4_code(row[int4_padded(c.high)], per_scale) : 8;
        to.codes[(int64_t)byte * to.code_step] = (uint8_t)(low | high << 4);
    }
}
