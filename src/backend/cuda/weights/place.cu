/* place.cu - weights as they are loaded: rows as stored to rows of the element that the device keeps, with a count of
 * what that cost; and random rows for dummies. Run once: a thread an element, coalesced, no more.
 *
 *     to 16 or 32 bits    w[r, c] = x[r, c] * s[r, c / scale_cols], rounded to nearest
 *     to e4m3             scale[r] = max_c |w[r, c]| / 448 * 2^(s + k/8);  q[r, c] = e4m3(w[r, c] / scale[r]), to
 *                         nearest, ties to even; k of 0 .. 7 is the one with the least sum of squares of what is off
 *                         with s = 0; s >= 0 the least that leaves the row the norm that value.h says
 *     e4m3 to e4m3        q[r, c] = e4m3(x[r, c] 2^-s), scale[r] = s[r] 2^s: the same but where x[r, c] 2^-s is below
 *                         2^-6
 *
 * Of normal numbers that sum is the same for every k but for chance, of which a row of 128 columns has more: the best
 * of eight is off by 0.0236 of its root mean square, where k = 0 is by 0.0258; of 3,584 columns by 0.0259 and 0.0264.
 * Models of 128 to 256 columns lose a sixth less in perplexity so.
 *
 * Dummies: element i of a weight is one of the four normal numbers (Box and Muller) of Philox4x32-10 at (key, i / 4).
 */
#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/value.h"
#include "backend/cuda/weights/place.h"
#include "backend/cuda/weights/placing.cuh"

#include <cuda_fp8.h>

enum { THREADS = 256, MOST_BLOCKS = 4096 };

static const float LARGEST_E4M3 = 448.0f, TINIEST = 1e-30f, LARGEST_F16 = 65504.0f;

enum { TRIED = 8 }; // scales of a row
static __constant__ const float TIMES[TRIED] = {1.0f,       1.0905077f, 1.1892071f, 1.2968396f,
                                                1.4142135f, 1.5422108f, 1.6817929f, 1.8340081f}; // 2^(k/8)
static __constant__ const float PER[TRIED] = {1.0f,        0.91700404f, 0.84089642f, 0.77110541f,
                                              0.70710678f, 0.64841978f, 0.59460356f, 0.54525387f}; // 2^(-k/8)

static __global__ void convert_rows(dstored x, int64_t n_rows, dweight to, int64_t first_row, dplaced *counts) {
    __shared__ float shared[32];
    seen s = {};
    int64_t n = n_rows * x.in, base = first_row * x.in;
    void *at = const_cast<void *>(to.at);
    for (int64_t i = blockIdx.x * (int64_t)THREADS + threadIdx.x; i < n; i += gridDim.x * (int64_t)THREADS) {
        float v = x.scale ? stored(x, i / x.in, i % x.in) : stored(x, 0, i);
        store(at, base + i, to.element, v);
        look(&s, v, load(at, base + i, to.element), to.element == ELEMENT_F16 && fabsf(v) > LARGEST_F16);
    }
    publish(s, counts, shared);
}

static __device__ uint8_t to_e4m3(float x) { return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3); }

/* A row's element by one of its scales. */
static __device__ uint8_t quantised(float v, float most, int k) { return to_e4m3(v * (LARGEST_E4M3 / most * PER[k])); }
static __device__ float scale_of(float most, int k) { return most / LARGEST_E4M3 * TIMES[k]; }

/* The least power of two, 1 or more, by which a row of such squares in all is divided to have at most that norm. */
static __device__ float down_to(float norm, float squares) {
    float by = 1;
    for (; squares > norm * norm * 0.9999f; squares *= 0.25f) // what float32 sums may be off
        by *= 2;
    return by;
}

/* What is not a number counts for nothing. */
static __device__ float square_of(uint8_t code) {
    float v = from_e4m3(code);
    return isnan(v) ? 0 : v * v;
}

/* Which of a row's scales leaves least off. In double, as nobody is to see in which order it was summed. */
static __device__ int best_scale(const dstored &x, int64_t row, float most) {
    __shared__ double shared[TRIED][THREADS / 32];
    double off[TRIED] = {};
    for (int64_t c = threadIdx.x; c < x.in; c += THREADS) {
        float v = stored(x, row, c);
#pragma unroll
        for (int k = 0; k < TRIED; k++) {
            float d = fmaf(-from_e4m3(quantised(v, most, k)), scale_of(most, k), v);
            off[k] += (double)d * d;
        }
    }
    for (int k = 0; k < TRIED; k++) {
        for (int step = 16; step > 0; step /= 2)
            off[k] += __shfl_xor_sync(0xffffffffu, off[k], step);
        if (threadIdx.x % 32 == 0)
            shared[k][threadIdx.x / 32] = off[k];
    }
    __syncthreads(); // every warp's sums are there
    int best = 0;
    double least = INFINITY;
    for (int k = 0; k < TRIED; k++) {
        double sum = 0;
        for (int warp = 0; warp < THREADS / 32; warp++)
            sum += shared[k][warp];
        best = sum < least ? k : best;
        least = fmin(least, sum);
    }
    return best;
}

