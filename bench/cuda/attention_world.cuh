/* attention_world.cuh - of attention.cu: queries, caches and plans of a setup on the device. */
#pragma once

#include "attention_fill.cuh"
#include "backend/cuda/attention/attention.h"
#include "backend/cuda/attention/attention_parts.h"
#include "backend/cuda/attention/decode/attention_decode.h"
#include "backend/cuda/attention/prefill/attention_prefill.h"
#include "backend/cuda/rows/rows.h"
#include "graph_time.cuh"

#include <cstring>
#include <functional>
#include <random>

static constexpr double READ_RATE = 4.6e12; // of an H200, measured (bytes a second)
static std::mt19937 rng(12345);
static const char *only = ""; // what check is to check
static int turned;            // of what is built next: 128 of 512 channels are shared keys' (kv.cuh); 0: keys are whole

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

template <class T> static T *own(world &w, T *p) { // freed with the world
    w.owned.push_back((void *)p);
    return p;
}
static int blocks_of(const setup &s, int tokens) { return (tokens + s.n_slots - 1) / s.n_slots; }

static int n_blocks_of(const setup &s) {
    int n = 0;
    for (int len : s.lens)
        n += blocks_of(s, len);
    return n;
}

/* The first key that a sequence's rows see. */
static int lowest_key(const setup &s, int q) {
    int first = s.lens[q] - s.queries[q], low = s.window > 0 ? std::max(0, first - s.window + 1) : 0;
    return s.chunk > 0 ? std::max(low, first / s.chunk * s.chunk) : low;
}

/* Blocks in any order; positions out of the window have none. */
static std::vector<int> tables_of(const setup &s, int width) {
    int n_blocks = n_blocks_of(s);
    std::vector<int> ids(n_blocks), table(s.lens.size() * (size_t)width, -1);
    for (int i = 0; i < n_blocks; i++)
        ids[i] = i;
    std::shuffle(ids.begin(), ids.end(), rng);
    for (int q = 0, at = 0; q < (int)s.lens.size(); q++)
        for (int b = 0; b < blocks_of(s, s.lens[q]); b++, at++)
            table[(size_t)q * width + b] = s.window > 0 && (b + 1) * s.n_slots <= lowest_key(s, q) ? -1 : ids[at];
    return table;
}

/* The step: its tokens, and how many bytes of keys and values it reads. */
static void plan_step(world &w, const std::vector<int> &table, int width) {
    const setup &s = w.s;
    int S = (int)s.lens.size(), T = 0;
    std::vector<int> position, seq_of_row, query_start = {0};
    w.bytes = 0;
    for (int q = 0; q < S; q++) {
        for (int t = 0; t < s.queries[q]; t++, T++) {
            position.push_back(s.lens[q] - s.queries[q] + t);
            seq_of_row.push_back(q);
        }
        query_start.push_back(T);
        w.bytes += (double)(s.lens[q] - lowest_key(s, q)) * s.n_kv * (double)row_bytes(s);
    }
    w.n_tokens = T;
    w.l = {};
    w.l.n_tokens = T;
    w.l.n_seqs = S;
    w.l.n_rows = T;
    w.l.block_size = s.n_slots;
    TRY_CUDA(cudaStreamCreate(&w.l.stream));
    w.l.plan.counts = own(w, to_device(std::vector<int>{T, S, T, 0}));
    w.l.plan.position = own(w, to_device(position));
    w.l.plan.seq_of_row = own(w, to_device(seq_of_row));
    w.l.plan.query_start = own(w, to_device(query_start));
    w.l.plan.seq_len = own(w, to_device(s.lens));
    w.l.plan.block_table[0] = own(w, to_device(table));
    w.l.plan.table_width[0] = width;
}

