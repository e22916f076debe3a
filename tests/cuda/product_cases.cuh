/* product_cases.cuh - a case of the tests of products from e4m3 values (test_gemm_fp8_small_m.cu,
 * test_gemm_fp8_gated.cu, test_gemm_fp8_split_k.cu, test_gemm_fp8_prefill.cu): random operands, and the same by plain
 * kernels, with sums that lose what the tensor core loses (e4m3_sums.cuh). So unscaled products are compared bit for
 * bit, and of others nothing but the rounding behind the sums may be off. Double precision says that the sums lose no
 * more than they should on average.
 *
 * Elements are as value.h promises; where they are all alike, with signs that agree, sums are as large as they can
 * become.
 *
 * What must not be written is poisoned before and looked at after, what must not be read is NaN; the same product again
 * must give the same bits. */
#pragma once

#include "product_operands.cuh"

/* Of four e4m3 numbers one; in a float that is 2^120 times smaller, as exponents count from -127 there and not from -7.
 */
static __device__ float small_value(uint32_t four, int i) {
    return __int_as_float((int)(four << (24 - 8 * i)) >> 4 & (int)0x87f00000u);
}

/* products[token][row] and the root of the sum of their terms' squares. Of some tokens a thread, as elements of w are
 * decoded once for all of them. */
enum { TOKENS_AT_ONCE = 8 };
static __global__ void reference(const unsigned char *w, const unsigned char *x, int64_t x_stride, const float *w_scale,
                                 const float *x_scale, const float *bias, int out, int in, int n, double *products,
                                 double *sizes) {
    int row = blockIdx.x * blockDim.y + threadIdx.y, first = blockIdx.y * TOKENS_AT_ONCE;
    double sum[TOKENS_AT_ONCE] = {}, size[TOKENS_AT_ONCE] = {};
    if (row >= out)
        return;
    for (int i = 4 * threadIdx.x; i < in; i += 4 * 32) {
        uint32_t of_w = *reinterpret_cast<const uint32_t *>(w + (int64_t)row * in + i);
        double value[4];
        for (int k = 0; k < 4; k++)
            value[k] = (double)small_value(of_w, k) * 0x1p240;
        for (int t = 0; t < TOKENS_AT_ONCE && first + t < n; t++) {
            uint32_t of_x = *reinterpret_cast<const uint32_t *>(x + (first + t) * x_stride + i);
            for (int k = 0; k < 4; k++) {
                double term = value[k] * small_value(of_x, k);
                sum[t] += term, size[t] += term * term;
            }
        }
    }
    for (int t = 0; t < TOKENS_AT_ONCE && first + t < n; t++) {
        for (int s = 16; s > 0; s /= 2) {
            sum[t] += __shfl_xor_sync(0xffffffffu, sum[t], s);
            size[t] += __shfl_xor_sync(0xffffffffu, size[t], s);
        }
        if (threadIdx.x == 0) {
            double scale = (double)w_scale[row] * x_scale[first + t];
            products[(int64_t)(first + t) * out + row] = sum[t] * scale + (bias ? bias[row] : 0);
            sizes[(int64_t)(first + t) * out + row] = sqrt(size[t]) * scale;
        }
    }
}

/* products become what is expected, by sums as the tensor core has them. */
static __global__ void expect(problem p, const float *sums, const float *w_scale, const float *x_scale,
                              const float *bias, double *products, const double *sizes, counts *c) {
    double lost = 0;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < (int64_t)p.n * p.out;
         i += (int64_t)gridDim.x * blockDim.x) {
        int row = i % p.out;
        double expected = (double)sums[i] * w_scale[row] * x_scale[i / p.out] + (bias ? bias[row] : 0),
               off = expected - products[i];
        lost += sizes[i] > 0 ? off * off / (sizes[i] * sizes[i]) : 0;
        products[i] = expected;
    }
    atomicAdd(&c->lost, lost);
}

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

