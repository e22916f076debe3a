/* attention.cu - the attention kernels of the CUDA backend alone: checked against the plain kernel, and timed.
 *
 *   bench_attention check [WORD]     every shape and element against the plain kernel, over a poisoned cache; a
 *                                    sequence alone gives the bits that it gives among others; exit status 1 where one
 *                                    differs. Of those alone whose name has the word, or that have shared keys
 *                                    ("short")
 *   bench_attention decode [ELEMENT [MODEL [N LENGTH]]] one token a sequence: us, GB/s of keys and values, per cent of
 *                                    READ_RATE; of models whose name has MODEL in it, of N sequences of LENGTH tokens
 *                                    in place of the list
 *   bench_attention pair [ELEMENT]   QKV_PREP of unscaled products, with Gemma's norms, and both together as in a step
 *   bench_attention prefill [ELEMENT [MODEL]] prompts, whole and in chunks: us, TFLOP/s
 *
 * Times are medians of graphs of 20 launches over caches that together pass the L2. ELEMENT: f16 (default), bf16, e4m3,
 * int8. */
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

static std::vector<float> result(const setup &s) {
    world w = build(s, 1);
    run(w);
    TRY_CUDA(cudaStreamSynchronize(w.l.stream));
    TRY_CUDA(cudaGetLastError());
    std::vector<float> v = fetch(w, w.out);
    release(w);
    return v;
}

static const char *element_name(element e) {
    return e == ELEMENT_F32    ? "f32"
           : e == ELEMENT_F16  ? "f16"
           : e == ELEMENT_BF16 ? "bf16"
           : e == ELEMENT_E4M3 ? "e4m3"
                               : "int8";
}

/* Both kernels read the same elements, so that only the rounding of queries differs, of 11 bits or 8, and that of P. Of
 * shared keys, which are like their values, what is off in scores does not average out of results. */
static bool check(const setup &s) {
    if (!strstr(s.name, only) && !(turned && strcmp(only, "short") == 0))
        return true;
    world w = build(s, 1);
    double worst = 0;
    bool same = true;
    launch_attention(&w.l, &w.a, w.q, w.sinks, w.caches[0], w.plain);
    bool folds = true; // then the rows' largest sizes are asked for
    for (int n : s.queries)
        folds = folds && (s.queries[0] == 1 ? n == 1 : n > s.most_decode);
    std::vector<uint32_t> most(w.n_tokens);
    w.out.absmax = folds ? device<uint32_t>(w.n_tokens) : nullptr;
    for (int again = 0; again < 3; again++) {
        TRY_CUDA(cudaMemsetAsync(w.out.at, 0xFF, (size_t)w.n_tokens * w.out.width * 4, w.l.stream));
        if (folds)
            TRY_CUDA(cudaMemsetAsync(w.out.absmax, 0, w.n_tokens * 4, w.l.stream));
        run(w);
        cudaError_t code = cudaStreamSynchronize(w.l.stream);
        if (code != cudaSuccess) {
            printf("FAILED %s: %s\n", s.name, cudaGetErrorString(code));
            exit(1);
        }
        std::vector<float> got = fetch(w, w.out), want = fetch(w, w.plain);
        if (folds)
            TRY_CUDA(cudaMemcpy(most.data(), w.out.absmax, w.n_tokens * 4, cudaMemcpyDeviceToHost));
        for (int t = 0; t < w.n_tokens && folds; t++) {
            float largest = 0;
            for (int i = 0; i < w.out.width; i++)
                largest = std::max(largest, fabsf(got[(size_t)t * w.out.width + i]));
            same = same && memcmp(&largest, &most[t], 4) == 0;
        }
        for (int r = 0; r < w.n_tokens * s.n_heads; r++) {
            double size = 0, error = 0;
            for (int i = 0; i < s.dim; i++) {
                float g = got[(size_t)r * s.dim + i], x = want[(size_t)r * s.dim + i];
                size = std::max(size, (double)fabsf(x));
                error = g == g && x == x ? std::max(error, (double)fabsf(g - x)) : INFINITY;
            }
            worst = std::max(worst, error / std::max(size, 1e-30));
        }
    }
    cudaFree(w.out.absmax);
    release(w);
    double bound = s.e == ELEMENT_BF16 ? 0.01 : turned && s.e == ELEMENT_E4M3 ? 0.006 : 0.004;
    bool ok = worst <= bound && same;
    printf("%s %-28s %2d/%d x %d%s %-4s block %-3d columns %-2d window %d chunk %d: %.2e\n", ok ? "ok    " : "FAILED",
           s.name, s.n_heads, s.n_kv, s.dim, turned ? " short" : "", element_name(s.e), s.n_slots, s.columns, s.window,
           s.chunk, worst);
    return ok;
}