static __global__ void quantise_rows(dstored x, dweight to, int64_t first_row, float norm, dplaced *counts) {
    __shared__ float shared[32];
    seen s = {};
    int64_t row = blockIdx.x;
    float most = 0;
    for (int64_t c = threadIdx.x; c < x.in; c += THREADS)
        most = fmaxf(most, fabsf(stored(x, row, c)));
    most = fmaxf(block_max(most, shared), TINIEST);
    int best = best_scale(x, row, most);
    float squares = 0;
    for (int64_t c = threadIdx.x; c < x.in; c += THREADS)
        squares += square_of(quantised(stored(x, row, c), most, best));
    float by = down_to(norm, block_sum(squares, shared)), factor = LARGEST_E4M3 / most * PER[best] / by,
          scale = scale_of(most, best) * by;
    uint8_t *q = static_cast<uint8_t *>(const_cast<void *>(to.at)) + (first_row + row) * x.in;
    for (int64_t c = threadIdx.x; c < x.in; c += THREADS) {
        float v = stored(x, row, c);
        q[c] = to_e4m3(v * factor);
        look(&s, v, from_e4m3(q[c]) * scale, !isfinite(v));
    }
    if (threadIdx.x == 0)
        const_cast<float *>(to.scale)[first_row + row] = scale;
    publish(s, counts, shared);
}

/* Of elements that are e4m3 with a scale a row already. */
static __global__ void lower_rows(dstored x, dweight to, int64_t first_row, float norm, dplaced *counts) {
    __shared__ float shared[32];
    seen s = {};
    int64_t row = blockIdx.x;
    const uint8_t *from = static_cast<const uint8_t *>(x.at) + row * x.in;
    uint8_t *q = static_cast<uint8_t *>(const_cast<void *>(to.at)) + (first_row + row) * x.in;
    float squares = 0;
    for (int64_t c = threadIdx.x; c < x.in; c += THREADS)
        squares += square_of(from[c]);
    float by = down_to(norm, block_sum(squares, shared)), scale = x.scale[row];
    for (int64_t c = threadIdx.x; c < x.in; c += THREADS) {
        float v = from_e4m3(from[c]);
        q[c] = to_e4m3(v / by);
        look(&s, v * scale, from_e4m3(q[c]) * (scale * by), !isfinite(v * scale));
    }
    if (threadIdx.x == 0)
        const_cast<float *>(to.scale)[first_row + row] = scale * by;
    publish(s, counts, shared);
}

void launch_place_rows(cudaStream_t stream, const struct dstored *x, int64_t n_rows, struct dweight to,
                       int64_t first_row, struct dplaced *counts) {
    if (to.element == ELEMENT_E4M3) {
        auto place = x->element == ELEMENT_E4M3 && x->n_scales == 1 ? lower_rows : quantise_rows;
        place<<<(unsigned)n_rows, THREADS, 0, stream>>>(*x, to, first_row, e4m3_norm(x->in), counts);
        return;
    }
    int64_t blocks = (n_rows * x->in + THREADS - 1) / THREADS;
    convert_rows<<<(unsigned)(blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS), THREADS, 0, stream>>>(*x, n_rows, to,
                                                                                                  first_row, counts);
}

// ---- dummies ----------------------------------------------------------------------------------------------------

/* base/random.h, ten rounds. */
static __device__ uint4 philox(uint2 key, uint4 c) {
#pragma unroll
    for (int round = 0; round < 10; round++) {
        uint32_t high0 = __umulhi(0xD2511F53u, c.x), low0 = 0xD2511F53u * c.x;
        uint32_t high2 = __umulhi(0xCD9E8D57u, c.z), low2 = 0xCD9E8D57u * c.z;
        c = make_uint4(high2 ^ c.y ^ key.x, low2, high0 ^ c.w ^ key.y, low0);
        key.x += 0x9E3779B9u;
        key.y += 0xBB67AE85u;
    }
    return c;
}

static __device__ float uniform(uint32_t bits) { return ((bits >> 8) + 0.5f) * 0x1p-24f; } // in (0, 1)

static __device__ float2 two_normals(uint32_t a, uint32_t b) {
    float radius = sqrtf(-2.0f * __logf(uniform(a))), sine, cosine;
    __sincosf(6.2831853f * uniform(b), &sine, &cosine);
    return make_float2(radius * cosine, radius * sine);
}

/* Elements [first, first + n) of the weight; where first is no multiple of four, some numbers come twice. */
static __global__ void fill_dummy(ddummy d, int64_t first, int64_t n, void *at, element e) {
    int64_t stride = gridDim.x * (int64_t)THREADS * 4;
    for (int64_t i = (blockIdx.x * (int64_t)THREADS + threadIdx.x) * 4; i < n; i += stride) {
        uint64_t quad = (uint64_t)(first + i) / 4;
        uint4 r = philox(make_uint2((uint32_t)d.key, (uint32_t)(d.key >> 32)),
                         make_uint4((uint32_t)quad, (uint32_t)(quad >> 32), 0, 0));
        float2 low = two_normals(r.x, r.y), high = two_normals(r.z, r.w);
        float v[4] = {low.x * d.deviation, low.y * d.deviation, high.x * d.deviation, high.y * d.deviation};
        if (d.around_one) {
            const uint32_t bits[4] = {r.x, r.y, r.z, r.w};
            for (int k = 0; k < 4; k++)
                v[k] = 0.9f + 0.2f * uniform(bits[k]);
        }
        for (int k = 0; k < 4 && i + k < n; k++)
            store(at, i + k, e, v[k]);
    }
}

void launch_fill_dummy(cudaStream_t stream, const struct ddummy *d, int64_t first, int64_t n, void *at,
                       enum element e) {
    int64_t blocks = (n + 4 * THREADS - 1) / (4 * THREADS);
    fill_dummy<<<(unsigned)(blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS), THREADS, 0, stream>>>(*d, first, n, at, e);
}