/* NaN, in every element but int8, whose scales are, where nobody may read. */
static void fill_caches(world &w, int n_caches, const std::vector<int> &table, int width) {
    const setup &s = w.s;
    int S = (int)s.lens.size(), n_blocks = n_blocks_of(s);
    int64_t bytes = block_bytes(s);
    std::vector<int> low(S, 0);
    for (int q = 0; q < S && s.window > 0; q++) // positions out of the window have no block
        while (table[(size_t)q * width + low[q] / s.n_slots] < 0)
            low[q] += s.n_slots;
    int *from = own(w, to_device(low)), *to = own(w, to_device(s.lens));
    for (int c = 0; c < n_caches; c++) {
        dcache cache = {own(w, device<char>(n_blocks * bytes)), bytes / kv_element_bytes(s.e), 0, s.e};
        TRY_CUDA(cudaMemset(cache.at, 0xFF, n_blocks * bytes));
        fill_cache<<<dim3(256, S, s.n_kv), 64>>>(w.l.plan, cache, s.n_kv, s.dim, turned, s.n_slots, from, to,
                                                 c * 7 + 1);
        w.caches.push_back(cache);
    }
}

/* Queries come in 32 bits, or as the kernels round them. */
static void make_rows(world &w) {
    const setup &s = w.s;
    int64_t n = (int64_t)w.n_tokens * s.n_heads * s.dim;
    int row = s.n_heads * s.dim;
    element q = s.columns == 8 ? ELEMENT_F32 : s.e == ELEMENT_BF16 ? ELEMENT_BF16 : ELEMENT_F16;
    w.q = {own(w, device<float>(n)), row, row, q, nullptr};
    w.out = {own(w, device<float>(n)), row, row, ELEMENT_F32, nullptr};
    w.plain = {own(w, device<float>(n)), row, row, ELEMENT_F32, nullptr};
    fill_queries<<<256, 256>>>(w.q, n, 99);
    TRY_CUDA(cudaMemset(w.out.at, 0xFF, n * 4));
    TRY_CUDA(cudaMemset(w.plain.at, 0xFF, n * 4));
    std::vector<float> sinks(s.n_heads);
    for (float &x : sinks)
        x = (float)(rng() % 1000) * 0.004f - 2.0f;
    w.sinks = {s.sinks ? own(w, to_device(sinks)) : nullptr, s.n_heads, 1, ELEMENT_F32, nullptr};
}

static void make_parts(world &w) {
    const setup &s = w.s;
    int S = (int)s.lens.size(), per_kv = s.n_heads / s.n_kv, max_parts = S * 64 + w.n_tokens * per_kv / s.columns + S;
    size_t partial = (size_t)max_parts * s.n_kv * s.columns * (s.dim + 2);
    w.parts = {};
    w.parts.window = s.window, w.parts.chunk = s.chunk;
    w.parts.per_kv = per_kv, w.parts.columns = s.columns, w.parts.n_kv_heads = s.n_kv, w.parts.head_dim = s.dim;
    w.parts.cache = s.e;
    w.parts.least_tokens = 1, w.parts.most_tokens = s.most_decode;
    w.parts.max_parts = max_parts, w.parts.max_split = 64, w.parts.max_seqs = S;
    w.parts.n = own(w, device<int>(1));
    w.parts.part = own(w, device<dpart>(max_parts));
    w.parts.partial = own(w, device<float>(partial));
    w.parts.arrived = own(w, device<int>((size_t)max_parts * s.n_kv));
    w.long_parts = w.parts;
    w.long_parts.columns = attention_prefill_rows(&w.a);
    w.long_parts.least_tokens = s.most_decode + 1;
    w.long_parts.most_tokens = 1 << 30;
    w.long_parts.max_split = 1;
    w.long_parts.n = own(w, device<int>(1));
    w.long_parts.part = own(w, device<dpart>(max_parts));
    TRY_CUDA(cudaMemset(w.parts.partial, 0xFF, partial * 4));
    TRY_CUDA(cudaMemset(w.parts.arrived, 0, (size_t)max_parts * s.n_kv * 4));
}

static world build(const setup &s, int n_caches) {
    world w;
    int width = 1;
    w.s = s;
    for (int len : s.lens)
        width = std::max(width, blocks_of(s, len));
    std::vector<int> table = tables_of(s, width);
    plan_step(w, table, width);
    w.a = {s.n_heads, s.n_kv, s.dim, s.dim, 1.0f / sqrtf((float)s.dim), s.softcap, s.window, s.chunk, false, turned};
    fill_caches(w, n_caches, table, width);
    make_rows(w);
    make_parts(w);
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