static float element_at(const char *at, element e) {
    switch (e) {
    case ELEMENT_F32: return *(const float *)at;
    case ELEMENT_F16: return __half2float(*(const __half *)at);
    case ELEMENT_BF16: return __bfloat162float(*(const __nv_bfloat16 *)at);
    case ELEMENT_E4M3: return (float)*(const __nv_fp8_e4m3 *)at;
    default: return (float)*(const signed char *)at;
    }
}

/* A head as QKV_PREP makes it, in double precision: norm with a weight, or with one of 1 (`unweighted`), rotation of
 * the first `turned` channels. */
static std::vector<double> prepared(const float *x, int n, const float *norm, const float *cos_sin, int turned,
                                    bool interleaved, bool unweighted) {
    std::vector<double> y(x, x + n), z;
    double sum = 0;
    for (double v : y)
        sum += v * v;
    for (int i = 0; i < n && (norm || unweighted); i++)
        y[i] *= (norm ? norm[i] : 1.0) / sqrt(sum / n + 1e-6);
    z = y;
    for (int i = 0; i < turned / 2; i++) {
        int a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + turned / 2;
        z[a] = y[a] * cos_sin[i] - y[b] * cos_sin[turned / 2 + i];
        z[b] = y[b] * cos_sin[i] + y[a] * cos_sin[turned / 2 + i];
    }
    return z;
}

/* x becomes what unscaled products of about its size mean. */
static dmat make_raw(std::vector<float> &x, int n_rows, int width, bool biased) {
    std::uniform_real_distribution<float> scales(0.5f, 2.0f);
    std::vector<float> row(n_rows), col(width), bias(width);
    std::vector<__half> half(x.size());
    for (float &f : row)
        f = scales(rng);
    for (float &f : col)
        f = scales(rng);
    for (float &f : bias)
        f = biased ? scales(rng) - 1 : 0;
    for (size_t i = 0; i < x.size(); i++) {
        half[i] = __float2half(x[i]);
        x[i] = (float)((double)__half2float(half[i]) * row[i / width] * col[i % width] + bias[i % width]);
    }
    return {to_device(half), width,          width,          ELEMENT_F16,
            nullptr,         to_device(row), to_device(col), biased ? to_device(bias) : nullptr};
}

