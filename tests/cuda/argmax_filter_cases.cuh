/* argmax_filter_cases.cuh - of test_argmax_filter.cu, which includes this behind argmax_filter.cu: heads of several
 * kinds, and kernels that look at what the filter made of them. */
#pragma once

enum kind { NORMAL, OUTLIERS, FAR, FARTHER, UNEVEN, COLUMNS, PEAKED, TWINS, CLOSE, SPARSE, HALVES, WIDE, N_KINDS };
static const char *const KINDS[] = {"normal",      "outliers of 12", "outliers of 50", "outliers of 200",
                                    "uneven rows", "uneven columns", "peaked",         "equal rows",
                                    "near ties",   "sparse",         "half steps",     "too wide"};
/* Of a channel in 500, a channel of some width at least. */
static __host__ __device__ double outlying(int what) {
    return what == OUTLIERS                 ? 12
           : what == FAR || what == COLUMNS ? 50
           : what == FARTHER                ? 200
           : what == WIDE                   ? 3000
                                            : 1;
}

static __device__ double hashed(uint64_t i) { return (hash(i) + 0.5) / 4294967296.0; }
static __device__ double normal(uint64_t i) { return sqrt(-2 * log(hashed(2 * i))) * cospi(2 * hashed(2 * i + 1)); }

/* Between two steps, where rounding errs most; the first says what a step is. */
static __device__ double halves(int k, double sign, uint32_t bits) {
    return (k == 0 ? 127 : bits % 126 + 0.5) * (sign > 0 ? 1 : -1);
}

static __global__ void make_x(void *at, element e, int n, int in, int64_t stride, int what, uint64_t seed) {
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < (int64_t)n * in;
         i += (int64_t)gridDim.x * blockDim.x) {
        int k = i % in;
        double v = normal(seed * 0x100000000u + i);
        if (hash(seed ^ (what == WIDE ? i : k)) % (in < 500 ? 50 : 500) ==
            0) // of columns; or of elements, for which no scale of columns is a help
            v *= outlying(what);
        if (what == HALVES)
            v = halves(k, v, hash(seed ^ i)) / 128;
        store(at, i / in * stride + k, e, (float)v);
    }
}
/* twin_of: rows of equal values. */
static __global__ void make_w(void *at, element e, int64_t out, int in, const void *x, int64_t x_stride, int n,
                              int what, uint64_t seed) {
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < out * in;
         i += (int64_t)gridDim.x * blockDim.x) {
        int64_t row = i / in, from = (what == TWINS || what == CLOSE) && out > 64 ? row % (out / 3) : row;
        int k = i % in;
        double v = 0.02 * normal(seed * 0x100000000u + from * in + k);
        if (what == UNEVEN)
            v *= exp2((double)(hash(seed + 77 * row) % 9) - 5) * (hash(seed ^ i) % 700 == 0 ? 8 : 1);
        if (what == COLUMNS)
            v *= exp2((double)(hash(seed + 31 * k) % 5) - 2);
        if (what == HALVES)
            v = halves(k, v, hash(seed ^ i)) / 4096;
        if (what == PEAKED && row % 97 == 5)
            v += 0.01 * load(x, row % n * x_stride + k, e);
        if (what == SPARSE && (row % 5 == 0 || hash(seed ^ i) % 16))
            v = 0;
        if (what == CLOSE && row != from && hash(seed ^ i) % (in / 8) == 0)
            v *= 1.0009765625;
        store(at, i, e, (float)v);
    }
}

/* A warp a pair: w.x in double precision, and what the copy says of it. */
static __global__ void exact_logits(const void *w, const void *x, element e, int64_t out, int in, int64_t x_stride,
                                    double *to) {
    int64_t row = blockIdx.x * (int64_t)blockDim.y + threadIdx.y;
    int token = blockIdx.y;
    if (row >= out)
        return;
    double sum = 0;
    for (int k = threadIdx.x; k < in; k += 32)
        sum += (double)load(w, row * in + k, e) * load(x, token * x_stride + k, e);
    for (int s = 16; s > 0; s /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, s);
    if (threadIdx.x == 0)
        to[token * out + row] = sum;
}

