/* test_tiles.cu - LINEAR from e4m3 values by tiles (src/backend/cuda/tiles.cu) against double precision.
 *
 * The reference is a plain kernel, a thread a sum, in double. Random shapes and every number of tokens, biases, gated pairs, all
 * cuts; what must not be written is poisoned before and looked at after, what must not be read is NaN. */
#define BARRIER_SPIN_LIMIT 20000000
#include "backend/cuda/tiles.cu"

#include <math.h>
#include <stdio.h>
#include <time.h>
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
    unsigned long long wrong, stray, differ;
    double worst;
};

static __device__ double activated(int act, double gate, double up) {
    return act == 0 ? gate / (1 + exp(-gate)) * up
                    : 0.5 * gate * (1 + tanh(0.7978845608028654 * (gate + 0.044715 * gate * gate * gate))) * up;
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
            bound = 2e-2 * (1.2 * sa * fabs(u) + (fabs(a) + 0.3) * su) + 4e-4 * sa * su;
        }
        bound += fabs(expected) * (e == ELEMENT_F32 ? 1e-6 : e == ELEMENT_F16 ? 5e-4 : 4e-3) + 1e-6;
        double off = fabs((double)load(y, i, e) - expected) / bound;
        if (!(off <= 1))
            atomicAdd(&c->wrong, 1);
        if (off > c->worst)
            c->worst = off; // roughly
    }
}

static unsigned long long n_bad;
static cudaStream_t stream;

struct buffers {
    unsigned char *w, *x;
    float *w_scale, *x_scale, *bias;
    void *y, *again;
    double *products, *sizes;
    counts *c;
} d;
enum { MAX_W = 140 << 20, MAX_SUMS = 128 * 40000 };

static void check(int out, int in, int n, bool gated, bool bias, int act, element e, const tiles_cut *cut, uint64_t seed) {
    int width = gated ? out / 2 : out, x_stride = in + 16 * (seed % 3), rows_there = 128 + 16;
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
    dtiles a = {{d.w, out, in, ELEMENT_E4M3, d.w_scale}, bias ? d.bias : nullptr, gated, act, 0};
    dmat x = {d.x, x_stride, in, ELEMENT_E4M3, d.x_scale}, y = {d.y, stride, width, e, nullptr}, again = y;
    again.at = d.again;
    tiles_cut c = cut ? *cut : tiles_cut_of(&a, n);
    printf("out %d in %d tokens %d%s%s element %d: %d octets, split %d, %d blocks, %d stages: ", out, in, n, gated ? " gated" : "",
           bias ? " bias" : "", (int)e, c.octets, c.split, c.n_blocks, c.n_stages);
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
    counts got;
    MUST(cudaMemcpyAsync(&got, d.c, sizeof got, cudaMemcpyDeviceToHost, stream));
    MUST(cudaStreamSynchronize(stream));
    bool fine = got.wrong == 0 && got.stray == 0 && got.differ == 0;
    printf("worst %.3f of the bound%s", got.worst, fine ? "\n" : "");
    if (!fine)
        printf("; WRONG %llu, stray %llu, differ %llu\n", got.wrong, got.stray, got.differ);
    n_bad += !fine;
    fflush(stdout);
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
    MUST(cudaMalloc(&d.c, sizeof(counts)));
    auto random = [&](int n) { return (int)(hash(seed++) % (unsigned)n); };
    // One tile, one piece; then more of each.
    check(64, 128, 16, false, false, 0, ELEMENT_F32, nullptr, seed);
    check(128, 512, 16, false, true, 0, ELEMENT_F32, nullptr, seed);
    check(128, 512, 16, true, true, 0, ELEMENT_F16, nullptr, seed);
    for (int n = 1; n <= 128; n += n < 16 ? 5 : 8)
        check(16 * (1 + random(200)), 16 * (1 + random(100)), n, random(2), random(2), random(2), random(2) ? ELEMENT_F32 : ELEMENT_F16,
              nullptr, seed);
    for (int n : {16, 48, 128}) {
        check(4608, 3584, n, false, true, 0, ELEMENT_F32, nullptr, seed);
        check(3584, 3584, n, false, false, 0, ELEMENT_F32, nullptr, seed);
        check(37888, 3584, n, true, false, 0, ELEMENT_F16, nullptr, seed);
        check(3584, 18944, n, false, false, 0, ELEMENT_F32, nullptr, seed);
        check(5376, 21504, n, false, false, 0, ELEMENT_F16, nullptr, seed);
        check(16384, 5376, n, false, false, 0, ELEMENT_F16, nullptr, seed);
    }
    for (int i = 0; i < 100; i++) {
        int n = 1 + random(128), out = 16 * (1 + random(i % 4 ? 100 : 600)), in = 16 * (1 + random(300));
        bool gated = random(2);
        int octets = (gated ? out / 2 : out) / 8;
        tiles_cut c = {};
        c.split = 1 << random(3);
        c.octets = 1 + random(gated ? 16 : 32);
        int tiles = up_to(octets, c.octets);
        if (c.split > 1 && (tiles > 96 / c.split || in < 128 * c.split))
            c.split = 1;
        c.n_blocks = c.split > 1 ? tiles * c.split : 1 + random(96);
        c.n_stages = 2 + random((SHARED_MOST - OVERRUN - ATOM) / stage_bytes_of(gated, c.octets, n) - 1);
        c.n_stages = c.n_stages > MAX_STAGES ? MAX_STAGES : c.n_stages;
        check(out, in, n, gated, random(2), random(2), i % 3 == 0 ? ELEMENT_F32 : i % 3 == 1 ? ELEMENT_F16 : ELEMENT_BF16, &c, seed);
    }
    printf(n_bad ? "%llu CASES FAILED\n" : "all fine\n", n_bad);
    return n_bad != 0;
}