/* QKV_PREP against prepared(): queries, and what lies in the cache where kv.cuh says. */
enum { NOT_RAW, RAW, RAW_BIASED };
static bool check_prep(int n_heads, int n_kv, int dim, int turned, bool interleaved, bool normed, element e,
                       element q_element, int n_slots, int raw = NOT_RAW, bool v_normed = false) {
    if (!strstr("qkv_prep", only))
        return true;
    setup s = {"qkv_prep",
               n_heads,
               n_kv,
               dim,
               0,
               0,
               0,
               false,
               e,
               n_slots,
               {100, 7, 33},
               {20, 7, 1},
               q_element == ELEMENT_F32 ? 8 : 16};
    world w = build(s, 1);
    int width = (n_heads + 2 * n_kv) * dim, T = w.n_tokens;
    std::vector<float> x((size_t)T * width), angles((size_t)T * turned + 1), norm(dim);
    std::normal_distribution<float> normal;
    for (auto *v : {&x, &angles, &norm})
        for (float &f : *v)
            f = normal(rng);
    dmat dx = {to_device(x), width, width, ELEMENT_F32};
    if (raw)
        dx = make_raw(x, T, width, raw == RAW_BIASED);
    drope rope = {turned, interleaved ? 1 : 0};
    rope.cos_sin = to_device(angles);
    dweight weight = {normed ? to_device(norm) : nullptr, dim, 1, ELEMENT_F32};
    dqkv a = {n_heads, n_kv, dim, dim, 1e-6f};
    a.v_norm = v_normed;
    w.q.element = q_element;
    launch_qkv_prep(&w.l, &a, turned ? &rope : nullptr, dx, weight, weight, w.caches[0], w.q);
    TRY_CUDA(cudaStreamSynchronize(w.l.stream));
    int n_blocks = 0, qb = kv_element_bytes(q_element);
    for (int len : s.lens)
        n_blocks += (len + n_slots - 1) / n_slots;
    std::vector<char> cache(n_blocks * block_bytes(s)), q((size_t)T * n_heads * dim * qb);
    std::vector<int> table(3 * (size_t)w.l.plan.table_width[0]);
    TRY_CUDA(cudaMemcpy(cache.data(), w.caches[0].at, cache.size(), cudaMemcpyDeviceToHost));
    TRY_CUDA(cudaMemcpy(q.data(), w.q.at, q.size(), cudaMemcpyDeviceToHost));
    TRY_CUDA(cudaMemcpy(table.data(), w.l.plan.block_table[0], table.size() * 4, cudaMemcpyDeviceToHost));
    kv_shape shape = {n_kv, dim, dim, n_slots, e};
    double worst = 0;
    for (int seq = 0, t = 0; seq < 3; seq++)
        for (int i = 0; i < s.queries[seq]; i++, t++)
            for (int h = 0; h < n_heads + 2 * n_kv; h++) {
                bool is_v = h >= n_heads + n_kv;
                int position = s.lens[seq] - s.queries[seq] + i, slot = position % n_slots,
                    kv = h - n_heads - (is_v ? n_kv : 0);
                const char *block =
                    cache.data() + table[(size_t)seq * w.l.plan.table_width[0] + position / n_slots] * block_bytes(s);
                std::vector<double> want =
                    prepared(x.data() + (size_t)t * width + h * dim, dim, normed && !is_v ? norm.data() : nullptr,
                             angles.data() + (size_t)t * turned, is_v ? 0 : turned, interleaved, is_v && v_normed);
                double size = 0, error = 0;
                for (int d = 0; d < dim; d++) {
                    double got =
                        h < n_heads
                            ? element_at(q.data() + (((size_t)t * n_heads + h) * dim + d) * qb, q_element)
                            : element_at(block + (is_v ? shape.value(kv, slot, d) : shape.key(kv, slot, d)), e) *
                                  (kv_has_scales(e) ? *(const float *)(block + shape.scale(is_v, kv, slot)) : 1.0f);
                    size = std::max(size, fabs(want[d]));
                    error = got == got ? std::max(error, fabs(got - want[d])) : INFINITY;
                }
                element stored = h < n_heads ? q_element : e; // half a unit of the largest, and of each value in e4m3
                double unit = stored == ELEMENT_F32    ? 1e-5
                              : stored == ELEMENT_F16  ? 0x1p-11
                              : stored == ELEMENT_BF16 ? 0x1p-8
                              : stored == ELEMENT_E4M3 ? 0x1p-4
                                                       : 1.0 / 254;
                worst = std::max(worst, error / size / unit);
            }
    for (const void *p : {(const void *)dx.at, (const void *)dx.row_scale, (const void *)dx.col_scale,
                          (const void *)dx.bias, (const void *)rope.cos_sin, weight.at})
        cudaFree(const_cast<void *>(p));
    release(w);
    bool ok = worst <= 1.02;
    printf("%s qkv_prep %d/%d x %d, %d turned%s%s%s%s, cache %s, queries %s, block %d: %.3f of the rounding\n",
           ok ? "ok    " : "FAILED", n_heads, n_kv, dim, turned, interleaved ? " in pairs" : "",
           normed ? ", normed" : "", v_normed ? ", values too" : "",
           raw == RAW_BIASED ? ", of raw products with biases"
           : raw             ? ", of raw products"
                             : "",
           element_name(e), element_name(q_element), n_slots, worst);
    return ok;
}

/* Caches that were written in two ways: an element may be rounded the other way where sums came in another order. */
static bool close_rows(const std::vector<char> &a, const std::vector<char> &b) {
    size_t n = 0;
    for (size_t i = 0; i < a.size(); i++)
        n += a[i] != b[i];
    return n * 2000 <= a.size();
}

/* Decode attention that takes QKV_PREP along against the two nodes: the same bytes in the cache, and results as near as
 * queries are rounded. */
