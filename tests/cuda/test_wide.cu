/* test_wide.cu - LINEAR of many rows from e4m3 values with GATED_ACT (src/backend/cuda/wide.cu) against double precision.
 *
 * The reference is a plain kernel, a thread a sum, in double. Random shapes and numbers of tokens, biases, cuts of every kind; what must not be written is poisoned before and looked at after, what must not be read is NaN. */
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
                               int out, int in, int width, int64_t stride, int act, element e, counts *c) {
    int64_t n = max_tokens * stride;
    double loss = 2e-2 * fmax(1.0, sqrt(in / 4096.0));
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        int token = i / stride, col = i % stride;
        bool inside = token < n_tokens && col < width;
        uint16_t bits = static_cast<const uint16_t *>(y)[i];
        if (bits != static_cast<const uint16_t *>(again)[i])
            atomicAdd(&c->differ, 1);
        if (!inside) {
            if (bits != 0xffff)
                atomicAdd(&c->stray, 1);
            continue;
        }
        double g = products[(int64_t)token * out + col], sg = sizes[(int64_t)token * out + col];
        double u = products[(int64_t)token * out + width + col], su = sizes[(int64_t)token * out + width + col];
        double expected = activated(act, g, u), bound = loss * (1.2 * sg * fabs(u) + (fabs(g) + 0.3) * su) + loss * loss * sg * su;
        bound += fabs(expected) * (e == ELEMENT_F16 ? 5e-4 : 4e-3) + 1e-6;
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
    bool bias;
    int act;
    element e;
};

static void check(const problem &t, const wide_cut *cut, uint64_t seed) {
    int out = t.out, in = t.in, n = t.n, width = out / 2, x_stride = in + 16 * (seed % 3), rows_there = n + 16;
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
    dwide a = {{d.w, out, in, ELEMENT_E4M3, d.w_scale}, t.bias ? d.bias : nullptr, t.act};
    dmat x = {d.x, x_stride, in, ELEMENT_E4M3, d.x_scale}, y = {d.y, stride, width, t.e, nullptr}, again = y;
    again.at = d.again;
    y.most = d.most;
    wide_cut c = cut ? *cut : wide_cut_of(&a, n);
    printf("out %d in %d tokens %d%s act %d element %d: %d octets, W shared by %d, %d blocks, %d stages%s: ", out, in, n,
           t.bias ? " bias" : "", t.act, (int)t.e, c.octets, c.sharers, c.n_blocks, c.n_stages, c.together ? ", together" : "");
    n_cases++;
    if (!wide_takes(&a, x, y, n) || !wide_takes_cut(n, &c)) {
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
    compare<<<256, 256, 0, stream>>>(d.products, d.sizes, d.y, d.again, n, rows_there, out, in, width, stride, t.act, t.e, d.c);
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
    // One tile, one piece; then more of each, and pieces that do not go into the rings.
    check({48, 128, 65, false, 0, ELEMENT_F16}, nullptr, seed);
    check({128, 512, 128, true, 1, ELEMENT_BF16}, nullptr, seed);
    for (int i = 0; i < 40; i++)
        check({16 * (1 + random(200)), 16 * (1 + random(100)), 1 + random(512), random(2) != 0, random(2),
               random(2) ? ELEMENT_F16 : ELEMENT_BF16},
              nullptr, seed);
    for (int n : {65, 128, 192, 256, 300, 512})
        check({37888, 3584, n, n % 8 != 0, 0, ELEMENT_F16}, nullptr, seed);
    check({27264, 5376, 256, false, 1, ELEMENT_BF16}, nullptr, seed);
    for (int i = 0; i < 250;) {
        int n = 1 + random(i % 5 ? 300 : 600), out = 16 * (1 + random(i % 4 ? 100 : 600)), in = 16 * (1 + random(300));
        wide_cut c = {};
        c.sharers = 1 + random(2);
        c.octets = 7 + 2 * random(3);
        c.n_blocks = (1 + random(wide_blocks(c.sharers) / c.sharers)) * c.sharers;
        c.n_stages = 2 + random(wide_stages(c.octets) - 1);
        c.together = random(2) != 0;
        if (!wide_takes_cut(n, &c))
            continue;
        check({out, in, n, random(2) != 0, random(2), i % 2 ? ELEMENT_F16 : ELEMENT_BF16}, &c, seed);
        i++;
    }
    printf(n_bad ? "%llu of %llu CASES FAILED\n" : "all fine\n", n_bad, n_cases);
    return n_bad != 0;
}
