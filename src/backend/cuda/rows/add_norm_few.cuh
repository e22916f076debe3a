/* add_norm_few.cuh - ADD_NORM of a few rows, each over a cluster of blocks; and what norm.cu's kernels share. See
 * norm.cu. */
#pragma once

#include "backend/cuda/ptx/fours.cuh"
#include "backend/cuda/ptx/row_join.cuh"
#include "backend/cuda/ranks/meeting.cuh"
#include "backend/cuda/value.h"

enum { MOST_THREADS = 512 };

struct norm_of {
    const float *w; // NULL: 1
    float eps, plus;
    int width;
    float one_of_width; // 1 / width
};

static norm_of norm_by(const dweight &w, float eps, bool plus_one, int width) {
    return norm_of{static_cast<const float *>(w.at), eps, w.at && plus_one ? 1.0f : 0.0f, width, 1.0f / (float)width};
}

static __device__ float weight_at(const norm_of &n, int i) { return n.w ? n.w[i] + n.plus : 1.0f; }
static __device__ float4 weights_at(const norm_of &n, int col) {
    return n.w ? *reinterpret_cast<const float4 *>(n.w + col) + n.plus : make_float4(1, 1, 1, 1);
}
static __device__ float factor_of(const norm_of &n, float sum_of_squares) {
    return rsqrtf(sum_of_squares * n.one_of_width + n.eps);
}

struct add_norm_args {
    dmat x, d, also; // d.at NULL: r = x; also: dadd_norm's
    norm_of n, d_norm;
    const float *r_scale; // NULL: 1
    dmat r, y, qact;
    int n_rows;
    bool prefetch; // x may be read before the wait
};

/* A row of floats. */
static __device__ const float4 *fours_of(const dmat &x, int t) {
    return reinterpret_cast<const float4 *>(static_cast<const float *>(x.at) + t * x.stride);
}

/* Four columns that ranks sum. */
static __device__ void send_four(const dmeeting &m, uint32_t epoch, int64_t at, float4 mine) {
    send_to_all(m, epoch, at, make_float2(mine.x, mine.y));
    send_to_all(m, epoch, at + 2, make_float2(mine.z, mine.w));
}
static __device__ float4 sum_four(const dmeeting &m, uint32_t epoch, int64_t at, float4 mine) {
    float2 low = sum_of_all(m, epoch, at, make_float2(mine.x, mine.y)),
           high = sum_of_all(m, epoch, at + 2, make_float2(mine.z, mine.w));
    return make_float4(low.x, low.y, high.x, high.y);
}

/* The line that this lies in, whoever may still write it: the L2 is where writes meet. */
static __device__ void fetch_to_l2(const void *at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); }

/* Whether d is to be summed over ranks first (ranks/meeting.h), by packets. */
struct alone {
    static constexpr bool meets = false;
};
struct among_ranks {
    static constexpr bool meets = true;
    dmeeting meeting;
    const int32_t *rows;
};

static __device__ bool may_start_next(const alone &) { return true; }
static __device__ bool may_start_next(const among_ranks &ranks) { return !ranks.meeting.one_card; }

/* own(k): this rank's fours of the row; a row behind the step's own meets nobody. Returns the meeting's number. */
template <int C, int FOURS, class F>
static __device__ uint32_t sum_over_ranks(const among_ranks &ranks, const row_place<C> &at, int width, F own,
                                          float4 (&sum)[FOURS]) {
    uint32_t epoch = epoch_of(ranks.meeting);
    bool meets = at.row < *ranks.rows;
#pragma unroll
    for (int k = 0; k < FOURS; k++) {
        int col = 4 * (at.thread + k * at.n_threads);
        sum[k] = own(k);
        if (meets && col < width)
            send_four(ranks.meeting, epoch, (int64_t)at.row * width + col, sum[k]);
    }
#pragma unroll
    for (int k = 0; k < FOURS; k++) {
        int col = 4 * (at.thread + k * at.n_threads);
        if (meets && col < width)
            sum[k] = sum_four(ranks.meeting, epoch, (int64_t)at.row * width + col, sum[k]);
    }
    return epoch;
}

template <int C> static __device__ void end_sum(const alone &, const row_place<C> &, uint32_t) {}
template <int C> static __device__ void end_sum(const among_ranks &ranks, const row_place<C> &at, uint32_t epoch) {
    if (at.row < *ranks.rows && is_last_block(ranks.meeting, *ranks.rows * C) && threadIdx.x == 0)
        end_meeting(ranks.meeting, epoch);
}