static bool check_prepares(setup s, bool turned, bool normed, bool raw, int width_more = 0) {
    if (!strstr("prepares", only))
        return true;
    world w = build(s, 2);
    int width = (s.n_heads + 2 * s.n_kv) * s.dim, T = w.n_tokens, pitch = width + width_more;
    std::vector<float> x((size_t)T * pitch), angles((size_t)T * s.dim), norm(s.dim);
    std::normal_distribution<float> normal;
    for (auto *v : {&x, &norm})
        for (float &f : *v)
            f = normal(rng);
    for (size_t i = 0; i < angles.size(); i++)
        angles[i] = i / (s.dim / 2) % 2 ? sinf((float)i) : cosf((float)(i + s.dim / 2));
    dmat dx = {to_device(x), pitch, width, ELEMENT_F32};
    if (raw)
        dx = make_raw(x, T, pitch, true);
    dx.width = width;
    drope rope = {s.dim};
    rope.cos_sin = to_device(angles);
    dweight weight = {normed ? to_device(norm) : nullptr, s.dim, 1, ELEMENT_F32};
    dqkv a = {s.n_heads, s.n_kv, s.dim, s.dim, 1e-6f, false, normed};
    dprep prep = {a, turned ? rope.cos_sin : nullptr, dx, weight, weight};
    int n_blocks = 0;
    for (int len : s.lens)
        n_blocks += (len + s.n_slots - 1) / s.n_slots;
    size_t cache_bytes = n_blocks * block_bytes(s);
    TRY_CUDA(cudaMemcpy(w.caches[1].at, w.caches[0].at, cache_bytes, cudaMemcpyDeviceToDevice));
    w.q.element = ELEMENT_F32;
    launch_qkv_prep(&w.l, &a, turned ? &rope : nullptr, dx, weight, weight, w.caches[0], w.q);
    bool ok = attention_decode_prepares(&w.a, &prep, w.caches[1]);
    double worst = 0;
    std::vector<char> want(cache_bytes), got(cache_bytes);
    std::vector<uint32_t> most(T);
    w.out.absmax = device<uint32_t>(T);
    for (int again = 0; again < 3 && ok; again++) {
        TRY_CUDA(cudaMemsetAsync(w.out.at, 0xFF, (size_t)T * w.out.width * 4, w.l.stream));
        TRY_CUDA(cudaMemsetAsync(w.out.absmax, 0, T * 4, w.l.stream));
        launch_attention_parts(&w.l, &w.parts, 1, 1);
        launch_qkv_prep(&w.l, &a, turned ? &rope : nullptr, dx, weight, weight, w.caches[0],
                        w.q); // the list is there when the next begins
        launch_attention_decode_prepares(&w.l, &w.a, &w.parts, &prep, w.sinks, w.caches[1], w.out);
        launch_attention(&w.l, &w.a, w.q, w.sinks, w.caches[1], w.plain); // over the elements that were read
        cudaError_t code = cudaStreamSynchronize(w.l.stream);
        if (code != cudaSuccess) {
            printf("FAILED %s: %s\n", s.name, cudaGetErrorString(code));
            exit(1);
        }
        TRY_CUDA(cudaMemcpy(want.data(), w.caches[0].at, cache_bytes, cudaMemcpyDeviceToHost));
        TRY_CUDA(cudaMemcpy(got.data(), w.caches[1].at, cache_bytes, cudaMemcpyDeviceToHost));
        ok = ok && close_rows(want, got);
        std::vector<float> out = fetch(w, w.out), plain = fetch(w, w.plain);
        TRY_CUDA(cudaMemcpy(most.data(), w.out.absmax, T * 4, cudaMemcpyDeviceToHost));
        for (int t = 0; t < T; t++) {
            float largest = 0;
            for (int i = 0; i < w.out.width; i++)
                largest = std::max(largest, fabsf(out[(size_t)t * w.out.width + i]));
            ok = ok && memcmp(&largest, &most[t], 4) == 0;
        }
        for (int r = 0; r < T * s.n_heads; r++) {
            double size = 0, error = 0;
            for (int i = 0; i < s.dim; i++) {
                float g = out[(size_t)r * s.dim + i], v = plain[(size_t)r * s.dim + i];
                size = std::max(size, (double)fabsf(v));
                error = g == g && v == v ? std::max(error, (double)fabsf(g - v)) : INFINITY;
            }
            worst = std::max(worst, error / std::max(size, 1e-30));
        }
    }
    ok = ok && worst <= (s.e == ELEMENT_BF16 ? 0.03 : 0.006);
    printf("%s prepares %-24s %2d/%d x %d %-4s block %-3d%s%s%s: cache %s, %.2e\n", ok ? "ok    " : "FAILED", s.name,
           s.n_heads, s.n_kv, s.dim, element_name(s.e), s.n_slots, turned ? ", turned" : "", normed ? ", normed" : "",
           raw ? ", raw" : "",
           want == got             ? "the same"
           : close_rows(want, got) ? "close"
                                   : "DIFFERS",
           worst);
    for (const void *p : {(const void *)dx.at, (const void *)dx.row_scale, (const void *)dx.col_scale,
                          (const void *)dx.bias, (const void *)rope.cos_sin, weight.at, (const void *)w.out.absmax})
        cudaFree(const_cast<void *>(p));
    release(w);
    return ok;
}

/* The first sequence alone and among others. The fill depends on the sequence's number, so it stays the first. */
static bool check_alone(setup s) {
    if (!strstr("alone", only))
        return true;
    std::vector<float> many = result(s);
    setup one = s;
    one.lens.resize(1);
    one.queries.resize(1);
    std::vector<float> alone = result(one);
    bool ok = memcmp(many.data(), alone.data(), alone.size() * 4) == 0;
    printf("%s %s %d x %d %s alone as among others\n", ok ? "ok    " : "FAILED", s.name, s.lens[0], s.dim,
           element_name(s.e));
    return ok;
}

static std::vector<int> ones(size_t n) { return std::vector<int>(n, 1); }