struct bound_counts {
    unsigned long long n, beyond, beyond_twentieth;
    double squares;          // of error / standard deviation
    unsigned long long most; // bits of |error| / bound
};
static __global__ void check_bound(const __grid_constant__ screen::units q, const screen::row *rows, screen::columns c,
                                   screen::scratch s, const void *w, const void *x, element e, int64_t out, int in,
                                   int64_t x_stride, const double *exact, bound_counts *counts) {
    int64_t row = blockIdx.x * (int64_t)blockDim.y + threadIdx.y;
    int token = blockIdx.y;
    if (row >= out || !(s.tokens[token].step > 0))
        return;
    screen::row r = rows[row];
    screen::token t = s.tokens[token];
    int sum = 0;
    double variance = 0;
    for (int k = threadIdx.x; k < in; k += 32) {
        double wk = (double)(load(w, row * in + k, e) * c.scale[k]) / r.step,
               xk = (double)(load(x, token * x_stride + k, e) * __bfloat162float(c.inverse[k])) / t.step,
               fw = wk - floor(wk), fx = xk - floor(xk);
        int qk = *q.byte(row, k), pk = s.p[token * s.pitch + k];
        sum += qk * pk;
        variance += fw * (1 - fw) * pk * pk + fx * (1 - fx) * wk * wk;
    }
    for (int i = 16; i > 0; i /= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, i);
        variance += __shfl_xor_sync(0xffffffffu, variance, i);
    }
    if (threadIdx.x != 0)
        return;
    double bound = (double)r.step * t.spread + (double)r.size * t.slack,
           off = fabs(exact[token * out + row] / t.step - (double)r.step * sum);
    double deviation = r.step * sqrt(variance), ratio = off / bound;
    atomicAdd(&counts->n, 1);
    if (!(ratio <= 1))
        atomicAdd(&counts->beyond, 1);
    if (!(ratio <= 0.05))
        atomicAdd(&counts->beyond_twentieth, 1);
    if (deviation > 0)
        atomicAdd(&counts->squares, off / deviation * (off / deviation));
    atomicMax(&counts->most, (unsigned long long)__double_as_longlong(ratio));
}

/* A warp a pair, of those that masks let through: of each token the best lower bound; with reach how many rows' upper
 * bounds are not below it. */
static __global__ void look_at_all(const __grid_constant__ screen::units q, const screen::row *rows, screen::scratch s,
                                   const drow *asked, const int32_t *lists, int64_t out, int in, float *best,
                                   int *reach) {
    int64_t row = blockIdx.x * (int64_t)blockDim.y + threadIdx.y;
    int token = blockIdx.y, sum = 0, mask = asked[token].mask;
    if (row >= out || (mask >= 0 && !((uint32_t)lists[mask + row / 32] >> row % 32 & 1)))
        return;
    for (int k = 4 * threadIdx.x; k < in; k += 4 * 32) // rows end with zeros
        sum = __dp4a(*reinterpret_cast<const int *>(q.byte(row, k)),
                     *reinterpret_cast<const int *>(s.p + token * s.pitch + k), sum);
    sum = __reduce_add_sync(0xffffffffu, sum);
    screen::row r = rows[row];
    screen::token t = s.tokens[token];
    float off = r.size * t.slack;
    if (threadIdx.x == 0 && !reach)
        screen::raise(best + token, fmaf(r.step, (float)sum - t.spread, -off));
    if (threadIdx.x == 0 && reach && fmaf(r.step, (float)sum + t.spread, off) >= best[token])
        atomicAdd(reach + token, 1);
}
static __global__ void before_caps(screen::scratch s, float cap, float *best) {
    best[threadIdx.x] = screen::before_cap(best[threadIdx.x], s.tokens[threadIdx.x].step, cap);
}

/* Logits of rows of W, a block's, against those of lm_head.cu. */
template <bool BF16>
static __global__ void compare_bits(screen::ending e, int out, const float *logits, unsigned long long *differ) {
    extern __shared__ __align__(128) unsigned char ring[];
    __shared__ screen::ring_barriers barriers;
    __shared__ int32_t ids[100];
    int token = blockIdx.y, n = min(out, 1 + (int)(hash(blockIdx.x) % 100));
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        ids[i] = hash(i + 1000 * (blockIdx.x + 100 * token)) % out;
    if (threadIdx.x == 0)
        barriers.init();
    __syncthreads(); // ids and barriers
    screen::exact_logits<BF16>(e, static_cast<const char *>(e.x.at) + token * e.x.stride * 2, ids, n,
                               shared_address(ring), shared_address(barriers.full), shared_address(barriers.empty))
        .each([&](float logit, int id) {
            if (__float_as_uint(logit) != __float_as_uint(logits[(int64_t)token * out + id]))
                atomicAdd(differ, 1);
            atomicAdd(differ + 1, 1);
        });
}
