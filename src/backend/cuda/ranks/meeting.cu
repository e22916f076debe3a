/* meeting.cu - see meeting.h: ALL_REDUCE and ALL_GATHER over peers' memory. */
#include "backend/cuda/ptx/fours.cuh"
#include "backend/cuda/ranks/meeting.cuh"
#include "backend/cuda/ranks/meeting.h"

enum { THREADS = 256, SHARE_THREADS = 512, MOST_BLOCKS = 96, AT_ONCE = 4, SLICE_FOURS = 1024 };

int64_t meeting_box_bytes(int n) { return MEETING_HEAD + 2 * (int64_t)n * MEETING_SLICED * (int64_t)sizeof(float); }

// ---- packets ----------------------------------------------------------------------------------------------------

/* A thread has two columns of a row. */
static __global__ void __launch_bounds__(THREADS)
    reduce_packets(const __grid_constant__ dmeeting m, const int32_t *rows, dmat x, dmat y) {
    if (!m.one_card)
        let_next_start();
    wait_for_previous();
    int t = blockIdx.y, col = 2 * (blockIdx.x * THREADS + threadIdx.x), n_rows = *rows;
    if (t >= n_rows)
        return;
    uint32_t epoch = epoch_of(m);
    if (col < x.width) {
        float2 mine = make_float2(load(x, t, col), load(x, t, col + 1));
        int64_t at = (int64_t)t * x.width + col;
        send_to_all(m, epoch, at, mine);
        float2 sum = sum_of_all(m, epoch, at, mine);
        store(y, t, col, sum.x);
        store(y, t, col + 1, sum.y);
    }
    if (is_last_block(m, n_rows * gridDim.x) && threadIdx.x == 0)
        end_meeting(m, epoch);
}

// ---- slices -----------------------------------------------------------------------------------------------------

/* Four columns, of unscaled products too. */
static __device__ float4 four_at(const dmat &x, int64_t i, int n) {
    int64_t t = i / n;
    int col = 4 * (int)(i % n);
    float4 v = load_four(x, t, col);
    if (x.col_scale) {
        v = v * (*reinterpret_cast<const float4 *>(x.col_scale + col) * x.row_scale[t]);
        if (x.bias)
            v = v + *reinterpret_cast<const float4 *>(x.bias + col);
    }
    return v;
}

/* Tells every rank that this block's slice is in its box, and hears it of every rank. */
static __device__ void exchange_slice(const dmeeting &m, uint32_t epoch) {
    int r = threadIdx.x;
    __threadfence_system();
    __syncthreads(); // all of the slice is sent
    if (r < m.n && r != m.rank) {
        tell(&box_of(m, r).sent[epoch & 1][m.rank][blockIdx.x], epoch);
        const uint32_t *from = &box_of(m, m.rank).sent[epoch & 1][r][blockIdx.x];
        wait_until(m, r, [&] { return look(from) == epoch; });
    }
    __syncthreads(); // every rank's is here
}

static __global__ void __launch_bounds__(SHARE_THREADS)
    reduce_slices(const __grid_constant__ dmeeting m, const int32_t *rows, dmat x, dmat y) {
    if (!m.one_card)
        let_next_start();
    wait_for_previous();
    int n = x.width / 4, n_rows = *rows;
    if (n_rows == 0)
        return;
    uint32_t epoch = epoch_of(m);
    int64_t all = (int64_t)n_rows * n, begin = all * blockIdx.x / gridDim.x + threadIdx.x,
            end = all * (blockIdx.x + 1) / gridDim.x;
#pragma unroll 4
    for (int64_t i = begin; i < end; i += SHARE_THREADS) {
        float4 mine = four_at(x, i, n);
        for (int r = 1; r < m.n; r++)
            reinterpret_cast<float4 *>(sent_to(m, (m.rank + r) % m.n, m.rank, epoch))[i] = mine;
    }
    exchange_slice(m, epoch);
#pragma unroll 4
    for (int64_t i = begin; i < end; i += SHARE_THREADS) {
        float4 sum = {};
        for (int r = 0; r < m.n; r++) {
            float4 v = r == m.rank ? four_at(x, i, n)
                                   : __ldcg(reinterpret_cast<const float4 *>(sent_to(m, m.rank, r, epoch)) + i);
            sum = r == 0 ? v : sum + v;
        }
        store_four(y, i / n, 4 * (int)(i % n), sum);
    }
    if (is_last_block(m, gridDim.x) && threadIdx.x == 0)
        end_meeting(m, epoch);
}