/* Of heads that decode attention can make itself. */
static void check_preparing(int &failed, int &n) {
    {
        int dim = 128;
        element e = ELEMENT_E4M3;
        std::vector<int> lens = {272, 1, 63, 64, 65, 1000, 320, 321, 3000}, many;
        for (int i = 0; i < 300; i++)
            many.push_back(1 + (int)(rng() % 500));
        for (int k = 0; k < 8; k++) {
            bool turned = k & 1, normed = k & 2, raw = k & 4;
            failed += !check_prepares({"one token", 28, 4, dim, 0, 0, 0, false, e, 64, lens, ones(9), 8}, turned,
                                      normed, raw, 64);
            failed += !check_prepares({"alone", 28, 4, dim, 0, 0, 0, false, e, 64, {272}, {1}, 8}, turned, normed, raw);
            failed += !check_prepares({"two, few heads", 6, 2, dim, 0, 0, 0, false, e, 32, {129, 7000}, ones(2), 8},
                                      turned, normed, raw);
            failed +=
                !check_prepares({"many", 16, 8, dim, 0, 0, 0, false, e, 64, many, ones(300), 8}, turned, normed, raw);
            failed += !check_prepares({"window, sinks, softcap", 8, 4, dim, 100, 0, 20, true, e, 16, lens, ones(9), 8},
                                      turned, normed, raw);
            failed += !check_prepares({"8 columns", 32, 4, dim, 0, 0, 0, false, e, 64, lens, ones(9), 8}, turned,
                                      normed, raw);
            failed += !check_prepares({"5 columns, many", 10, 2, dim, 0, 0, 0, false, e, 64, many, ones(300), 8},
                                      turned, normed, raw);
            failed +=
                !check_prepares({"chunk", 3, 3, dim, 0, 256, 0, false, e, 64, lens, ones(9), 8}, turned, normed, raw);
            n += 8;
        }
    }
}

/* Of heads of these sizes. */
static void check_attention(const std::vector<int> &dims, int &failed, int &n) {
    element elements[] = {ELEMENT_F16, ELEMENT_BF16, ELEMENT_E4M3, ELEMENT_I8};
    for (int dim : dims)
        for (element e : elements)
            for (int columns : {8, 16}) {
                std::vector<int> lens = {272, 1, 63, 64, 65, 1000, 320, 321, 3000};
                failed += !check({"one token", 28, 4, dim, 0, 0, 0, false, e, 64, lens, ones(9), columns});
                failed += !check({"window, softcap", 8, 4, dim, 100, 0, 20, false, e, 64, lens, ones(9), columns});
                failed += !check({"sinks, 1 to 8 tokens",
                                  16,
                                  1,
                                  dim,
                                  0,
                                  0,
                                  0,
                                  true,
                                  e,
                                  64,
                                  {300, 8, 1500, 70, 64, 512},
                                  {8, 8, 3, 2, 1, 5},
                                  columns});
                failed += !check({"chunk, blocks of 16",
                                  8,
                                  8,
                                  dim,
                                  0,
                                  256,
                                  0,
                                  false,
                                  e,
                                  16,
                                  {255, 256, 257, 700, 1023, 1030},
                                  {1, 1, 1, 4, 1, 8},
                                  columns});
                failed += !check({"window, sinks, blocks of 32",
                                  12,
                                  2,
                                  dim,
                                  129,
                                  0,
                                  0,
                                  true,
                                  e,
                                  32,
                                  {1000, 130, 400, 129},
                                  {1, 2, 8, 8},
                                  columns});
                failed += !check({"blocks of 256, prefill",
                                  6,
                                  2,
                                  dim,
                                  0,
                                  0,
                                  0,
                                  false,
                                  e,
                                  256,
                                  {200, 500},
                                  {200, 100},
                                  columns,
                                  1000});
                failed += !check({"prefill",
                                  14,
                                  2,
                                  dim,
                                  0,
                                  0,
                                  0,
                                  false,
                                  e,
                                  64,
                                  {700, 129, 64, 1, 1000, 9},
                                  {700, 65, 64, 1, 300, 9},
                                  columns});
                failed += !check({"prefill, window, sinks",
                                  4,
                                  4,
                                  dim,
                                  100,
                                  0,
                                  15,
                                  true,
                                  e,
                                  columns == 8 ? 64 : 16,
                                  {600, 129, 1000},
                                  {600, 40, 500},
                                  columns});
                failed += !check({"prefill, chunks",
                                  8,
                                  1,
                                  dim,
                                  0,
                                  200,
                                  0,
                                  false,
                                  e,
                                  columns == 8 ? 32 : 128,
                                  {600, 129, 1000},
                                  {600, 40, 500},
                                  columns});
                n += 9;
            }
    for (int dim : dims) { // one token of each of many
        element e = ELEMENT_E4M3;
        std::vector<int> many, mixed;
        for (int i = 0; i < 300; i++)
            many.push_back(1 + (int)(rng() % 500));
        for (int i = 0; i < 150; i++)
            mixed.push_back(i == 70 ? 9000 : 1 + (int)(rng() % (i % 3 ? 300 : 3000)));
        failed += !check({"many", 28, 4, dim, 0, 0, 0, false, e, 64, many, ones(300), 8});
        failed += !check({"many, window, sinks, softcap", 8, 8, dim, 100, 0, 20, true, e, 64, many, ones(300), 8});
        failed += !check({"many, chunk, blocks of 128", 20, 4, dim, 0, 200, 0, false, e, 128, many, ones(300), 8});
        failed += !check({"many, blocks of 32", 20, 4, dim, 0, 0, 0, false, e, 32, many, ones(300), 8});
        failed += !check({"mixed", 64, 8, dim, 0, 0, 0, true, e, 64, mixed, ones(150), 8});
        failed += !check({"mixed, window", 8, 8, dim, 1000, 0, 0, false, e, 256, mixed, ones(150), 8});
        many.resize(100), mixed.resize(100); // fewer than warps: teams
        failed += !check({"many, in teams", 28, 4, dim, 0, 0, 0, false, e, 64, many, ones(100), 8});
        failed += !check(
            {"mixed, in teams, window, sinks, softcap", 20, 4, dim, 2000, 0, 20, true, e, 32, mixed, ones(100), 8});
        failed += !check({"mixed, in teams, chunk", 5, 5, dim, 0, 700, 0, false, e, 128, mixed, ones(100), 8});
        n += 9;
    }
    for (int dim : dims)
        for (int window : {0, 300}) {
            failed += !check(
                {"prefill, long", 16, 2, dim, window, 0, 0, false, ELEMENT_E4M3, 64, {3000, 1500}, {60, 300}, 16});
            n++;
        }
    for (int dim : dims)
        for (element e : {ELEMENT_F16, ELEMENT_E4M3}) {
            setup s = {"", 28, 4, dim, 0, 0, 0, false, e, 64, {1700, 40, 900}, {1, 30, 1}, 8};
            failed += !check_alone(s);
            s.lens[0] = 200;
            failed += !check_alone(s);
            n += 2;
        }
}

