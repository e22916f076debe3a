/* test_wide.cu - LINEAR of many rows from e4m3 values (src/backend/cuda/wide.cu) against double precision.
 *
 * The reference is a plain kernel, a thread a sum, in double. Random shapes and numbers of tokens, biases, gated pairs, cuts with every
 * way to split; what must not be written is poisoned before and looked at after, what must not be read is NaN. */
#include "backend/cuda/wide.cu"

#include "products.cuh"

#include <time.h>

struct counts {
    unsigned long long wrong, stray, differ, most;
    double worst;
};

static __device__ double activated(int act, double gate, double up) {
    return act == 0 ? gate / (1 + exp(-gate)) * up
                    : 0.5 * gate * (1 + tanh(0.7978845608028654 * (gate + 0.044715 * gate * gate * gate))) * up;
}

/* Bound: the tensor core keeps sums to 14 bits or so, and what each of in / 32 steps loses adds up; seen are up to 2e-2 of the root of the
 * terms' squares with 18,944 of them. A piece of 128 columns that is missing is more. */
static __global__ void compare(const double *products, const double *sizes, const void *y, const void *again, int n_tokens, int max_tokens,
                               int out, int in, int width, int64_t stride, bool gated, int act, element e, counts *c) {
    int64_t n = max_tokens * stride;
    double loss = 2e-2 * fmax(1.0, sqrt(in / 4096.0));
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
        double a = products[(int64_t)token * out + col], sa = sizes[(int64_t)token * out + col], expected = a, bound = loss * sa;
        if (gated) {
            double u = products[(int64_t)token * out + width + col], su = sizes[(int64_t)token * out + width + col];
            expected = activated(act, a, u);
            bound = loss * (1.2 * sa * fabs(u) + (fabs(a) + 0.3) * su) + loss * loss * sa * su;
        }
        bound += fabs(expected) * (e == ELEMENT_F32 ? 1e-6 : e == ELEMENT_F16 ? 5e-4 : 4e-3) + 1e-6;
        double off = fabs((double)load(y, i, e) - expected) / bound;
        if (!(off <= 1))
            atomicAdd(&c->wrong, 1);
        if (off > c->worst)
            c->worst = off; // roughly
    }
}

/* The largest size of each row as it is stored. */
static __global__ void compare_most(const void *y, const uint32_t *most, int n_tokens, int width, int64_t stride, element e, counts *c) {
    int token = blockIdx.x;
    float size = 0;
    for (int i = threadIdx.x; token < n_tokens && i < width; i += 32)
        size = fmaxf(size, fabsf(load(y, token * stride + i, e)));
    size = warp_max(size);
    if (threadIdx.x == 0 && __float_as_uint(size) != most[token])
        atomicAdd(&c->most, 1);
}

static unsigned long long n_bad, n_cases;
static cudaStream_t stream;

struct buffers {
    unsigned char *w, *x;
    float *w_scale, *x_scale, *bias;
    void *y, *again;
    double *products, *sizes;
    uint32_t *most;
    counts *c;
} d;
enum { MAX_W = 140 << 20, MAX_X = 700 * 22000, MAX_Y = 700 * 38000, MAX_SUMS = 600 * 38000 };

struct problem {
    int out, in, n;
    bool gated, bias;
    int act;
    element e;
};

