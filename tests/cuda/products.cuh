/* products.cuh - what the tests of products from e4m3 values share: random operands, products in double precision, and the heads that a
 * product may turn (struct dheads) with a look at where they went. */
#pragma once

#include "backend/cuda/kv.cuh"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <vector>

#define MUST(call)                                                                \
    do {                                                                          \
        cudaError_t code_ = (call);                                               \
        if (code_ != cudaSuccess) {                                               \
            printf("%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(code_)); \
            fflush(stdout);                                                       \
            exit(1);                                                              \
        }                                                                         \
    } while (0)

static __device__ __host__ uint32_t hash(uint64_t i) {
    i += 0x9e3779b97f4a7c15u;
    i = (i ^ i >> 30) * 0xbf58476d1ce4e5b9u;
    i = (i ^ i >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)(i >> 32);
}
static __device__ double e4m3_value(unsigned char v) {
    int e = v >> 3 & 15, m = v & 7;
    double size = e ? ldexp(8.0 + m, e - 10) : ldexp((double)m, -9);
    return v & 0x80 ? -size : size;
}

static __global__ void fill8(unsigned char *at, size_t n, uint64_t seed) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        unsigned char v = (unsigned char)hash(seed * 0x100000000u + i);
        at[i] = (v & 0x7f) == 0x7f ? 0 : v;
    }
}
static __global__ void fill32(float *at, size_t n, uint64_t seed, float low, float high) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        at[i] = low + (high - low) * (hash(seed * 0x100000000u + i) >> 8) / 16777216.0f;
}

/* products[token][row] and the sum of their sizes. */
static __global__ void reference(const unsigned char *w, const unsigned char *x, int64_t x_stride, const float *w_scale,
                                 const float *x_scale, const float *bias, int out, int in, double *products, double *sizes) {
    int row = blockIdx.x * blockDim.y + threadIdx.y, token = blockIdx.y;
    if (row >= out)
        return;
    double sum = 0, size = 0;
    for (int i = threadIdx.x; i < in; i += 32) {
        double t = e4m3_value(w[(int64_t)row * in + i]) * e4m3_value(x[token * x_stride + i]);
        sum += t, size += t * t;
    }
    for (int s = 16; s > 0; s /= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, s);
        size += __shfl_xor_sync(0xffffffffu, size, s);
    }
    if (threadIdx.x == 0) {
        double scale = (double)w_scale[row] * x_scale[token];
        products[(int64_t)token * out + row] = sum * scale + (bias ? bias[row] : 0);
        sizes[(int64_t)token * out + row] = sqrt(size) * scale;
    }
}

// ---- heads ----------------------------------------------------------------------------------------------------------

/* What a step of n tokens, of as many sequences, needs to turn heads: the last row is padding, blocks are in some order. */
struct heads {
    dheads h;
    int n_blocks, n_tokens; // n_tokens: that the step has
    std::vector<int> position, block;
    int64_t block_bytes;
};