static int check_all() {
    int failed = 0, n = 0;
    for (element e : {ELEMENT_F16, ELEMENT_BF16, ELEMENT_E4M3, ELEMENT_I8})
        for (int dim : {20, 48, 64, 96, 128, 256, 512}) {
            failed += !check_prep(6, 2, dim, dim, false, true, e, ELEMENT_F32, 64);
            failed += !check_prep(7, 1, dim, 16, false, false, e, ELEMENT_F16, 16);
            failed += !check_prep(3, 3, dim, 12, true, true, e, ELEMENT_BF16, 4);
            failed += !check_prep(14, 2, dim, dim, false, true, e, ELEMENT_F16, 32, RAW_BIASED);
            failed += !check_prep(160, 160, dim, dim, false, false, e, ELEMENT_F16, 64); // several rows a warp
            for (int heads : {14, 100, 160})
                for (bool normed : {false, true})
                    for (int raw : {RAW, RAW_BIASED})
                        failed += !check_prep(heads, heads == 14 ? 2 : heads, dim, dim, false, normed, e, ELEMENT_F16,
                                              64, raw, normed && raw == RAW);
            failed += !check_prep(14, 2, dim, 0, false, false, e, ELEMENT_F16, 64, RAW, true);
            n += 18;
        }
    check_preparing(failed, n);
    for (turned = 0; turned <= SHARED_KV_DIM; turned += SHARED_KV_DIM)
        check_attention(turned ? std::vector<int>{512} : std::vector<int>{64, 128, 256, 512}, failed, n);
    printf("%d of %d failed\n", failed, n);
    return failed > 0;
}

struct shape_row {
    const char *name;
    int n_heads, n_kv, dim, window, turned;
};

/* Microseconds of one of n. */
static std::vector<double> time_graph(cudaStream_t stream, int n, const std::function<void(int)> &launch_one) {
    std::vector<double> times = replay_times(
        stream,
        [&] {
            for (int i = 0; i < n; i++)
                launch_one(i);
            return true;
        },
        7, 3);
    for (double &us : times)
        us /= n;
    return times;
}

