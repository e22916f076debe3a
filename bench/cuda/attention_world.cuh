/* attention_world.cuh - of attention.cu: queries, caches and plans of a setup on the device. */
#pragma once

#include "backend/cuda/attention/attention.h"
#include "backend/cuda/attention/attention_parts.h"
#include "backend/cuda/attention/decode/attention_decode.h"
#include "backend/cuda/attention/kv.cuh"
#include "backend/cuda/attention/prefill/attention_prefill.h"
#include "backend/cuda/rows/rows.h"
#include "backend/cuda/value.h"
#include "graph_time.cuh"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

static constexpr double READ_RATE = 4.6e12; // of an H200, measured (bytes a second)
static std::mt19937 rng(12345);
static const char *only = ""; // what check is to check
static int turned;            // of what is built next: 128 of 512 channels are shared keys' (kv.cuh); 0: keys are whole

static void try_(cudaError_t code, const char *what) {
    if (code == cudaSuccess)
        return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(code));
    exit(2);
}
#define TRY_CUDA(call) try_((call), #call)

template <class T> static T *device(size_t n) {
    T *p;
    TRY_CUDA(cudaMalloc(&p, std::max<size_t>(n, 1) * sizeof(T)));
    return p;
}
template <class T> static T *to_device(const std::vector<T> &v) {
    T *p = device<T>(v.size());
    TRY_CUDA(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
    return p;
}

static __device__ float random_float(uint64_t i, uint32_t seed) { // about normal
    float sum = 0;
    uint64_t x = i * 0x9E3779B97F4A7C15ull + seed;
    for (int k = 0; k < 4; k++) {
        x = (x ^ (x >> 31)) * 0xBF58476D1CE4E5B9ull;
        x ^= x >> 29;
        sum += (float)(uint32_t)(x >> 16) * 0x1p-32f - 0.5f;
    }
    return sum * 1.7f;
}

static __global__ void fill_queries(dmat q, int64_t n, uint32_t seed) {
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x)
        store(q.at, i, q.element, random_float(i, seed));
}

/* Keys and values of positions [from, to) of each sequence; a block a slot of a sequence and head. */
static __global__ void fill_cache(device_plan plan, dcache cache, int n_heads, int dim, int turned, int n_slots,
                                  const int *from, const int *to, uint32_t seed) {
    __shared__ float shared[32];
    int s = blockIdx.y, h = blockIdx.z;
    kv_shape shape = {n_heads, turned ? turned : dim, dim, n_slots, cache.element, turned > 0};
    for (int j = from[s] + blockIdx.x; j < to[s]; j += gridDim.x) {
        char *block = kv_block(plan, cache, n_slots, s, j);
        for (int side = 0; side < 2; side++) {
            uint64_t row = (((uint64_t)s * 1000003 + j) * n_heads + h) * 2 + side;
            float x[8], most = 0, size = 0.5f + random_float(turned ? row | 1 : row, seed + 1) * 0.2f;
            for (int i = threadIdx.x, k = 0; i < dim; i += blockDim.x, k++)
                most = fmaxf(most, fabsf(x[k] = size * random_float(row * 1024 + i, seed)));
            most = turned ? 3.4f * fabsf(size) : block_max(most, shared); // of shared keys both sides have one scale
            float scale = kv_has_scales(cache.element) ? kv_scale(cache.element, most) : 1.0f;
            for (int i = threadIdx.x, k = 0; i < dim; i += blockDim.x, k++)
                if (side || !turned || kv_moved(i, dim, turned) < turned)
                    kv_store(block + (side ? shape.value(h, j % n_slots, i) : shape.key(h, j % n_slots, i)),
                             cache.element, x[k] / scale);
            if (threadIdx.x == 0 && kv_has_scales(cache.element))
                *(float *)(block + shape.scale(side, h, j % n_slots)) = scale;
        }
    }
}