static void check(const problem &t, const wide_cut *cut, uint64_t seed) {
    int out = t.out, in = t.in, n = t.n, width = t.gated ? out / 2 : out, x_stride = in + 16 * (seed % 3), rows_there = n + 16;
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
    MUST(cudaMemsetAsync(d.most, 0, rows_there * 4, stream));
    MUST(cudaStreamSynchronize(stream));
    dwide a = {{d.w, out, in, ELEMENT_E4M3, d.w_scale}, t.bias ? d.bias : nullptr, t.gated, t.act};
    dmat x = {d.x, x_stride, in, ELEMENT_E4M3, d.x_scale}, y = {d.y, stride, width, t.e, nullptr}, again = y;
    again.at = d.again;
    y.most = d.most;
    wide_cut c = cut ? *cut : wide_cut_of(&a, n);
    printf("out %d in %d tokens %d%s%s element %d: %d octets, split %d, %d blocks, %d stages: ", out, in, n, t.gated ? " gated" : "",
           t.bias ? " bias" : "", (int)t.e, c.octets, c.split, c.n_blocks, c.n_stages);
    n_cases++;
    if (!wide_takes(&a, x, y, n) || !wide_takes_cut(&a, n, &c)) {
        printf("REFUSED\n");
        n_bad++;
        return;
    }
    fflush(stdout);
    MUST(launch_wide_linear_cut(stream, n, &a, x, y, &c));
    for (int i = 0; i < 3; i++)
        MUST(launch_wide_linear_cut(stream, n, &a, x, again, &c));
    MUST(cudaStreamSynchronize(stream));
    reference<<<dim3(up_to(out, 8), n), dim3(32, 8), 0, stream>>>(d.w, d.x, x_stride, d.w_scale, d.x_scale, t.bias ? d.bias : nullptr, out,
                                                                  in, d.products, d.sizes);
    compare<<<256, 256, 0, stream>>>(d.products, d.sizes, d.y, d.again, n, rows_there, out, in, width, stride, t.gated, t.act, t.e, d.c);
    compare_most<<<rows_there, 32, 0, stream>>>(d.y, d.most, n, width, stride, t.e, d.c);
    counts got;
    MUST(cudaMemcpyAsync(&got, d.c, sizeof got, cudaMemcpyDeviceToHost, stream));
    MUST(cudaStreamSynchronize(stream));
    bool fine = got.wrong == 0 && got.stray == 0 && got.differ == 0 && got.most == 0;
    printf("worst %.3f of the bound%s", got.worst, fine ? "\n" : "");
    if (!fine)
        printf("; WRONG %llu, stray %llu, differ %llu, most %llu\n", got.wrong, got.stray, got.differ, got.most);
    n_bad += !fine;
    fflush(stdout);
}

static void check_heads(int n_heads, int n_kv, int dim, int in, int n, bool bias, element cache, element q, const wide_cut *cut,
                        uint64_t seed) {
    int out = (n_heads + 2 * n_kv) * dim, width = n_heads * dim, rows_there = n + 16;
    heads t = heads_of(n_heads, n_kv, dim, n, cache, seed);
    fill8<<<256, 256, 0, stream>>>(d.w, (size_t)out * in, seed);
    fill8<<<256, 256, 0, stream>>>(d.x, (size_t)n * in, seed + 1);
    fill32<<<64, 256, 0, stream>>>(d.w_scale, out, seed + 2, 1e-5f, 2e-5f);
    fill32<<<64, 256, 0, stream>>>(d.x_scale, n, seed + 3, 0.5f, 1.5f);
    fill32<<<64, 256, 0, stream>>>(d.bias, out, seed + 4, -1, 1);
    MUST(cudaMemsetAsync(d.y, 0xff, (size_t)rows_there * width * 2, stream));
    dwide a = {{d.w, out, in, ELEMENT_E4M3, d.w_scale}, bias ? d.bias : nullptr, false, 0, &t.h};
    dmat x = {d.x, in, in, ELEMENT_E4M3, d.x_scale}, y = {d.y, width, width, q};
    wide_cut c = cut ? *cut : wide_cut_of(&a, n);
    if (cut)
        c.n_stages = wide_stages(&a, &c) < c.n_stages ? wide_stages(&a, &c) : c.n_stages;
    printf("heads %d + 2 x %d of %d, in %d tokens %d%s cache %d queries %d: %d octets, split %d, %d blocks, %d stages: ", n_heads, n_kv,
           dim, in, n, bias ? " bias" : "", (int)cache, (int)q, c.octets, c.split, c.n_blocks, c.n_stages);
    n_cases++;
    fflush(stdout);
    if (!wide_takes(&a, x, y, n) || !wide_takes_cut(&a, n, &c)) {
        printf("REFUSED\n");
        n_bad++;
        return;
    }
    for (int i = 0; i < 2; i++)
        MUST(launch_wide_linear_cut(stream, n, &a, x, y, &c));
    reference<<<dim3(up_to(out, 8), n), dim3(32, 8), 0, stream>>>(d.w, d.x, in, d.w_scale, d.x_scale, bias ? d.bias : nullptr, out, in,
                                                                  d.products, d.sizes);
    MUST(cudaStreamSynchronize(stream));
    n_bad += !heads_are_right(t, n, d.products, d.sizes, d.y, rows_there, q);
    fflush(stdout);
    free_heads(t);
}

