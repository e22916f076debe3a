/* meeting.cu - see meeting.h: ALL_REDUCE and ALL_GATHER over peers' memory. */
#include "backend/cuda/ptx/fours.cuh"
#include "backend/cuda/ranks/meeting.h"

enum { THREADS = 256, SHARE_THREADS = 512, MOST_BLOCKS = 96, AT_ONCE = 4, LOOKS = 256 };

/* A letter to a rank. The epoch is written last. */
struct letter {
    void *x, *y;
    uint32_t epoch, unused;
};

/* The front of a box; behind it, at MEETING_HEAD, packets [2][n][MEETING_PACKETS]. */
struct box {
    uint32_t epoch;  // of the last meeting
    uint32_t n_done; // blocks that have ended, of the one that is under way
    uint32_t gave_up;
    uint32_t unused;
    letter begun[2][MEETING_RANKS];
    uint32_t ended[2][MEETING_RANKS];
};
static_assert(sizeof(box) <= MEETING_HEAD, "the front of a box fits");

int64_t meeting_box_bytes(int n) { return MEETING_HEAD + 2 * (int64_t)n * MEETING_PACKETS * (int64_t)sizeof(uint2); }

static __device__ box &box_of(const dmeeting &m, int rank) { return *static_cast<box *>(m.boxes[rank]); }

/* Packets in a rank's box from another. */
static __device__ uint2 *packets_of(const dmeeting &m, int to, int from, uint32_t epoch) {
    return reinterpret_cast<uint2 *>(static_cast<char *>(m.boxes[to]) + MEETING_HEAD) +
           ((epoch & 1) * m.n + from) * (int64_t)MEETING_PACKETS;
}

// ---- words between cards ----------------------------------------------------------------------------------------

static __device__ uint32_t look(const uint32_t *at) {
    uint32_t v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(at) : "memory");
    return v;
}
static __device__ void tell(uint32_t *at, uint32_t v) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(at), "r"(v) : "memory");
}
/* Two packets. Each is written and read at once, the two not with each other. */
static __device__ void send(uint2 *at, float2 x, uint32_t epoch) {
    uint64_t high = (uint64_t)epoch << 32;
    asm volatile("st.relaxed.sys.global.v2.b64 [%0], {%1, %2};" ::"l"(at), "l"(high | __float_as_uint(x.x)),
                 "l"(high | __float_as_uint(x.y))
                 : "memory");
}
static __device__ bool take(const uint2 *at, uint32_t epoch, float2 &x) {
    uint64_t a, b;
    asm volatile("ld.relaxed.sys.global.v2.b64 {%0, %1}, [%2];" : "=l"(a), "=l"(b) : "l"(at) : "memory");
    x = make_float2(__uint_as_float((uint32_t)a), __uint_as_float((uint32_t)b));
    return (uint32_t)(a >> 32) == epoch && (uint32_t)(b >> 32) == epoch;
}

static __device__ unsigned long long now_ns() {
    unsigned long long t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

/* Until there() holds; `from` is whom it waits for. Time is looked at rarely, since that takes some. */
template <class F> static __device__ void wait_until(const dmeeting &m, int from, F there) {
    unsigned long long began = 0;
    for (uint32_t i = 1; !there(); i++) {
        if (i % LOOKS)
            continue;
        if (look(&box_of(m, m.rank).gave_up))
            return;
        unsigned long long now = now_ns();
        began = began ? began : now;
        if (now - began < m.patience_ns)
            continue;
        *static_cast<volatile int32_t *>(m.missed) = 1 + from;
        tell(&box_of(m, m.rank).gave_up, 1);
        return;
    }
}

/* The last block of a meeting, of n_blocks that have something to do, gets true. */
static __device__ bool is_last_block(const dmeeting &m, uint32_t n_blocks) {
    __threadfence_system();
    __syncthreads(); // every thread's writes come before
    return __syncthreads_or(threadIdx.x == 0 && atomicAdd(&box_of(m, m.rank).n_done, 1) == n_blocks - 1);
}

/* By the last block's first thread. */
static __device__ void end_meeting(const dmeeting &m, uint32_t epoch) {
    box_of(m, m.rank).n_done = 0;
    box_of(m, m.rank).epoch = epoch;
}

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
    uint32_t epoch = box_of(m, m.rank).epoch + 1;
    if (col < x.width) {
        float2 mine = make_float2(load(x, t, col), load(x, t, col + 1)), sum = {0, 0};
        int64_t at = (int64_t)t * x.width + col;
        for (int r = 1; r < m.n; r++) {
            int to = (m.rank + r) % m.n;
            send(packets_of(m, to, m.rank, epoch) + at, mine, epoch);
        }
        for (int r = 0; r < m.n; r++) {
            float2 v = mine;
            if (r != m.rank)
                wait_until(m, r, [&] { return take(packets_of(m, m.rank, r, epoch) + at, epoch, v); });
            sum = r == 0 ? v : make_float2(sum.x + v.x, sum.y + v.y);
        }
        store(y, t, col, sum.x);
        store(y, t, col + 1, sum.y);
    }
    if (is_last_block(m, n_rows * gridDim.x) && threadIdx.x == 0)
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
    if (!is_last_block(m, gridDim.x))
        return;
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
    uint32_t epoch = box_of(m, m.rank).epoch + 1;
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
    gather(const __grid_constant__ dmeeting m, const int32_t *rows, dmat x, int first, dmat y) {
    __shared__ letter of[MEETING_RANKS];
    if (!m.one_card)
        let_next_start();
    wait_for_previous();
    int n = x.width / (int)(sizeof(V) / sizeof(float)), n_rows = *rows;
    if (n_rows == 0)
        return;
    uint32_t epoch = box_of(m, m.rank).epoch + 1;
    begin(m, epoch, x.at, y.at, of);
    for (int64_t i = blockIdx.x * SHARE_THREADS + threadIdx.x; i < (int64_t)n_rows * n;
         i += gridDim.x * SHARE_THREADS) {
        V v = *at_row<V>(x.at, x.stride, i, n);
        for (int r = 0; r < m.n; r++)
            *at_row<V>(static_cast<float *>(of[r].y) + first, y.stride, i, n) = v;
    }
    end(m, epoch);
}

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

static void by_packets(const struct launch *l, int n_rows, const struct dmeeting *m, const int32_t *rows, const dmat &x,
                       const dmat &y) {
    launch_node(reduce_packets, dim3((x.width / 2 + THREADS - 1) / THREADS, n_rows), THREADS, 0, l->stream, *m, rows, x,
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

bool all_reduce_takes_unscaled(struct dmat x, int n_rows) { return packets_take(x, n_rows); }

void launch_all_reduce(const struct launch *l, int n_rows, const struct dmeeting *m, const int32_t *rows, struct dmat x,
                       struct dmat y) {
    if (packets_take(x, n_rows))
        by_packets(l, n_rows, m, rows, x, y);
    else
        by_shares(l, n_rows, m, rows, x, y);
}

void launch_all_gather(const struct launch *l, int n_rows, const struct dmeeting *m, const int32_t *rows, struct dmat x,
                       int first, struct dmat y) {
    int64_t n = (int64_t)n_rows * x.width;
    if (in_fours(x, y, first))
        launch_node(gather<float4>, blocks_for(n / 4), SHARE_THREADS, 0, l->stream, *m, rows, x, first, y);
    else
        launch_node(gather<float>, blocks_for(n), SHARE_THREADS, 0, l->stream, *m, rows, x, first, y);
}