static void time_decode(const shape_row &m, element e, int n_seqs, int len) {
    turned = m.turned;
    setup s = {m.name,
               m.n_heads,
               m.n_kv,
               m.dim,
               m.window,
               0,
               0,
               false,
               e,
               64,
               std::vector<int>(n_seqs, len),
               ones(n_seqs),
               m.n_heads / m.n_kv > 8 ? 16 : 8};
    int seen = m.window ? std::min(m.window, len) : len;
    double one = (double)n_seqs * seen * m.n_kv * (double)row_bytes(s);
    int n_caches = (int)std::min(20.0, std::max(1.0, ceil(200e6 / one)));
    world w = build(s, n_caches);
    if (e != ELEMENT_BF16)
        w.q.element = w.out.element = ELEMENT_F16; // as in a step
    launch_attention_parts(&w.l, &w.parts, 1, 1);
    auto one_launch = [&](int i) {
        launch_attention_decode(&w.l, &w.a, &w.parts, false, w.q, w.sinks, w.caches[i % n_caches], w.out);
    };
    one_launch(0); // sets the kernel's attributes, before the capture
    std::vector<double> times = time_graph(w.l.stream, 20, one_launch);
    double us = times[times.size() / 2], target = std::max(5.0, w.bytes / (0.85 * READ_RATE) * 1e6);
    printf("%-14s %-4s %4d x %-6d  %8.2f us  %7.1f GB/s  %5.1f %%  target %8.2f us  %.2f of it\n", m.name,
           element_name(e), n_seqs, len, us, w.bytes / us * 1e-3, w.bytes / us * 1e6 / READ_RATE * 100, target,
           us / target);
    fflush(stdout);
    release(w);
}

/* QKV_PREP alone, and with the ATTENTION that follows it in a step. */
static void time_pair(const shape_row &m, element e, int n_seqs, int len, int queries) {
    turned = m.turned;
    setup s = {m.name,
               m.n_heads,
               m.n_kv,
               m.dim,
               m.window,
               0,
               0,
               false,
               e,
               64,
               std::vector<int>(n_seqs, len),
               std::vector<int>(n_seqs, queries),
               16};
    int n_caches = queries > 1 ? 1
                               : (int)std::min(20.0, std::max(1.0, ceil(200e6 / ((double)n_seqs * len * m.n_kv * 2.0 *
                                                                                 m.dim * kv_element_bytes(e)))));
    world w = build(s, n_caches);
    w.parts.columns = m.n_heads / m.n_kv > 8 ? 16 : 8;
    int width = (m.n_heads + (turned ? 1 : 2) * m.n_kv) * m.dim;
    dmat x = {device<__half>((size_t)w.n_tokens * width), width, width, ELEMENT_F16}; // unscaled products
    fill_queries<<<256, 256>>>(x, (int64_t)w.n_tokens * width, 5);
    x.row_scale = to_device(std::vector<float>(w.n_tokens, 1e-2f));
    x.col_scale = to_device(std::vector<float>(width, 1e-2f));
    drope rope = {m.dim};
    rope.cos_sin = device<float>((size_t)w.n_tokens * m.dim);
    TRY_CUDA(cudaMemset(rope.cos_sin, 0, (size_t)w.n_tokens * m.dim * 4));
    dqkv a = {m.n_heads, m.n_kv, m.dim, m.dim, 1e-6f};
    a.v_norm = m.dim >= 256; // of Gemma
    a.v_from_k = turned > 0;
    a.rotary_dim = turned;
    dweight norm = {m.dim >= 256 ? to_device(std::vector<float>(m.dim, 1.5f)) : nullptr, m.dim, 1, ELEMENT_F32};
    launch_attention_parts(&w.l, &w.parts, 1, 1);
    auto prep = [&](int i) { launch_qkv_prep(&w.l, &a, &rope, x, norm, norm, w.caches[i % n_caches], w.q); };
    auto both = [&](int i) {
        prep(i);
        launch_attention_decode(&w.l, &w.a, &w.parts, true, w.q, w.sinks, w.caches[i % n_caches], w.out);
    };
    both(0);
    dprep in_one = {a, rope.cos_sin, x, norm, norm};
    auto one = [&](int i) {
        launch_attention_decode_prepares(&w.l, &w.a, &w.parts, &in_one, w.sinks, w.caches[i % n_caches], w.out);
    };
    auto after = [&](int i) {
        launch_attention_decode(&w.l, &w.a, &w.parts, true, w.q, w.sinks, w.caches[i % n_caches], w.out);
    };
    bool can = queries == 1 && attention_decode_prepares(&w.a, &in_one, w.caches[0]);
    if (can)
        one(0);
    std::vector<double> alone = time_graph(w.l.stream, 20, prep), pair(1), single(1), plain(1);
    if (queries == 1) {
        plain = time_graph(w.l.stream, 20, after);
        pair = time_graph(w.l.stream, 20, both);
    }
    if (can)
        single = time_graph(w.l.stream, 20, one);
    printf("%-14s %-4s %4d x %-6d  qkv_prep of %4d tokens %7.2f us  attention %7.2f  both %7.2f us  in one %7.2f us\n",
           m.name, element_name(e), n_seqs, len, w.n_tokens, alone[alone.size() / 2], plain[plain.size() / 2],
           pair[pair.size() / 2], single[single.size() / 2]);
    fflush(stdout);
    for (const void *p : {(const void *)x.at, (const void *)x.row_scale, (const void *)x.col_scale,
                          (const void *)rope.cos_sin, norm.at})
        cudaFree(const_cast<void *>(p));
    release(w);
}

