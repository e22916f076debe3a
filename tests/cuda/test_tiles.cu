/* test_tiles.cu - LINEAR from e4m3 values by tiles (src/backend/cuda/tiles.cu) against double precision.
 *
 * The reference is a plain kernel, a thread a sum, in double. Random shapes and every number of tokens, biases, gated pairs, all
 * cuts; what must not be written is poisoned before and looked at after, what must not be read is NaN. */
#define BARRIER_SPIN_LIMIT 20000000
#include "backend/cuda/tiles.cu"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <utility>
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

struct counts {
    unsigned long long wrong, stray, differ, wrong_most;
    double worst;
};

static const float LIMIT = 1.5f; // of act 4
static __device__ double activated(int act, double gate, double up) {
    switch (act) {
    case 0: return gate / (1 + exp(-gate)) * up;
    case 1: return 0.5 * gate * (1 + tanh(0.7978845608028654 * (gate + 0.044715 * gate * gate * gate))) * up;
    case 2: return 0.5 * gate * (1 + erf(gate * 0.7071067811865476)) * up;
    case 3: return up / (1 + exp(-gate));
    default: {
        double g = fmin(gate, 1.5), u = fmin(fmax(up, -1.5), 1.5);
        return (u + 1) * g / (1 + exp(-1.702 * g));
    }
    }
}

/* The largest size of a row of y as it was stored, against what was folded into most. */
static __global__ void compare_most(const void *y, int width, int64_t stride, element e, const uint32_t *most, int n_tokens, counts *c) {
    __shared__ float shared[32];
    int token = blockIdx.x;
    float size = 0;
    for (int i = threadIdx.x; token < n_tokens && i < width; i += blockDim.x)
        size = fmaxf(size, fabsf(load(y, token * stride + i, e)));
    size = block_max(size, shared);
    if (threadIdx.x == 0 && most[token] != __float_as_uint(size))
        atomicAdd(&c->wrong_most, 1);
}

/* Bound: the tensor core keeps sums of e4m3 products to 14 bits or so, which is seen to be up to 1e-2 of the root of their squares; a
 * missing term is more. */
static __global__ void compare(const double *products, const double *sizes, const void *y, const void *again, int n_tokens, int max_tokens,
                               int out, int width, int64_t stride, bool gated, int act, element e, counts *c) {
    int64_t n = max_tokens * stride;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        int token = i / stride, col = i % stride;
        bool inside = token < n_tokens && col < width;
        uint32_t bits = e == ELEMENT_F32 ? static_cast<const uint32_t *>(y)[i] : static_cast<const uint16_t *>(y)[i] * 0x10001u;
        uint32_t bits2 = e == ELEMENT_F32 ? static_cast<const uint32_t *>(again)[i] : static_cast<const uint16_t *>(again)[i] * 0x10001u;
        if (bits != bits2)
            atomicAdd(&c->differ, 1);
        if (!inside) {
            if (bits != 0xffffffffu)
                atomicAdd(&c->stray, 1);
            continue;
        }
        double a = products[(int64_t)token * out + col], sa = sizes[(int64_t)token * out + col], expected = a, bound = 2e-2 * sa;
        if (gated) {
            double u = products[(int64_t)token * out + width + col], su = sizes[(int64_t)token * out + width + col];
            expected = activated(act, a, u);
            bound = 2e-2 * (1.2 * sa * (fabs(u) + (act == 4)) + (fabs(a) + 0.3 + (act == 3)) * su) + 4e-4 * sa * su;
        }
        bound += fabs(expected) * (e == ELEMENT_F32 ? 1e-6 : e == ELEMENT_F16 ? 5e-4 : 4e-3) + 1e-6;
        double off = fabs((double)load(y, i, e) - expected) / bound;
        if (!(off <= 1))
            atomicAdd(&c->wrong, 1);
        if (off > c->worst)
            c->worst = off; // roughly
    }
}

/* Activations as kernels have them against double, gates from -80 to 80: relative errors; an up of 1. */
static __global__ void worst_activation(double *worst) {
    double k = -80 + 160.0 * (blockIdx.x * blockDim.x + threadIdx.x) / (gridDim.x * blockDim.x);
    float gate = (float)k;
    tiles_args a = {};
    double off = fabs(ended_pair<GATED_SILU>(a, gate, 1) / activated(0, gate, 1) - 1);
    if (gate > -4) // beyond, what tanh leaves of 1 + tanh in double is noise before it is here
        off = fmax(off, fabs(ended_pair<GATED_GELU_TANH>(a, gate, 1) / activated(1, gate, 1) - 1));
    if (gate != 0)
        atomicMax((unsigned long long *)worst,
                  (unsigned long long)__double_as_longlong(off == off ? off : INFINITY)); // bits of sizes are ordered
}

