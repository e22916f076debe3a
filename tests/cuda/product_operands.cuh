/* product_operands.cuh - of product_cases.cuh: a problem, its operands on the device, and running it. */
#pragma once

#include "backend/cuda/value.h"
#include "e4m3_sums.cuh"
#include "products.cuh"

#include <cuda_fp8.h>
#include <time.h>

struct counts {
    unsigned long long wrong, stray, differ, wrong_most, wrong_twin,
        told;           // told: by the qact, and written all the same
    double worst, lost; // lost: squares of what sums lose, as parts of the root of their terms' squares
};

/* y [n, width] = x [n, in] W^T, W [out, in], with the bias; of pairs, gates before ups, width is half of out. */
struct problem {
    int out, in, n;
    bool gated, bias;
    int act;
    element e;  // of y
    bool alike; // elements of a row
    int width() const { return gated ? out / 2 : out; }
};

/* In memory, of the problem at hand: rows there are of x and y, a few more than there are tokens. */
static struct {
    unsigned char *w, *x;
    float *w_scale, *x_scale, *bias;
    void *y, *again;
    double *products, *sizes;
    float *sums;
    uint32_t *absmax;
    uint8_t *qact;
    counts *c;
    int x_stride, rows_there;
    int64_t y_stride;
    float static_scale;
    bool leaves_out; // what is tested leaves out of y what the qact tells, or it need not
} d;
static cudaStream_t stream;
static unsigned long long n_bad, n_cases;

/* What is drawn is decided by the first argument, $GYRE_TEST_SEED or the clock. */
static uint64_t seed_of(int argc, char **argv) {
    const char *given = argc > 1 ? argv[1] : getenv("GYRE_TEST_SEED");
    return given ? strtoull(given, nullptr, 10) : (uint64_t)time(nullptr);
}

/* Room for the largest of each, in elements. */
static void open_operands(uint64_t seed, size_t most_w, size_t most_x, size_t most_y, size_t most_sums) {
    printf("seed %llu\n", (unsigned long long)seed);
    MUST(cudaStreamCreate(&stream));
    MUST(cudaMalloc(&d.w, most_w));
    MUST(cudaMalloc(&d.x, most_x));
    for (float **vector : {&d.w_scale, &d.x_scale, &d.bias})
        MUST(cudaMalloc(vector, 1 << 20));
    for (void **y : {&d.y, &d.again})
        MUST(cudaMalloc(y, most_y * 4));
    for (double **sums : {&d.products, &d.sizes})
        MUST(cudaMalloc(sums, most_sums * 8));
    MUST(cudaMalloc(&d.sums, most_sums * 4));
    MUST(cudaMalloc(&d.absmax, 1 << 14));
    MUST(cudaMalloc(&d.qact, most_y));
    MUST(cudaMalloc(&d.c, sizeof(counts)));
}

static size_t y_bytes(const problem &p) { return (size_t)d.rows_there * d.y_stride * (p.e == ELEMENT_F32 ? 4 : 2); }

static void fill_elements(const problem &p, uint64_t seed) {
    float norm = e4m3_norm(p.in);
    if (p.alike) {
        unsigned char code = 0x7e;
        while (e4m3_value(code) * sqrt((double)p.in) > norm)
            code--;
        fill_alike<<<p.out, 256, 0, stream>>>(d.w, p.in, p.in, code, seed);
        fill_alike<<<p.n, 256, 0, stream>>>(d.x, p.in, d.x_stride, 0x5e, seed); // E4M3_FULL
        return;
    }
    fill8<<<256, 256, 0, stream>>>(d.w, (size_t)p.out * p.in, seed);
    lower_weights<<<p.out, 256, 0, stream>>>(d.w, p.in, norm);
    size_t n = (size_t)(p.n - 1) * d.x_stride + p.in;
    fill8<<<256, 256, 0, stream>>>(d.x, n, seed + 1);
    lower_values<<<256, 256, 0, stream>>>(d.x, n);
}