struct setup {
    const char *name;
    int n_heads, n_kv, dim, window, chunk;
    float softcap;
    bool sinks;
    element e;
    int n_slots;
    std::vector<int> lens, queries; // seq_len with this step's tokens, of which there are so many
    int columns, most_decode = 8;   // of the decode kernel: columns of a part, tokens of a sequence
};

struct world {
    setup s;
    launch l;
    dattention a;
    dparts parts, long_parts;
    std::vector<dcache> caches;
    dmat q, out, plain;
    dweight sinks;
    int n_tokens;
    double bytes; // of keys and values that are read
    std::vector<void *> owned;
};

static int64_t row_bytes(const setup &s) { // of a key and its value
    return ((turned ? turned : s.dim) + s.dim) * kv_element_bytes(s.e) + (!kv_has_scales(s.e) ? 0 : turned ? 4 : 8);
}
static int64_t block_bytes(const setup &s) { return s.n_kv * s.n_slots * row_bytes(s); }

static world build(const setup &s, int n_caches) {
    world w;
    w.s = s;
    int S = (int)s.lens.size(), width = 1, n_blocks = 0, T = 0;
    for (int len : s.lens)
        width = std::max(width, (len + s.n_slots - 1) / s.n_slots);
    for (int len : s.lens)
        n_blocks += (len + s.n_slots - 1) / s.n_slots;
    std::vector<int> ids(n_blocks), table((size_t)S * width, -1), position, seq_of_row, query_start = {0}, counts,
                                                                                        zeros(S, 0);
    for (int i = 0; i < n_blocks; i++)
        ids[i] = i;
    std::shuffle(ids.begin(), ids.end(), rng);
    w.bytes = 0;
    for (int q = 0, at = 0; q < S; q++) {
        int first = s.lens[q] - s.queries[q], low = s.window > 0 ? std::max(0, first - s.window + 1) : 0;
        if (s.chunk > 0)
            low = std::max(low, first / s.chunk * s.chunk);
        for (int b = 0; b < (s.lens[q] + s.n_slots - 1) / s.n_slots; b++, at++)
            table[(size_t)q * width + b] = s.window > 0 && (b + 1) * s.n_slots <= low ? -1 : ids[at];
        for (int t = 0; t < s.queries[q]; t++, T++) {
            position.push_back(first + t);
            seq_of_row.push_back(q);
        }
        query_start.push_back(T);
        w.bytes += (double)(s.lens[q] - low) * s.n_kv * (double)row_bytes(s);
    }
    counts = {T, S, T, 0};
    w.n_tokens = T;
    w.l = {};
    w.l.n_tokens = T;
    w.l.n_seqs = S;
    w.l.n_rows = T;
    w.l.block_size = s.n_slots;
    TRY_CUDA(cudaStreamCreate(&w.l.stream));
    auto own = [&](auto *p) {
        w.owned.push_back((void *)p);
        return p;
    };
    w.l.plan.counts = own(to_device(counts));
    w.l.plan.position = own(to_device(position));
    w.l.plan.seq_of_row = own(to_device(seq_of_row));
    w.l.plan.query_start = own(to_device(query_start));
    w.l.plan.seq_len = own(to_device(s.lens));
    w.l.plan.block_table[0] = own(to_device(table));
    w.l.plan.table_width[0] = width;
    w.a = {s.n_heads, s.n_kv, s.dim, s.dim, 1.0f / sqrtf((float)s.dim), s.softcap, s.window, s.chunk, false, turned};
    int *from = own(to_device(zeros)), *to = own(to_device(s.lens));
    for (int c = 0; c < n_caches; c++) {
        int64_t bytes = block_bytes(s);
        dcache cache = {own(device<char>(n_blocks * bytes)), bytes / kv_element_bytes(s.e), 0, s.e};
        TRY_CUDA(cudaMemset(cache.at, 0xFF, n_blocks * bytes)); // NaN in every element but int8, whose scales are
        if (s.window > 0) { // positions out of the window have no block: fill from what is left
            std::vector<int> low(S);
            for (int q = 0; q < S; q++)
                for (low[q] = 0; table[(size_t)q * width + low[q] / s.n_slots] < 0;)
                    low[q] += s.n_slots;
            from = own(to_device(low));
        }
        fill_cache<<<dim3(256, S, s.n_kv), 64>>>(w.l.plan, cache, s.n_kv, s.dim, turned, s.n_slots, from, to,
                                                 c * 7 + 1);
        w.caches.push_back(cache);
    }
    int64_t n = (int64_t)T * s.n_heads * s.dim;
    int row = s.n_heads * s.dim;
    // Queries come in 32 bits, or as the kernels round them.
    w.q = {own(device<float>(n)), row, row,
           s.columns == 8        ? ELEMENT_F32
           : s.e == ELEMENT_BF16 ? ELEMENT_BF16
                                 : ELEMENT_F16,
           nullptr};
    w.out = {own(device<float>(n)), row, row, ELEMENT_F32, nullptr};
    w.plain = {own(device<float>(n)), row, row, ELEMENT_F32, nullptr};
    fill_queries<<<256, 256>>>(w.q, n, 99);
    TRY_CUDA(cudaMemset(w.out.at, 0xFF, n * 4));
    TRY_CUDA(cudaMemset(w.plain.at, 0xFF, n * 4));
    std::vector<float> sinks(s.n_heads);
    for (float &x : sinks)
        x = (float)(rng() % 1000) * 0.004f - 2.0f;
    w.sinks = {s.sinks ? own(to_device(sinks)) : nullptr, s.n_heads, 1, ELEMENT_F32, nullptr};
    int per_kv = s.n_heads / s.n_kv, max_parts = S * 64 + T * per_kv / s.columns + S;
    size_t partial = (size_t)max_parts * s.n_kv * s.columns * (s.dim + 2);
    w.parts = {s.window,
               s.chunk,
               per_kv,
               s.columns,
               s.n_kv,
               s.dim,
               s.e,
               1,
               s.most_decode,
               max_parts,
               64,
               S,
               own(device<int>(1)),
               own(device<dpart>(max_parts)),
               own(device<float>(partial)),
               own(device<int>((size_t)max_parts * s.n_kv))};
    w.long_parts = w.parts;
    w.long_parts.columns = attention_prefill_rows(&w.a);
    w.long_parts.least_tokens = s.most_decode + 1;
    w.long_parts.most_tokens = 1 << 30;
    w.long_parts.max_split = 1;
    w.long_parts.n = own(device<int>(1));
    w.long_parts.part = own(device<dpart>(max_parts));
    TRY_CUDA(cudaMemset(w.parts.partial, 0xFF, partial * 4));
    TRY_CUDA(cudaMemset(w.parts.arrived, 0, (size_t)max_parts * s.n_kv * 4));
    TRY_CUDA(cudaDeviceSynchronize());
    return w;
}

static void release(world &w) {
    for (void *p : w.owned)
        cudaFree(p);
    cudaStreamDestroy(w.l.stream);
}

static std::vector<float> fetch(const world &w, const dmat &m) {
    std::vector<float> v((size_t)w.n_tokens * m.width);
    TRY_CUDA(cudaMemcpy(v.data(), m.at, v.size() * 4, cudaMemcpyDeviceToHost));
    return v;
}

static void run(world &w, int cache = 0) {
    launch_attention_parts(&w.l, &w.parts, 1, 1);
    launch_attention_parts(&w.l, &w.long_parts, 1, 1);
    launch_attention_prefill(&w.l, &w.a, &w.long_parts, w.q, w.sinks, w.caches[cache], w.out);
    launch_attention_decode(&w.l, &w.a, &w.parts, false, w.q, w.sinks, w.caches[cache], w.out);
}