static unsigned long long n_bad;
static cudaStream_t stream;

struct buffers {
    unsigned char *w, *x;
    float *w_scale, *x_scale, *bias;
    void *y, *again;
    double *products, *sizes;
    uint32_t *most;
    counts *c;
} d;
enum { MAX_W = 140 << 20, MAX_SUMS = 64 * 40000, ROWS_THERE = 64 + 16 };

static void check(int out, int in, int n, bool gated, bool bias, int act, element e, const tiles_cut *cut, uint64_t seed) {
    int width = gated ? out / 2 : out, x_stride = in + 16 * (seed % 3), rows_there = ROWS_THERE;
    int64_t stride = width + 8 * (seed % 2);
    fill8<<<256, 256, 0, stream>>>(d.w, (size_t)out * in, seed);
    MUST(cudaMemsetAsync(d.x, 0x7f, (size_t)rows_there * x_stride, stream)); // NaN beyond the rows
    fill8<<<256, 256, 0, stream>>>(d.x, (size_t)(n - 1) * x_stride + in, seed + 1);
    fill32<<<64, 256, 0, stream>>>(d.w_scale, out, seed + 2, 1e-5f, 2e-5f);
    MUST(cudaMemsetAsync(d.x_scale, 0xff, rows_there * 4, stream));
    fill32<<<64, 256, 0, stream>>>(d.x_scale, n, seed + 3, 0.5f, 1.5f);
    fill32<<<64, 256, 0, stream>>>(d.bias, out, seed + 4, -1, 1);
    MUST(cudaMemsetAsync(d.y, 0xff, (size_t)rows_there * stride * 4, stream));
    MUST(cudaMemsetAsync(d.again, 0xff, (size_t)rows_there * stride * 4, stream));
    MUST(cudaMemsetAsync(d.c, 0, sizeof *d.c, stream));
    MUST(cudaStreamSynchronize(stream));
    MUST(cudaMemsetAsync(d.most, 0, ROWS_THERE * 4, stream));
    dtiles a = {{d.w, out, in, ELEMENT_E4M3, d.w_scale}, bias ? d.bias : nullptr, {gated ? ENDING_GATED : ENDING_PLAIN, act, LIMIT, {}}};
    dmat x = {d.x, x_stride, in, ELEMENT_E4M3, d.x_scale}, y = {d.y, stride, width, e, nullptr}, again = y;
    again.at = d.again;
    y.most = gated ? d.most : nullptr;
    tiles_cut c = cut ? *cut : tiles_cut_of(&a, n);
    printf("out %d in %d tokens %d%s act %d%s element %d: %d octets, split %d, %d blocks, %d stages: ", out, in, n, gated ? " gated" : "",
           act, bias ? " bias" : "", (int)e, c.octets, c.split, c.n_blocks, c.n_stages);
    if (!tiles_take(&a, x, y, n)) {
        printf("REFUSED\n");
        n_bad++;
        return;
    }
    fflush(stdout);
    MUST(launch_tiles_linear_cut(stream, n, &a, x, y, &c));
    for (int i = 0; i < 3; i++)
        MUST(launch_tiles_linear_cut(stream, n, &a, x, again, &c));
    MUST(cudaStreamSynchronize(stream));
    reference<<<dim3(up_to(out, 8), n), dim3(32, 8), 0, stream>>>(d.w, d.x, x_stride, d.w_scale, d.x_scale, bias ? d.bias : nullptr, out,
                                                                  in, d.products, d.sizes);
    compare<<<256, 256, 0, stream>>>(d.products, d.sizes, d.y, d.again, n, rows_there, out, width, stride, gated, act, e, d.c);
    if (gated)
        compare_most<<<rows_there, 256, 0, stream>>>(d.y, width, stride, e, d.most, n, d.c);
    counts got;
    MUST(cudaMemcpyAsync(&got, d.c, sizeof got, cudaMemcpyDeviceToHost, stream));
    MUST(cudaStreamSynchronize(stream));
    bool fine = got.wrong == 0 && got.stray == 0 && got.differ == 0 && got.wrong_most == 0;
    printf("worst %.3f of the bound%s", got.worst, fine ? "\n" : "");
    if (!fine)
        printf("; WRONG %llu, stray %llu, differ %llu, of rows' largest %llu\n", got.wrong, got.stray, got.differ, got.wrong_most);
    n_bad += !fine;
    fflush(stdout);
}

