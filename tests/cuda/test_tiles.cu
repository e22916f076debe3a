/* test_tiles.cu - LINEAR from e4m3 values by tiles (src/backend/cuda/tiles.cu) against double precision.
 *
 * The reference is a plain kernel, a thread a sum, in double. Random shapes and every number of tokens, biases, gated pairs, all
 * cuts; what must not be written is poisoned before and looked at after, what must not be read is NaN. */
#define BARRIER_SPIN_LIMIT 20000000
#include "backend/cuda/tiles.cu"

#include "products.cuh"

#include <time.h>
#include <utility>

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
    dtiles a = {{d.w, out, in, ELEMENT_E4M3, d.w_scale}, bias ? d.bias : nullptr, {gated ? ENDING_GATED : ENDING_PLAIN, act, LIMIT}};
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
        int act = random(5);
        dending e = {gated ? ENDING_GATED : ENDING_PLAIN, act, 0};
        while (shared_bytes(&e, n, &c) > SHARED_MOST)
            c.n_stages--;
        check(out, in, n, gated, random(2), act, random_element(gated), &c, seed);
    }
    check_activations();
    printf(n_bad ? "%llu CASES FAILED\n" : "all fine\n", n_bad);
    return n_bad != 0;
}