/* r w becomes y, its qact or both; both: the sum of r's squares, the largest of r w. */
template <int C, int FOURS>
static __device__ void write_normed(const add_norm_args &a, const row_place<C> &at, const float4 (&w)[FOURS],
                                    float2 both, float factor) {
    float inverse = e4m3_inverse(both.y);
    int t = at.row, n = a.x.width / 4;
    if (a.qact.at && at.thread == 0)
        a.qact.scale[t] = e4m3_scale(both.y * factor);
#pragma unroll
    for (int k = 0; k < FOURS; k++) {
        int i = at.thread + k * at.n_threads;
        if (i < n && a.y.at)
            store_four(a.y, t, 4 * i, w[k] * factor);
        if (i < n && a.qact.at)
            store_e4m3(a.qact, t, 4 * i, w[k] * inverse);
    }
}

/* D: how d lies, RAW: as unscaled products, NORMED: d is normed first, C: blocks a row. Thread i of a row holds the
 * fours i, i + n_threads, ... of it. */
template <element D, bool RAW, bool NORMED, int C, int FOURS, class RANKS>
static __global__ void GYRE_CLUSTER(C) __launch_bounds__(MOST_THREADS)
    add_norm(add_norm_args a, const __grid_constant__ RANKS ranks) {
    __shared__ row_meeting<C> of_d, of_r;
    typedef typename four_of<D>::stored stored;
    if (may_start_next(ranks))
        let_next_start();
    row_open(of_r, NORMED ? &of_d : nullptr);
    row_place<C> at;
    int t = at.row, n = a.x.width / 4;
    const float4 *xs = fours_of(a.x, t) + at.thread, *more = fours_of(a.also, t) + at.thread;
    const stored *ds = reinterpret_cast<const stored *>(static_cast<const char *>(a.d.at) +
                                                        t * a.d.stride * (D == ELEMENT_F32 ? 4 : 2)) +
                       at.thread;
    float4 w[FOURS], v[FOURS], x[FOURS], column[FOURS], e[FOURS];
    stored d[FOURS];
#pragma unroll
    for (int k = 0; k < FOURS; k++) {
        int i = at.thread + k * at.n_threads;
        w[k] = i < n ? weights_at(a.n, 4 * i) : float4{};
        v[k] = NORMED && i < n ? weights_at(a.d_norm, 4 * i) : float4{};
        column[k] = RAW && i < n ? reinterpret_cast<const float4 *>(a.d.col_scale)[i] : float4{};
    }
    float scale = a.r_scale ? *a.r_scale : 1.0f;
#pragma unroll
    for (int k = 0; k < FOURS; k++)
        if (at.thread + k * at.n_threads < n && threadIdx.x % 8 == 0)
            fetch_to_l2(xs + k * at.n_threads);
    row_opened<C>();
    wait_for_previous();
#pragma unroll
    for (int k = 0; k < FOURS; k++) {
        bool mine = at.thread + k * at.n_threads < n;
        x[k] = mine ? xs[k * at.n_threads] : float4{};
        d[k] = mine && a.d.at ? ds[k * at.n_threads] : stored{};
        e[k] = !NORMED && mine && a.also.at ? more[k * at.n_threads] : float4{};
    }
    float factor = 1, unit = RAW ? a.d.row_scale[t] : 1.0f;
    auto own = [&](int k) {
        float4 v = floats_of<D>(d[k]);
        int i = at.thread + k * at.n_threads;
        if constexpr (RAW) {
            v = v * (column[k] * unit);
            if (a.d.bias && i < n)
                v = v + reinterpret_cast<const float4 *>(a.d.bias)[i];
        }
        return NORMED || !a.also.at ? v : v + e[k];
    };
    float4 sum[FOURS];
    uint32_t epoch = 0;
    if constexpr (RANKS::meets)
        epoch = sum_over_ranks(ranks, at, a.x.width, own, sum);
    auto added = [&](int k) {
        if constexpr (RANKS::meets)
            return sum[k];
        else
            return own(k);
    };
    if (NORMED) {
        float squares = 0;
#pragma unroll
        for (int k = 0; k < FOURS; k++)
            squares += dot(added(k), added(k));
        factor = factor_of(a.d_norm, row_join(make_float2(squares, 0), of_d).x);
    }
    float2 both = {0, 0};
#pragma unroll
    for (int k = 0; k < FOURS; k++) {
        int i = at.thread + k * at.n_threads;
        x[k] = (x[k] + (NORMED ? added(k) * (v[k] * factor) : added(k))) * scale;
        w[k] = x[k] * w[k];
        both = join(both, make_float2(dot(x[k], x[k]), largest(w[k])));
        if (i < n)
            store_four<ELEMENT_F32>(a.r, t, 4 * i, x[k]);
    }
    both = row_join(both, of_r);
    write_normed(a, at, w, both, factor_of(a.n, both.x));
    end_sum(ranks, at, epoch);
}