static void check_activations() {
    double *worst = (double *)d.products, got;
    MUST(cudaMemset(worst, 0, sizeof *worst));
    worst_activation<<<4096, 256, 0, stream>>>(worst);
    MUST(cudaStreamSynchronize(stream));
    MUST(cudaMemcpy(&got, worst, sizeof got, cudaMemcpyDeviceToHost));
    printf("activations: %.2e of their size\n", got);
    n_bad += !(got <= 1e-5);
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

static void check_heads(int n_heads, int n_kv, int dim, int in, int n, bool bias, element cache, element q, const tiles_cut *cut,
                        uint64_t seed) {
    int out = (n_heads + 2 * n_kv) * dim, width = n_heads * dim;
    heads t = heads_of(n_heads, n_kv, dim, n, cache, seed);
    fill8<<<256, 256, 0, stream>>>(d.w, (size_t)out * in, seed);
    fill8<<<256, 256, 0, stream>>>(d.x, (size_t)n * in, seed + 1);
    fill32<<<64, 256, 0, stream>>>(d.w_scale, out, seed + 2, 1e-5f, 2e-5f);
    fill32<<<64, 256, 0, stream>>>(d.x_scale, n, seed + 3, 0.5f, 1.5f);
    fill32<<<64, 256, 0, stream>>>(d.bias, out, seed + 4, -1, 1);
    MUST(cudaMemsetAsync(d.y, 0xff, (size_t)ROWS_THERE * width * 2, stream));
    dtiles a = {{d.w, out, in, ELEMENT_E4M3, d.w_scale}, bias ? d.bias : nullptr, {ENDING_ROPE, 0, 0, t.h}};
    dmat x = {d.x, in, in, ELEMENT_E4M3, d.x_scale}, y = {d.y, width, width, q};
    tiles_cut c = cut ? *cut : tiles_cut_of(&a, n);
    printf("heads %d + 2 x %d of %d, in %d tokens %d%s cache %d queries %d: %d octets, split %d, %d blocks, %d stages: ", n_heads, n_kv,
           dim, in, n, bias ? " bias" : "", (int)cache, (int)q, c.octets, c.split, c.n_blocks, c.n_stages);
    fflush(stdout);
    if (!tiles_take(&a, x, y, n)) {
        printf("REFUSED\n");
        n_bad++;
        return;
    }
    for (int i = 0; i < 2; i++)
        MUST(launch_tiles_linear_cut(stream, n, &a, x, y, &c));
    reference<<<dim3(up_to(out, 8), n), dim3(32, 8), 0, stream>>>(d.w, d.x, in, d.w_scale, d.x_scale, bias ? d.bias : nullptr, out, in,
                                                                  d.products, d.sizes);
    MUST(cudaStreamSynchronize(stream));
    turned got;
    auto fetch = [](auto &v, const void *from, size_t n) {
        v.resize(n);
        MUST(cudaMemcpy(v.data(), from, n * sizeof v[0], cudaMemcpyDeviceToHost));
    };
    fetch(got.products, d.products, (size_t)n * out);
    fetch(got.sizes, d.sizes, (size_t)n * out);
    fetch(got.blocks, t.h.cache.at, t.n_blocks * t.block_bytes);
    fetch(got.queries, d.y, (size_t)ROWS_THERE * width * 2);
    fetch(got.angles, t.h.cos_sin, (size_t)n * dim);
    fetch(got.bound, t.h.bound, 2 * n_kv);
    double worst = worst_of_heads(t, got, width, q);
    size_t stray = 0;
    for (const auto *v : {&got.blocks, &got.queries})
        for (char byte : *v)
            stray += byte != (char)0xff;
    printf("worst %.3f of the bound, stray %zu%s\n", worst, stray, worst <= 1 && !stray ? "" : " WRONG");
    n_bad += !(worst <= 1 && !stray);
    fflush(stdout);
    free_heads(t);
}

static void check_all_heads(uint64_t seed) {
    const element caches[] = {ELEMENT_E4M3, ELEMENT_F16, ELEMENT_BF16};
    for (int n : {1, 5, 9, 16, 17, 32, 33, 48, 63, 64}) {
        element cache = caches[n % 3], q = n % 2 ? ELEMENT_F16 : ELEMENT_BF16;
        if (n == 5 || n == 32 || n == 64)
            check_heads(28, 4, 128, 3584, n, true, ELEMENT_E4M3, ELEMENT_F16, nullptr, seed++);
        check_heads(14, 2, 64, 896, n, n % 2, cache, q, nullptr, seed++);
        check_heads(3, 1, 32, 272, n, n % 2, cache, q, nullptr, seed++);
        check_heads(2, 2, 16, 128, n, true, cache, q, nullptr, seed++);
        tiles_cut whole = {1 + (int)(seed % 7), 1, 40, 2 + (int)(seed % 3)}, split = {8, 2 << seed % 2, 0, 3};
        split.n_blocks = up_to(16 * 6, split.octets) * split.split;
        check_heads(8, 4, 96, 2048, n, true, cache, q, &whole, seed++);
        check_heads(8, 4, 96, 2048, n, true, cache, q, &split, seed++);
    }
}

int main(int argc, char **argv) {
    uint64_t seed = argc > 1 ? strtoull(argv[1], nullptr, 10) : (uint64_t)time(nullptr);
    printf("seed %llu\n", (unsigned long long)seed);
    MUST(cudaStreamCreate(&stream));
    MUST(cudaMalloc(&d.w, MAX_W));
    MUST(cudaMalloc(&d.x, 160 * 32768));
    MUST(cudaMalloc(&d.w_scale, 1 << 20));
    MUST(cudaMalloc(&d.x_scale, 1 << 20));
    MUST(cudaMalloc(&d.bias, 1 << 20));
    MUST(cudaMalloc(&d.y, 160 * 40000 * 4));
    MUST(cudaMalloc(&d.again, 160 * 40000 * 4));
    MUST(cudaMalloc(&d.products, (size_t)MAX_SUMS * 8));
    MUST(cudaMalloc(&d.sizes, (size_t)MAX_SUMS * 8));
    MUST(cudaMalloc(&d.most, ROWS_THERE * 4));
    MUST(cudaMalloc(&d.c, sizeof(counts)));
    auto random = [&](int n) { return (int)(hash(seed++) % (unsigned)n); };
    auto random_element = [&](bool gated) {
        int r = random(gated ? 2 : 3);
        return r == 0 ? ELEMENT_F16 : r == 1 ? ELEMENT_BF16 : ELEMENT_F32;
    };
    // One tile, one piece; then more of each.
    check(64, 128, 16, false, false, 0, ELEMENT_F32, nullptr, seed);
    check(128, 512, 16, false, true, 0, ELEMENT_F32, nullptr, seed);
    check(128, 512, 16, true, true, 0, ELEMENT_F16, nullptr, seed);
    for (int n = 1; n <= TILES_MAX_ROWS; n++) {
        bool gated = random(2);
        check(16 * (1 + random(200)), 16 * (1 + random(100)), n, gated, random(2), random(5), random_element(gated), nullptr, seed);
    }
    for (int n : {16, 33, 64}) {
        check(4608, 3584, n, false, true, 0, ELEMENT_F32, nullptr, seed);
        check(3584, 3584, n, false, false, 0, ELEMENT_F32, nullptr, seed);
        check(37888, 3584, n, true, false, 0, ELEMENT_F16, nullptr, seed);
        check(3584, 18944, n, false, false, 0, ELEMENT_F32, nullptr, seed);
        check(5376, 21504, n, false, false, 0, ELEMENT_F16, nullptr, seed);
        check(16384, 5376, n, false, false, 0, ELEMENT_F16, nullptr, seed);
    }
    for (int i = 0; i < 100; i++) {
        int n = 1 + random(TILES_MAX_ROWS), out = 16 * (1 + random(i % 4 ? 100 : 600)), in = 16 * (1 + random(300));
        bool gated = random(2);
        tiles_cut c = {};
        c.split = 1 << random(3);
        c.octets = 1 + random(most_octets(gated));
        int tiles = up_to(up_to(gated ? out / 2 : out, 8), c.octets);
        if (c.split > 1 && (tiles > 96 / c.split || in < 128 * c.split))
            c.split = 1;
        c.n_blocks = c.split > 1 ? tiles * c.split : 1 + random(96);
        c.n_stages = 2 + random(MAX_STAGES - 1);
        while (shared_bytes(gated, n, &c) > SHARED_MOST)
            c.n_stages--;
        check(out, in, n, gated, random(2), random(5), random_element(gated), &c, seed);
    }
    check_activations();
    check_all_heads(seed);
    printf(n_bad ? "%llu CASES FAILED\n" : "all fine\n", n_bad);
    return n_bad != 0;
}