/* Scales of W and of x's rows are in [low, high) each. */
struct range {
    float low, high;
};
/* Scales of W for which values are some ones in size, where those of x's rows are about 1. */
static range of_ones(const problem &p) {
    float size = p.alike ? 15000 : 4 * e4m3_norm(p.in);
    return {1 / size, 2 / size};
}
static void fill_operands(const problem &p, uint64_t seed, int rows_more, range of_w, range of_x) {
    d.x_stride = p.in + 16 * (int)(seed % 3);
    d.y_stride = p.width() + 8 * (int)(seed % 2);
    d.rows_there = p.n + rows_more;
    MUST(cudaMemsetAsync(d.x, 0x7f, (size_t)d.rows_there * d.x_stride, stream)); // NaN beyond the rows
    fill_elements(p, seed);
    fill32<<<64, 256, 0, stream>>>(d.w_scale, p.out, seed + 2, of_w.low, of_w.high);
    MUST(cudaMemsetAsync(d.x_scale, 0xff, d.rows_there * 4, stream));
    fill32<<<64, 256, 0, stream>>>(d.x_scale, p.n, seed + 3, of_x.low, of_x.high);
    fill32<<<64, 256, 0, stream>>>(d.bias, p.out, seed + 4, -1, 1);
    MUST(cudaMemsetAsync(d.y, 0xff, y_bytes(p), stream));
    MUST(cudaMemsetAsync(d.again, 0xff, y_bytes(p), stream));
    d.static_scale = ldexpf(1, (int)(seed % 8) - 5); // clamps some, makes zeros of others
    MUST(cudaMemsetAsync(d.qact, TWIN_POISON, d.rows_there * d.y_stride, stream));
    MUST(cudaMemsetAsync(d.c, 0, sizeof *d.c, stream));
    MUST(cudaMemsetAsync(d.absmax, 0, d.rows_there * 4, stream));
    MUST(cudaStreamSynchronize(stream));
}
static dweight w_of(const problem &p) { return {d.w, p.out, p.in, ELEMENT_E4M3, d.w_scale}; }
static dmat x_of(const problem &p) { return {d.x, d.x_stride, p.in, ELEMENT_E4M3, d.x_scale}; }
static dmat y_of(const problem &p) {
    dmat y = {d.y, d.y_stride, p.width(), p.e, nullptr};
    y.absmax = p.gated ? d.absmax : nullptr;
    return y;
}
static dmat qact_of(const problem &p) {
    dmat qact = {p.gated ? d.qact : nullptr, d.y_stride, p.width(), ELEMENT_E4M3};
    qact.static_scale = d.static_scale;
    return qact;
}

/* The line of the case, which the caller and judge() go on with. */
static void begin(const problem &p) {
    n_cases++;
    printf("out %d in %d tokens %d%s act %d%s element %d%s: ", p.out, p.in, p.n, p.gated ? " gated" : "", p.act,
           p.bias ? " bias" : "", (int)p.e, p.alike ? " alike" : "");
}
static void refuse() {
    printf("REFUSED\n");
    n_bad++;
}

/* Few cases, none of them large: for sanitizers, to which each launch costs some hundredths of a second. */
static inline bool is_brief() { return getenv("GYRE_TEST_BRIEF") != nullptr; }
/* With GYRE_TEST_PART=k/n n processes with k from 1 to n have all cases. */
static inline bool is_of_this_part(int i) {
    int k = 1, n = 1;
    const char *part = getenv("GYRE_TEST_PART");
    return !part || sscanf(part, "%d/%d", &k, &n) != 2 || n < 1 || i % n == k % n;
}

/* put(y, qact): launches the product into y and, of pairs, its qact. Once, where y may be without what the qact tells,
 * and three times more whole where it is compared, with and without the qact; in brief once more, without. */
template <class F> static void run(const problem &p, const F &put) {
    dmat y = y_of(p), again = y;
    again.at = d.again;
    y.untold_only = p.gated;
    fflush(stdout);
    MUST(put(y, qact_of(p)));
    for (int i = 0; i < (is_brief() ? 1 : 3); i++)
        MUST(put(again, i % 2 ? qact_of(p) : dmat{}));
    MUST(cudaStreamSynchronize(stream));
}