// ---- letters ----------------------------------------------------------------------------------------------------

/* Tells all where x and y lie, that x is there and that y may be written, and hears it of all. */
static __device__ void begin(const dmeeting &m, uint32_t epoch, void *x, void *y, letter (&of)[MEETING_RANKS]) {
    int r = threadIdx.x;
    if (r < m.n && r != m.rank && blockIdx.x == 0) {
        letter &to = box_of(m, r).begun[epoch & 1][m.rank];
        to.x = x, to.y = y;
        tell(&to.epoch, epoch);
    }
    if (r < m.n && r != m.rank) {
        const letter &from = box_of(m, m.rank).begun[epoch & 1][r];
        wait_until(m, r, [&] { return look(&from.epoch) == epoch; });
        bool came = look(&from.epoch) == epoch; // else its own, so that nothing is touched
        of[r].x = came ? *const_cast<void *const volatile *>(&from.x) : x;
        of[r].y = came ? *const_cast<void *const volatile *>(&from.y) : y;
    } else if (r == m.rank) {
        of[r].x = x, of[r].y = y;
    }
    __syncthreads(); // letters are there
}

/* Nobody reads this rank's x or writes its y any more. */
static __device__ void end(const dmeeting &m, uint32_t epoch) {
    __threadfence_system(); // what this thread has read and written comes before what is told
    if (!is_last_block(m, gridDim.x))
        return;
    __threadfence_system();
    int r = threadIdx.x;
    if (r < m.n && r != m.rank) {
        tell(&box_of(m, r).ended[epoch & 1][m.rank], epoch);
        wait_until(m, r, [&] { return look(&box_of(m, m.rank).ended[epoch & 1][r]) == epoch; });
    }
    __syncthreads(); // all have ended
    if (r == 0)
        end_meeting(m, epoch);
}

/* Elements of a row, or fours of them. */
template <class V> static __device__ V *at_row(void *at, int64_t stride, int64_t i, int n) {
    return reinterpret_cast<V *>(static_cast<float *>(at) + i / n * stride) + i % n;
}
static __device__ float4 plus(float4 a, float4 b) { return a + b; }
static __device__ float plus(float a, float b) { return a + b; }

/* V: float4 where rows lie in fours, else float. */
template <class V>
static __global__ void __launch_bounds__(SHARE_THREADS)
    reduce_shares(const __grid_constant__ dmeeting m, const int32_t *rows, dmat x, dmat y) {
    __shared__ letter of[MEETING_RANKS];
    if (!m.one_card)
        let_next_start();
    wait_for_previous();
    int n = x.width / (int)(sizeof(V) / sizeof(float)), n_rows = *rows, step = gridDim.x * SHARE_THREADS;
    if (n_rows == 0)
        return;
    uint32_t epoch = epoch_of(m);
    begin(m, epoch, x.at, y.at, of);
    int64_t all = (int64_t)n_rows * n, stop = all * (m.rank + 1) / m.n;
    for (int64_t i = all * m.rank / m.n + blockIdx.x * SHARE_THREADS + threadIdx.x; i < stop;
         i += (int64_t)AT_ONCE * step) {
        V sum[AT_ONCE];
        for (int r = 0; r < m.n; r++) {
            V v[AT_ONCE];
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++)
                if (i + (int64_t)k * step < stop)
                    v[k] = __ldcg(at_row<V>(of[r].x, x.stride, i + (int64_t)k * step, n));
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++)
                sum[k] = r == 0 ? v[k] : plus(sum[k], v[k]);
        }
        for (int r = 0; r < m.n; r++)
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++)
                if (i + (int64_t)k * step < stop)
                    *at_row<V>(of[r].y, y.stride, i + (int64_t)k * step, n) = sum[k];
    }
    end(m, epoch);
}