/* What y is: the sums; of their scales and bias, an activation, in float32; the same where its tanh is good to 2^-11
 * (gated_end.cuh). */
enum making { RAW_SUMS, SCALED, BY_FAST_TANH };

static __device__ const double ROUNDING = 1e-6; // of float32, some of them

/* qact: NULL, or elements that may tell what y lacks. */
static __global__ void compare(problem p, making m, const double *products, const double *sizes, const void *y,
                               const void *again, const uint8_t *qact, int rows_there, int64_t stride, int width,
                               counts *c) {
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < rows_there * stride;
         i += (int64_t)gridDim.x * blockDim.x) {
        int token = i / stride, col = i % stride;
        uint32_t bits =
            p.e == ELEMENT_F32 ? static_cast<const uint32_t *>(y)[i] : static_cast<const uint16_t *>(y)[i] * 0x10001u;
        uint32_t bits2 = p.e == ELEMENT_F32 ? static_cast<const uint32_t *>(again)[i]
                                            : static_cast<const uint16_t *>(again)[i] * 0x10001u;
        bool inside = token < p.n && col < width, told = qact && inside && is_told(qact + token * stride + col / 8 * 8);
        if (bits != bits2 && !(told && bits == 0xffffffffu))
            atomicAdd(&c->differ, 1);
        if (told && bits != 0xffffffffu)
            atomicAdd(&c->told, 1);
        if (!inside) {
            if (bits != 0xffffffffu)
                atomicAdd(&c->stray, 1);
            continue;
        }
        const double *sums = products + (int64_t)token * p.out + col, *of = sizes + (int64_t)token * p.out + col;
        double expected = sums[0], most = ROUNDING * of[0];
        if (p.gated) {
            double gate = sums[0], up = sums[width], per_gate = fabs(up) + (p.act == 4),
                   per_up = fabs(gate) + 0.3 + (p.act == 3);
            expected = activated(p.act, gate, up);
            most = ROUNDING * (1.2 * of[0] * per_gate + per_up * of[width]) +
                   (m == BY_FAST_TANH ? 0x1p-12 * fabs(gate * up) : 0);
        }
        most += fabs(expected) * (p.e == ELEMENT_F32 ? 1e-6 : p.e == ELEMENT_F16 ? 5e-4 : 4e-3) + 1e-6;
        double off = fabs((double)load(again, i, p.e) - expected);
        off = m != RAW_SUMS ? off / most : off == 0 ? 0 : INFINITY; // NaN is wrong
        if (!(off <= 1))
            atomicAdd(&c->wrong, 1);
        if (!(off <= c->worst))
            atomicMax(reinterpret_cast<unsigned long long *>(&c->worst),
                      (unsigned long long)__double_as_longlong(off)); // NaN is largest
    }
}

/* The largest size of each row of y as it was stored, against what was folded into most. */
static __global__ void compare_most(const void *y, int width, int64_t stride, element e, const uint32_t *most,
                                    int n_tokens, counts *c) {
    __shared__ float shared[32];
    int token = blockIdx.x;
    float size = 0;
    for (int i = threadIdx.x; token < n_tokens && i < width; i += blockDim.x)
        size = fmaxf(size, fabsf(load(y, token * stride + i, e)));
    size = block_max(size, shared);
    if (threadIdx.x == 0 && most[token] != __float_as_uint(size))
        atomicAdd(&c->wrong_most, 1);
}

/* The qact, against the e4m3 of what was stored by its static_scale. */
static __global__ void compare_twin(const void *y, dmat qact, element e, int n_tokens, int rows_there, counts *c) {
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < rows_there * qact.stride;
         i += (int64_t)gridDim.x * blockDim.x) {
        bool inside = i / qact.stride < n_tokens && i % qact.stride < qact.width;
        uint8_t code = __nv_cvt_float_to_fp8(inside ? load(y, i, e) / qact.static_scale : 0, __NV_SATFINITE, __NV_E4M3);
        if (static_cast<const uint8_t *>(qact.at)[i] != (inside ? code : TWIN_POISON))
            atomicAdd(&c->wrong_twin, 1);
    }
}