/* n_seqs prompts of len tokens, of which `queries` are computed in this step. FLOPs are of the keys that are seen. */
static void time_prefill(const shape_row &m, element e, int n_seqs, int len, int queries) {
    turned = m.turned;
    setup s = {m.name,
               m.n_heads,
               m.n_kv,
               m.dim,
               m.window,
               0,
               0,
               false,
               e,
               64,
               std::vector<int>(n_seqs, len),
               std::vector<int>(n_seqs, queries),
               16};
    world w = build(s, 1);
    w.out.element = ELEMENT_F16; // and queries are of 16 bits, as in a step
    double seen = 0;
    for (int i = len - queries; i < len; i++)
        seen += m.window ? std::min(m.window, i + 1) : i + 1;
    launch_attention_parts(&w.l, &w.long_parts, 1, 1);
    auto one_launch = [&](int) {
        launch_attention_prefill(&w.l, &w.a, &w.long_parts, w.q, w.sinks, w.caches[0], w.out);
    };
    one_launch(0);
    std::vector<double> times = time_graph(w.l.stream, 4, one_launch);
    double us = times[times.size() / 2];
    printf("%-14s %-4s %4d x %d of %-6d  %9.1f us  %6.1f TFLOP/s\n", m.name, element_name(e), n_seqs, queries, len, us,
           4.0 * seen * n_seqs * m.n_heads * m.dim / us * 1e-6);
    fflush(stdout);
    release(w);
}

static const shape_row qwen = {"qwen2.5-7b", 28, 4, 128, 0}, llama = {"llama-3.1-8b", 32, 8, 128, 0},
                       sliding = {"gemma sliding", 32, 16, 256, 1024}, global = {"gemma global", 32, 4, 512, 0},
                       shared_kv = {"gemma k = v", 32, 4, 512, 0, SHARED_KV_DIM};

static int decode_all(element e, const char *name, int n_seqs, int len) {
    for (const shape_row &m : {qwen, llama, sliding, global, shared_kv})
        if (n_seqs > 0 && strstr(m.name, name))
            time_decode(m, e, n_seqs, len);
    for (const shape_row &m : {qwen, llama, sliding, global, shared_kv})
        for (auto c : {std::pair<int, int>{1, 272},
                       {1, 528},
                       {1, 8192},
                       {1, 131072},
                       {8, 272},
                       {32, 272},
                       {128, 272},
                       {128, 528},
                       {256, 272},
                       {512, 272},
                       {128, 2048}})
            if (n_seqs == 0 && strstr(m.name, name))
                time_decode(m, e, c.first, c.second);
    return 0;
}

static int pair_all(element e) {
    for (const shape_row &m : {qwen, sliding, global, shared_kv}) {
        for (int n : {1, 8, 32, 128, 256, 512})
            for (int len : {80, 272, 528})
                time_pair(m, e, n, len, 1);
        time_pair(m, e, 1, 2048, 2048);
    }
    return 0;
}

static int prefill_all(element e, const char *name) {
    for (const shape_row &m : {qwen, llama, sliding, global, shared_kv}) {
        if (!strstr(m.name, name))
            continue;
        time_prefill(m, e, 1, 2048, 2048);
        time_prefill(m, e, 1, 8192, 8192);
        time_prefill(m, e, 1, 8192, 1024);
        time_prefill(m, e, 128, 16, 16);
        time_prefill(m, e, 8, 1024, 1024);
        time_prefill(m, e, 1, 65536, 8192);
    }
    return 0;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "check", *name = argc > 2 ? argv[2] : "f16";
    element e = strcmp(name, "bf16") == 0   ? ELEMENT_BF16
                : strcmp(name, "e4m3") == 0 ? ELEMENT_E4M3
                : strcmp(name, "int8") == 0 ? ELEMENT_I8
                                            : ELEMENT_F16;
    if (strcmp(what, "check") == 0) {
        only = argc > 2 ? name : "";
        return check_all();
    }
    if (strcmp(what, "decode") == 0)
        return decode_all(e, argc > 3 ? argv[3] : "", argc > 5 ? atoi(argv[4]) : 0, argc > 5 ? atoi(argv[5]) : 0);
    if (strcmp(what, "pair") == 0)
        return pair_all(e);
    if (strcmp(what, "prefill") == 0)
        return prefill_all(e, argc > 3 ? argv[3] : "");
    fprintf(stderr, "usage: bench_attention check [WORD] | decode | pair | prefill [f16|bf16|e4m3|int8]\n");
    return 2;
}