template <class V>
static __global__ void __launch_bounds__(SHARE_THREADS)
    gather(const __grid_constant__ dmeeting m, const int32_t *rows, const int32_t *wanted, dmat x, int first, dmat y) {
    __shared__ letter of[MEETING_RANKS];
    if (!m.one_card)
        let_next_start();
    wait_for_previous();
    int n = x.width / (int)(sizeof(V) / sizeof(float)), n_rows = *rows;
    if (n_rows == 0 || *wanted == 0)
        return;
    uint32_t epoch = epoch_of(m);
    begin(m, epoch, x.at, y.at, of);
    for (int64_t i = blockIdx.x * SHARE_THREADS + threadIdx.x; i < (int64_t)n_rows * n;
         i += gridDim.x * SHARE_THREADS) {
        V v = *at_row<V>(x.at, x.stride, i, n);
        for (int r = 0; r < m.n; r++)
            *at_row<V>(static_cast<float *>(of[r].y) + first, y.stride, i, n) = v;
    }
    end(m, epoch);
}

// ---- through the host -------------------------------------------------------------------------------------------

/* An element of the host's memory, which no cache of this card may have from before. */
static __device__ float from_host(const float *at) { return *static_cast<const volatile float *>(at); }

/* The part that block b of all has of n elements. */
static __device__ int64_t part_from(int64_t n, int b) { return n * b / gridDim.x; }

/* Sums: y is the sum of all x, which are alike. Else each rank's x are y's columns from its `first` on, as its letter
 * says with its width. Of rows from `top` on, `most` at most. Grids of all ranks are alike, so that a block meets those
 * of its number. */
template <bool SUMS>
static __global__ void __launch_bounds__(SHARE_THREADS)
    meet_by_host(const __grid_constant__ dmeeting m, const int32_t *rows, const int32_t *wanted, int top, int most,
                 dmat x, int first, dmat y) {
    __shared__ letter of[MEETING_RANKS];
    if (!m.one_card)
        let_next_start();
    wait_for_previous();
    int n_rows = min(max(*rows - top, 0), most);
    if (n_rows == 0 || *wanted == 0)
        return;
    uint32_t epoch = epoch_of(m);
    if (!SUMS)
        begin(m, epoch, reinterpret_cast<void *>((intptr_t)first), reinterpret_cast<void *>((intptr_t)x.width), of);
    int64_t all = (int64_t)n_rows * x.width, stop = part_from(all, blockIdx.x + 1);
    for (int64_t i = part_from(all, blockIdx.x) + threadIdx.x; i < stop; i += SHARE_THREADS) {
        float mine = load(x, top + i / x.width, (int)(i % x.width));
        for (int r = 1; r < m.n; r++)
            sent_to(m, (m.rank + r) % m.n, m.rank, epoch)[i] = mine;
    }
    exchange_slice(m, epoch);
    if (SUMS)
        for (int64_t i = part_from(all, blockIdx.x) + threadIdx.x; i < stop; i += SHARE_THREADS) {
            float sum = 0;
            for (int r = 0; r < m.n; r++) {
                float v = r == m.rank ? load(x, top + i / x.width, (int)(i % x.width))
                                      : from_host(sent_to(m, m.rank, r, epoch) + i);
                sum = r == 0 ? v : sum + v;
            }
            store(y, top + i / x.width, (int)(i % x.width), sum);
        }
    for (int r = 0; r < m.n && !SUMS; r++) {
        int from = (int)(intptr_t)of[r].x, width = (int)(intptr_t)of[r].y;
        int64_t n = (int64_t)n_rows * width;
        for (int64_t i = part_from(n, blockIdx.x) + threadIdx.x; i < part_from(n, blockIdx.x + 1); i += SHARE_THREADS)
            store(y, top + i / width, from + (int)(i % width),
                  r == m.rank ? load(x, top + i / width, (int)(i % width))
                              : from_host(sent_to(m, m.rank, r, epoch) + i));
    }
    if (is_last_block(m, gridDim.x) && threadIdx.x == 0)
        end_meeting(m, epoch);
}