static void check_all_heads(uint64_t seed) {
    const element caches[] = {ELEMENT_E4M3, ELEMENT_F16, ELEMENT_BF16};
    for (int n : {65, 96, 128, 129, 200, 300}) {
        element cache = caches[seed % 3], q = seed % 2 ? ELEMENT_F16 : ELEMENT_BF16;
        if (n == 96 || n == 300)
            check_heads(28, 4, 128, 3584, n, true, ELEMENT_E4M3, ELEMENT_F16, nullptr, seed++);
        check_heads(14, 2, 64, 896, n, n % 2, cache, q, nullptr, seed++);
        check_heads(3, 1, 32, 272, n, n % 2, cache, q, nullptr, seed++);
        check_heads(2, 2, 16, 128, n, true, cache, q, nullptr, seed++);
        wide_cut whole = {1 + (int)(seed % 7), 1, 40, 2 + (int)(seed % 3)}, split = {12, 2 << seed % 2, 0, 3};
        split.n_blocks = up_to(16 * 6, split.octets) * up_to(n, 128) * split.split;
        check_heads(8, 4, 96, 2048, n, true, cache, q, &whole, seed++);
        check_heads(8, 4, 96, 2048, n, true, caches[n % 3], q, &split, seed++);
    }
}

int main(int argc, char **argv) {
    uint64_t seed = argc > 1 ? strtoull(argv[1], nullptr, 10) : (uint64_t)time(nullptr);
    printf("seed %llu\n", (unsigned long long)seed);
    MUST(cudaStreamCreate(&stream));
    MUST(cudaMalloc(&d.w, MAX_W));
    MUST(cudaMalloc(&d.x, MAX_X));
    MUST(cudaMalloc(&d.w_scale, 1 << 20));
    MUST(cudaMalloc(&d.x_scale, 1 << 20));
    MUST(cudaMalloc(&d.bias, 1 << 20));
    MUST(cudaMalloc(&d.y, (size_t)MAX_Y * 4));
    MUST(cudaMalloc(&d.again, (size_t)MAX_Y * 4));
    MUST(cudaMalloc(&d.products, (size_t)MAX_SUMS * 8));
    MUST(cudaMalloc(&d.sizes, (size_t)MAX_SUMS * 8));
    MUST(cudaMalloc(&d.most, 4096));
    MUST(cudaMalloc(&d.c, sizeof(counts)));
    auto random = [&](int n) { return (int)(hash(seed++) % (unsigned)n); };
    // One tile, one piece; then more of each.
    check({48, 128, 65, false, false, 0, ELEMENT_F32}, nullptr, seed);
    check({128, 512, 128, false, true, 0, ELEMENT_F32}, nullptr, seed);
    check({128, 512, 128, true, true, 0, ELEMENT_F16}, nullptr, seed);
    for (int i = 0; i < 30; i++) {
        bool gated = random(2);
        check({16 * (1 + random(200)), 16 * (1 + random(100)), 65 + random(448), gated, random(2) != 0, random(2),
               gated || random(2) ? ELEMENT_F16 : ELEMENT_F32},
              nullptr, seed);
    }
    for (int n : {128, 200, 512}) {
        check({4608, 3584, n, false, true, 0, ELEMENT_F16}, nullptr, seed);
        check({3584, 3584, n, false, false, 0, ELEMENT_F32}, nullptr, seed);
        check({37888, 3584, n, true, false, 0, ELEMENT_F16}, nullptr, seed);
        check({3584, 18944, n, false, false, 0, ELEMENT_F32}, nullptr, seed);
        check({5376, 21504, n, false, false, 0, ELEMENT_BF16}, nullptr, seed);
    }
    for (int i = 0; i < 150;) {
        int n = 1 + random(i % 5 ? 300 : 600), out = 16 * (1 + random(i % 4 ? 100 : 600)), in = 16 * (1 + random(300));
        bool gated = random(2);
        dwide a = {{nullptr, out, in, ELEMENT_E4M3, nullptr}, nullptr, gated, 0};
        wide_cut c = {};
        c.split = random(3) ? 1 : 2 + random(7);
        c.octets = 1 + random(36 / (gated ? 2 : 1));
        c.n_blocks = (1 + random(wide_blocks(c.split) / c.split)) * c.split;
        c.n_stages = 2;
        if (!wide_takes_cut(&a, n, &c))
            continue;
        c.n_stages = 2 + random(wide_stages(&a, &c) - 1);
        check({out, in, n, gated, random(2) != 0, random(2),
               gated        ? (i % 2 ? ELEMENT_F16 : ELEMENT_BF16)
               : i % 3 == 0 ? ELEMENT_F32
                            : ELEMENT_F16},
              &c, seed);
        i++;
    }
    check_all_heads(seed);
    printf(n_bad ? "%llu of %llu CASES FAILED\n" : "all fine\n", n_bad, n_cases);
    return n_bad != 0;
}