/* What sums may lose, of the root of the terms' squares, on the average of many. Each of in / 32 steps cuts 32 terms to
 * multiples of at most 2^-13 of the sum so far (or of the largest term, which is as much as the first step), by a third
 * of that squared; of float16 it rounds the sum to a multiple of 2^-10 of it, by a twelfth. Signs are random, so
 * squares add up, and a sum of random terms is half of its last square on its way. Seen are 0.3 to 0.7 of it. Single
 * ones are another matter (docs/lab/cuda_proof.md). */
static inline double lost_at_most(const problem &p, bool halves) {
    return sqrt((p.in / 64.0 + 1) * (32 / 3.0 * 0x1p-26 + (halves ? 0x1p-20 / 12 : 0)));
}

/* Compares what run() left. */
static void judge(const problem &p, e4m3_sums::chains chains, making m) {
    const float *bias = p.bias ? d.bias : nullptr;
    reference<<<dim3((p.out + 7) / 8, (p.n + TOKENS_AT_ONCE - 1) / TOKENS_AT_ONCE), dim3(32, 8), 0, stream>>>(
        d.w, d.x, d.x_stride, d.w_scale, d.x_scale, bias, p.out, p.in, p.n, d.products, d.sizes);
    e4m3_sums::sum_up<<<dim3((p.out + e4m3_sums::ROWS - 1) / e4m3_sums::ROWS,
                             (p.n + e4m3_sums::TOKENS - 1) / e4m3_sums::TOKENS),
                        dim3(32, e4m3_sums::WARPS), 0, stream>>>(d.w, d.x, d.x_stride, p.out, p.in, p.n, chains,
                                                                 d.sums);
    expect<<<256, 256, 0, stream>>>(p, d.sums, d.w_scale, d.x_scale, bias, d.products, d.sizes, d.c);
    compare<<<256, 256, 0, stream>>>(p, m, d.products, d.sizes, d.y, d.again, p.gated ? d.qact : nullptr, d.rows_there,
                                     d.y_stride, p.width(), d.c);
    if (p.gated)
        compare_most<<<d.rows_there, 256, 0, stream>>>(d.again, p.width(), d.y_stride, p.e, d.absmax, p.n, d.c);
    if (p.gated)
        compare_twin<<<256, 256, 0, stream>>>(d.again, qact_of(p), p.e, p.n, d.rows_there, d.c);
    counts got;
    MUST(cudaMemcpyAsync(&got, d.c, sizeof got, cudaMemcpyDeviceToHost, stream));
    MUST(cudaStreamSynchronize(stream));
    double lost = sqrt(got.lost / ((double)p.n * p.out)) / lost_at_most(p, chains.halves);
    bool too_much =
        !p.alike && (double)p.n * p.out >= 1000 && !(lost <= 1); // of few, or of signs that agree, it is no average
    bool fine =
        !too_much && got.wrong == 0 && got.stray == 0 && got.differ == 0 && got.wrong_most == 0 && got.wrong_twin == 0;
    fine = fine && (!d.leaves_out || got.told == 0);
    printf("worst %.3f of the bound, lost %.3f%s%s", got.worst, lost, too_much ? " TOO MUCH" : "", fine ? "\n" : "");
    if (!fine)
        printf(
            "; WRONG %llu, stray %llu, differ %llu, of rows' largest %llu, of the twin %llu, told and written %llu\n",
            got.wrong, got.stray, got.differ, got.wrong_most, got.wrong_twin, got.told);
    n_bad += !fine;
    fflush(stdout);
}

static int summary() {
    printf(n_bad ? "%llu of %llu CASES FAILED\n" : "all fine\n", n_bad, n_cases);
    return n_bad != 0;
}