template <class T> static T *there(const std::vector<T> &v) {
    T *p;
    MUST(cudaMalloc(&p, v.size() * sizeof(T)));
    MUST(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
    return p;
}

static heads heads_of(int n_heads, int n_kv, int dim, int n, element e, uint64_t seed) {
    const int SLOTS = 64, WIDTH = 3;
    heads t = {};
    t.n_blocks = n * WIDTH;
    t.n_tokens = n > 1 ? n - 1 : n;
    t.block_bytes = (int64_t)n_kv * SLOTS * (2 * dim * kv_element_bytes(e) + (kv_has_scales(e) ? 8 : 0));
    std::vector<int> table(n * WIDTH), rows(n);
    std::vector<float> angles((size_t)n * dim), bound(2 * n_kv);
    for (int i = 0; i < n * WIDTH; i++)
        table[i] = i;
    for (int i = n * WIDTH - 1; i > 0; i--)
        std::swap(table[i], table[hash(seed * 31 + i) % (i + 1)]);
    for (int i = 0; i < n; i++) {
        t.position.push_back(hash(seed + i) % (SLOTS * WIDTH));
        rows[i] = n - 1 - i; // sequence of a row
        t.block.push_back(table[rows[i] * WIDTH + t.position[i] / SLOTS]);
        for (int c = 0; c < dim / 2; c++) { // cosines, then sines
            double at = hash(seed * 17 + i * dim + c) * 1e-9;
            angles[i * dim + c] = (float)cos(at);
            angles[i * dim + dim / 2 + c] = (float)sin(at);
        }
    }
    for (float &b : bound)
        b = 200.0f + hash(seed++) % 100;
    t.h = {n_heads, n_kv, dim, dim, 0, there(angles), {}, SLOTS, there(bound), {}};
    MUST(cudaMalloc(&t.h.cache.at, t.n_blocks * t.block_bytes));
    MUST(cudaMemset(t.h.cache.at, 0xff, t.n_blocks * t.block_bytes));
    t.h.cache.block_elements = t.block_bytes / kv_element_bytes(e);
    t.h.cache.element = e;
    t.h.plan.counts = there(std::vector<int>(3, t.n_tokens));
    t.h.plan.position = there(t.position);
    t.h.plan.seq_of_row = there(rows);
    t.h.plan.block_table[0] = there(table);
    t.h.plan.table_width[0] = WIDTH;
    return t;
}

static void free_heads(const heads &t) {
    const void *all[] = {t.h.cos_sin,       t.h.bound,           t.h.cache.at,           t.h.plan.counts,
                         t.h.plan.position, t.h.plan.seq_of_row, t.h.plan.block_table[0]};
    for (const void *p : all)
        MUST(cudaFree(const_cast<void *>(p)));
}

static double stored(const char *at, element e) {
    if (e == ELEMENT_E4M3)
        return (float)*reinterpret_cast<const __nv_fp8_e4m3 *>(at);
    return e == ELEMENT_F16 ? __half2float(*reinterpret_cast<const __half *>(at))
                            : __bfloat162float(*reinterpret_cast<const __nv_bfloat16 *>(at));
}

/* What came back of a step's heads. */
struct turned {
    std::vector<double> products, sizes;
    std::vector<char> blocks, queries;
    std::vector<float> angles, bound;
};

/* The worst of all channels over its bound, rotated in double. What was looked at is poisoned again, and then all must be poison. */
static double worst_of_heads(const heads &t, turned &got, int q_width, element q) {
    const dheads &h = t.h;
    int n_all = h.n_heads + 2 * h.n_kv_heads, dim = h.head_dim;
    kv_shape shape = {h.n_kv_heads, dim, dim, h.n_slots, h.cache.element};
    double worst = 0;
    for (int r = 0; r < t.n_tokens; r++)
        for (int i = 0; i < n_all * dim; i++) {
            int head = i / dim, c = i % dim, kv = head - h.n_heads, k = kv % h.n_kv_heads, slot = t.position[r] % h.n_slots;
            int other = head * dim + (c + dim / 2) % dim;
            const double *p = &got.products[(size_t)r * n_all * dim], *size = &got.sizes[(size_t)r * n_all * dim];
            double cosine = got.angles[r * dim + c % (dim / 2)], sine = got.angles[r * dim + dim / 2 + c % (dim / 2)];
            if (kv >= h.n_kv_heads)
                cosine = 1, sine = 0;
            double expected = p[i] * cosine + (c < dim / 2 ? -1 : 1) * p[other] * sine;
            double allowed = 2e-2 * (fabs(cosine) * size[i] + fabs(sine) * size[other]);
            char *block = &got.blocks[t.block[r] * t.block_bytes], *at = &got.queries[((size_t)r * q_width + i) * 2];
            if (kv >= 0)
                at = block + (kv < h.n_kv_heads ? shape.key(k, slot, c) : shape.value(k, slot, c));
            element e = kv < 0 ? q : h.cache.element;
            double value = stored(at, e);
            if (e == ELEMENT_E4M3) {
                float scale = *(float *)(block + shape.scale(kv >= h.n_kv_heads, k, slot));
                if (c == 0 && scale != got.bound[kv] / 448.0f)
                    return INFINITY;
                value *= scale;
                allowed += scale * 0x1p-9;
            }
            allowed += fabs(expected) * (e == ELEMENT_E4M3 ? 0x1p-4 : e == ELEMENT_F16 ? 5e-4 : 4e-3) + 1e-6;
            double off = fabs(value - expected) / allowed;
            worst = off <= worst ? worst : off == off ? off : INFINITY;
            memset(at, 0xff, kv_element_bytes(e));
        }
    for (int r = 0; r < t.n_tokens && kv_has_scales(h.cache.element); r++)
        for (int k = 0; k < 2 * h.n_kv_heads; k++)
            memset(&got.blocks[t.block[r] * t.block_bytes + shape.scale(k >= h.n_kv_heads, k % h.n_kv_heads, t.position[r] % h.n_slots)],
                   0xff, 4);
    return worst;
}

template <class T> static void fetch(std::vector<T> &v, const void *from, size_t n) {
    v.resize(n);
    MUST(cudaMemcpy(v.data(), from, n * sizeof(T), cudaMemcpyDeviceToHost));
}

/* Whether what a product of in-range sums left in y and in the cache is right, and nothing else was written; says how far off. y has
 * rows_there rows of poison before. */
static bool heads_are_right(const heads &t, int n, const double *products, const double *sizes, const void *y, int rows_there, element q) {
    int dim = t.h.head_dim, out = (t.h.n_heads + 2 * t.h.n_kv_heads) * dim, width = t.h.n_heads * dim;
    turned got;
    fetch(got.products, products, (size_t)n * out);
    fetch(got.sizes, sizes, (size_t)n * out);
    fetch(got.blocks, t.h.cache.at, t.n_blocks * t.block_bytes);
    fetch(got.queries, y, (size_t)rows_there * width * 2);
    fetch(got.angles, t.h.cos_sin, (size_t)n * dim);
    fetch(got.bound, t.h.bound, 2 * t.h.n_kv_heads);
    double worst = worst_of_heads(t, got, width, q);
    size_t stray = 0;
    for (const auto *v : {&got.blocks, &got.queries})
        for (char byte : *v)
            stray += byte != (char)0xff;
    bool right = worst <= 1 && !stray;
    printf("worst %.3f of the bound, stray %zu%s\n", worst, stray, right ? "" : " WRONG");
    return right;
}