// ---- the largest ------------------------------------------------------------------------------------------------

/* What is not a number is largest; of equals the first. */
static __device__ dlargest better(dlargest a, dlargest b) {
    bool more = b.logit > a.logit || (isnan(b.logit) && !isnan(a.logit));
    bool same = b.logit == a.logit || (isnan(b.logit) && isnan(a.logit));
    return more || (same && b.id < a.id) ? b : a;
}

static __device__ dlargest warp_best(dlargest mine) {
    for (int step = 16; step > 0; step /= 2)
        mine = better(mine, dlargest{__shfl_xor_sync(0xffffffffu, mine.logit, step),
                                     __shfl_xor_sync(0xffffffffu, mine.id, step)});
    return mine;
}

/* Of the block: its first thread's. */
static __device__ dlargest block_best(dlargest mine, dlargest (&of_warps)[THREADS / 32]) {
    mine = warp_best(mine);
    if (threadIdx.x % 32 == 0)
        of_warps[threadIdx.x / 32] = mine;
    __syncthreads(); // every warp's is there
    return warp_best(threadIdx.x < THREADS / 32 ? of_warps[threadIdx.x] : dlargest{-INFINITY, INT32_MAX});
}

/* A block has a part of a row. */
static __global__ void __launch_bounds__(THREADS)
    gather_largest(const __grid_constant__ dmeeting m, const int32_t *rows, dmat x, int first, dlargest *largest,
                   int pitch) {
    __shared__ dlargest of_warps[THREADS / 32];
    if (!m.one_card)
        let_next_start();
    wait_for_previous();
    int t = blockIdx.y, part = blockIdx.x, n_rows = *rows;
    if (t >= n_rows)
        return;
    uint32_t epoch = epoch_of(m);
    const float *row = static_cast<const float *>(x.at) + t * x.stride;
    int end = (int)((int64_t)x.width * (part + 1) / MEETING_BESTS);
    dlargest mine = {-INFINITY, INT32_MAX};
#pragma unroll 4
    for (int i = (int)((int64_t)x.width * part / MEETING_BESTS) + threadIdx.x; i < end; i += THREADS)
        mine = better(mine, dlargest{row[i], first + i});
    mine = block_best(mine, of_warps);
    if (threadIdx.x == 0) {
        int64_t at = 2 * ((int64_t)t * MEETING_BESTS + part);
        send_to_all(m, epoch, at, make_float2(mine.logit, __int_as_float(mine.id)));
        for (int r = 0; r < m.n; r++) {
            float2 v = make_float2(mine.logit, __int_as_float(mine.id));
            if (r != m.rank)
                wait_until(m, r, [&] { return take_packets(packets_of(m, m.rank, r, epoch) + at, epoch, v); });
            largest[t * pitch + r * MEETING_BESTS + part] = dlargest{v.x, __float_as_int(v.y)};
        }
    }
    if (is_last_block(m, n_rows * MEETING_BESTS) && threadIdx.x == 0)
        end_meeting(m, epoch);
}
static_assert(2 * MEETING_BEST_ROWS * MEETING_BESTS <= MEETING_PACKETS, "all rows' packets have room");

// ---- launches ---------------------------------------------------------------------------------------------------

static bool in_fours(const dmat &x, const dmat &y, int first) {
    return lies_in_fours(x) && lies_in_fours(y) && first % 4 == 0;
}

static int blocks_for(int64_t n_threads) {
    int64_t n = (n_threads + SHARE_THREADS - 1) / SHARE_THREADS;
    return (int)(n < 1 ? 1 : n < MOST_BLOCKS ? n : MOST_BLOCKS);
}

static bool packets_take(const dmat &x, int64_t n_rows) {
    return n_rows * x.width <= MEETING_PACKETS && x.width % 2 == 0;
}

/* Beside each element of x lie its scales and bias. */
static bool scales_in_fours(const dmat &x) { return (uintptr_t)x.col_scale % 16 == 0 && (uintptr_t)x.bias % 16 == 0; }

