/* requant_cases.cuh - products that requantise the qact which they read (struct drequant, in
 * src/backend/cuda/qact/requant.cuh): rows that its static scale does not fit are made anew by the product's blocks
 * before any of them reads one. */
#pragma once

#include "backend/cuda/qact/quantise.h"
#include "backend/cuda/value.h"
#include "product_cases.cuh"
#include "rows_of_sizes.cuh"

#include <vector>

/* Of rows of n_bytes, a block each. */
static __global__ void count_different(const void *a, int64_t a_stride, const void *b, int64_t b_stride,
                                       int64_t n_bytes, unsigned long long *n) {
    const uint8_t *of_a = static_cast<const uint8_t *>(a) + blockIdx.x * a_stride,
                  *of_b = static_cast<const uint8_t *>(b) + blockIdx.x * b_stride;
    for (int64_t i = threadIdx.x; i < n_bytes; i += blockDim.x)
        if (of_a[i] != of_b[i])
            atomicAdd(n, 1);
}

/* Rows of the step's own that do not fit. */
static unsigned long long others_of(dmat value, float static_scale, int n_own) {
    unsigned long long n = 0;
    std::vector<uint32_t> most(n_own);
    MUST(cudaMemcpy(most.data(), value.absmax, n_own * sizeof most[0], cudaMemcpyDeviceToHost));
    for (uint32_t m : most)
        n += !is_within(m, static_scale);
    return n;
}

/* Of the case that has begun, with y of half precision. put(x, y, rest): launches the product; rest NULL: x is as it
 * should be. A product that requantises its qact leaves it as it should be, and is bit by bit that of it; three times,
 * as blocks must meet again. */
template <class F> static void check_rest(const problem &p, uint64_t seed, const F &put) {
    fill_operands(p, seed, 16, {1, 1}, {1, 1});
    static dgrid_barrier *barriers;
    static struct {
        unsigned long long told;
        int32_t n_own;
    } * host;
    if (!barriers) {
        MUST(cudaMallocHost(&host, sizeof *host));
        MUST(cudaMalloc(&barriers, REQUANT_MEETINGS * sizeof *barriers));
        MUST(cudaMemsetAsync(barriers, 0, REQUANT_MEETINGS * sizeof *barriers, stream));
    }
    dmat value = {d.products, p.in + 8, p.in, seed % 2 ? ELEMENT_F16 : ELEMENT_BF16}, qact = x_of(p),
         requantised = qact, y = y_of(p), again = y;
    value.absmax = d.absmax;
    qact.static_scale = requantised.static_scale = ldexpf(1, (int)(seed % 10) - 6);
    requantised.at = d.sizes;
    requantised.scale = d.bias;
    again.at = d.again;
    auto fill = [&] {
        MUST(cudaMemsetAsync(d.absmax, 0, p.n * sizeof *d.absmax, stream));
        fill_rows<<<p.n, 256, 0, stream>>>(value, seed, qact.static_scale, seed % 4 == 0);
        write_qacts<<<p.n, 256, 0, stream>>>(value, qact, requantised, 0);
    };
    fill();
    MUST(put(requantised, again, nullptr));
    host->told = 0;
    host->n_own = seed % 3 ? p.n : (int)(hash(seed) % (p.n + 1)); // those behind fill a step up
    printf("rows are left: ");
    fflush(stdout);
    for (int i = 0; i < 3; i++) {
        fill();
        drequant requant = {value, barriers, {&host->told, &host->n_own}};
        MUST(put(qact, y, &requant));
        int64_t y_row = y.stride * 2;
        count_different<<<d.rows_there, 256, 0, stream>>>(y.at, y_row, again.at, y_row, y_row, &d.c->wrong);
        count_different<<<p.n, 256, 0, stream>>>(qact.at, qact.stride, requantised.at, requantised.stride, p.in,
                                                 &d.c->wrong_twin);
        count_different<<<1, 256, 0, stream>>>(qact.scale, 0, requantised.scale, 0, p.n * 4, &d.c->wrong_most);
    }
    counts got;
    MUST(cudaMemcpyAsync(&got, d.c, sizeof got, cudaMemcpyDeviceToHost, stream));
    MUST(cudaStreamSynchronize(stream));
    unsigned long long counted = 3 * others_of(value, qact.static_scale, host->n_own);
    bool fine = got.wrong == 0 && got.wrong_twin == 0 && got.wrong_most == 0 && host->told == counted;
    printf("%llu bytes of y, %llu of the twin, %llu of scales are others, counted %llu of %llu%s\n", got.wrong,
           got.wrong_twin, got.wrong_most, host->told, counted, fine ? ", fine" : ": WRONG");
    n_bad += !fine;
}
