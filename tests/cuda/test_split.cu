/* test_split.cu - raw products of many rows (src/backend/cuda/split.cu) against double precision.
 *
 * Every cut, random shapes and numbers of rows. What must not be written is poisoned before and looked at after, what must not be read is NaN; the
 * same product twice must give the same bits. */
#include "backend/cuda/split.cu"

#include "products.cuh"

#include <time.h>

struct counts {
    unsigned long long wrong, stray, differ;
    double worst;
};

/* Bound: as in test_wide.cu, what the tensor core loses of the terms' root of squares; and half a unit of half precision. */
static __global__ void compare(const double *products, const double *sizes, const void *y, const void *again, int n_rows, int max_rows,
                               int out, int in, int64_t stride, counts *c) {
    int64_t n = max_rows * stride;
    double loss = 2e-2 * fmax(1.0, sqrt(in / 4096.0));
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        int row = i / stride, col = i % stride;
        uint16_t bits = static_cast<const uint16_t *>(y)[i];
        if (bits != static_cast<const uint16_t *>(again)[i])
            atomicAdd(&c->differ, 1);
        if (row >= n_rows || col >= out) {
            if (bits != 0xffff)
                atomicAdd(&c->stray, 1);
            continue;
        }
        double expected = products[(int64_t)row * out + col] / RAW_UNIT, size = sizes[(int64_t)row * out + col] / RAW_UNIT;
        double off = fabs((double)load(y, i, ELEMENT_F16) - expected) / (loss * size + fabs(expected) * 5e-4 + 6e-8);
        if (!(off <= 1))
            atomicAdd(&c->wrong, 1);
        if (off > c->worst)
            c->worst = off; // roughly
    }
}

static unsigned long long n_bad, n_cases;
static cudaStream_t stream;

struct buffers {
    unsigned char *w, *x;
    float *ones;
    void *y, *again;
    double *products, *sizes;
    counts *c;
} d;
enum { MAX_OUT = 8192, MAX_IN = 22016, MAX_ROWS = 700 };

static void check(int out, int in, int n, int cut, uint64_t seed) {
    int x_stride = in + 16 * (seed % 3), rows_there = n + 130;
    int64_t stride = out + 8 * (seed % 2);
    fill8<<<256, 256, 0, stream>>>(d.w, (size_t)out * in, seed);
    MUST(cudaMemsetAsync(d.x, 0x7f, (size_t)rows_there * x_stride, stream)); // NaN beyond the rows
    fill8<<<256, 256, 0, stream>>>(d.x, (size_t)(n - 1) * x_stride + in, seed + 1);
    MUST(cudaMemsetAsync(d.y, 0xff, (size_t)rows_there * stride * 2, stream));
    MUST(cudaMemsetAsync(d.again, 0xff, (size_t)rows_there * stride * 2, stream));
    MUST(cudaMemsetAsync(d.c, 0, sizeof *d.c, stream));
    MUST(cudaStreamSynchronize(stream));
    dweight w = {d.w, out, in, ELEMENT_E4M3, nullptr};
    dmat x = {d.x, x_stride, in, ELEMENT_E4M3, nullptr}, y = {d.y, stride, out, ELEMENT_F16, nullptr}, again = y;
    again.at = d.again;
    struct split_cut c = split_cut_at(cut);
    printf("out %d in %d rows %d: tiles of %d, terms in %d parts: ", out, in, n, c.rows, c.split);
    n_cases++;
    if (!split_takes(w, x, y, n)) {
        printf("REFUSED\n");
        n_bad++;
        return;
    }
    fflush(stdout);
    MUST(launch_split_product_cut(stream, n, w, x, y, cut));
    for (int i = 0; i < 3; i++)
        MUST(launch_split_product_cut(stream, n, w, x, again, cut));
    MUST(cudaStreamSynchronize(stream));
    reference<<<dim3(up_to(out, 8), n), dim3(32, 8), 0, stream>>>(d.w, d.x, x_stride, d.ones, d.ones, nullptr, out, in, d.products,
                                                                  d.sizes);
    compare<<<256, 256, 0, stream>>>(d.products, d.sizes, d.y, d.again, n, rows_there, out, in, stride, d.c);
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
    MUST(cudaMalloc(&d.w, (size_t)MAX_OUT * MAX_IN));
    MUST(cudaMalloc(&d.x, (size_t)MAX_ROWS * (MAX_IN + 32)));
    MUST(cudaMalloc(&d.ones, MAX_OUT * 4));
    MUST(cudaMalloc(&d.y, (size_t)MAX_ROWS * MAX_OUT * 2));
    MUST(cudaMalloc(&d.again, (size_t)MAX_ROWS * MAX_OUT * 2));
    MUST(cudaMalloc(&d.products, (size_t)MAX_ROWS * MAX_OUT * 8));
    MUST(cudaMalloc(&d.sizes, (size_t)MAX_ROWS * MAX_OUT * 8));
    MUST(cudaMalloc(&d.c, sizeof(counts)));
    fill32<<<64, 256, 0, stream>>>(d.ones, MAX_OUT, 0, 1, 1);
    auto random = [&](int n) { return (int)(hash(seed++) % (unsigned)n); };
    for (int cut = 0; cut < SPLIT_CUTS; cut++) {
        check(8, 16, 1, cut, seed); // parts without terms
        check(48, 128, 65, cut, seed);
        check(split_cut_at(cut).rows, 512, 128, cut, seed);
        for (int i = 0; i < 12; i++)
            check(8 * (1 + random(i % 4 ? 100 : 600)), 16 * (1 + random(i % 3 ? 100 : 500)), 1 + random(i % 4 ? 300 : 550), cut, seed);
    }
    struct shape_of {
        int out, in;
    };
    for (shape_of s : {shape_of{4608, 3584}, {3584, 3584}, {3584, 18944}, {4096, 14336}, {5376, 21504}})
        for (int n : {65, 96, 128, 192, 224, 256}) {
            int cut = split_cut_of({d.w, s.out, s.in, ELEMENT_E4M3, nullptr}, n);
            if (cut >= 0)
                check(s.out, s.in, n, cut, seed++);
        }
    printf(n_bad ? "%llu of %llu CASES FAILED\n" : "all fine\n", n_bad, n_cases);
    return n_bad != 0;
}