static bool slices_take(const dmeeting *m, const dmat &x, int64_t n_rows) {
    return n_rows * x.width * (m->n - 1) <= MEETING_SLICED && lies_in_fours(x) && scales_in_fours(x);
}

static void by_packets(const struct launch *l, int n_rows, const struct dmeeting *m, const int32_t *rows, const dmat &x,
                       const dmat &y) {
    launch_node(reduce_packets, dim3((x.width / 2 + THREADS - 1) / THREADS, n_rows), THREADS, 0, l->stream, *m, rows, x,
                y);
}

static void by_slices(const struct launch *l, int n_rows, const struct dmeeting *m, const int32_t *rows, const dmat &x,
                      const dmat &y) {
    int64_t n = ((int64_t)n_rows * x.width / 4 + SLICE_FOURS - 1) / SLICE_FOURS;
    launch_node(reduce_slices, (int)(n < MEETING_SLICES ? n : MEETING_SLICES), SHARE_THREADS, 0, l->stream, *m, rows, x,
                y);
}

static void by_shares(const struct launch *l, int n_rows, const struct dmeeting *m, const int32_t *rows, const dmat &x,
                      const dmat &y) {
    int64_t n = (int64_t)n_rows * x.width / m->n;
    if (in_fours(x, y, 0))
        launch_node(reduce_shares<float4>, blocks_for(n / 4), SHARE_THREADS, 0, l->stream, *m, rows, x, y);
    else
        launch_node(reduce_shares<float>, blocks_for(n), SHARE_THREADS, 0, l->stream, *m, rows, x, y);
}

/* As many rows a node as a box has room for. */
static_assert((int)MOST_BLOCKS <= (int)MEETING_SLICES, "each block has its word");
static void by_host(const struct launch *l, int n_rows, const struct dmeeting *m, const int32_t *rows,
                    const int32_t *wanted, const dmat &x, int first, const dmat &y, bool sums) {
    int most = MEETING_SLICED / y.width;
    for (int top = 0; top < n_rows; top += most) {
        int64_t n = (int64_t)(n_rows - top < most ? n_rows - top : most) * y.width;
        launch_node(sums ? meet_by_host<true> : meet_by_host<false>, blocks_for(n), SHARE_THREADS, 0, l->stream, *m,
                    rows, wanted, top, most, x, first, y);
    }
}

bool all_reduce_takes_unscaled(const struct dmeeting *m, struct dmat x, int n_rows) {
    return packets_take(x, n_rows) || m->by_host || slices_take(m, x, n_rows);
}

void launch_all_reduce(const struct launch *l, int n_rows, const struct dmeeting *m, const int32_t *rows, struct dmat x,
                       struct dmat y) {
    if (packets_take(x, n_rows))
        by_packets(l, n_rows, m, rows, x, y);
    else if (m->by_host)
        by_host(l, n_rows, m, rows, rows, x, 0, y, true);
    else if (slices_take(m, x, n_rows) && lies_in_fours(y))
        by_slices(l, n_rows, m, rows, x, y);
    else
        by_shares(l, n_rows, m, rows, x, y);
}

void launch_gather_largest(const struct launch *l, int n_rows, const struct dmeeting *m, const int32_t *rows,
                           struct dmat x, int first, struct dlargest *largest, int pitch) {
    launch_node(gather_largest, dim3(MEETING_BESTS, n_rows), THREADS, 0, l->stream, *m, rows, x, first, largest, pitch);
}

void launch_all_gather(const struct launch *l, int n_rows, const struct dmeeting *m, const int32_t *rows,
                       const int32_t *wanted, struct dmat x, int first, struct dmat y) {
    int64_t n = (int64_t)n_rows * x.width;
    if (m->by_host)
        by_host(l, n_rows, m, rows, wanted, x, first, y, false);
    else if (in_fours(x, y, first))
        launch_node(gather<float4>, blocks_for(n / 4), SHARE_THREADS, 0, l->stream, *m, rows, wanted, x, first, y);
    else
        launch_node(gather<float>, blocks_for(n), SHARE_THREADS, 0, l->stream, *m, rows, wanted, x, first, y);
}
