/* meeting.cu - what sums over ranks cost between GPUs (src/backend/cuda/ranks/meeting.cu), by rows and width: by
 * packets, by shares, and as a step has them, with the ADD_NORM behind or in its node; and logits gathered.
 *
 *     build/cuda/bench_meeting [RANKS]      2 unless said; wants as many GPUs that reach each other's memory
 *
 * A time is that of a graph of 60 nodes (pairs of nodes), each behind the one before, that all ranks replay at the same
 * time, divided by 60: the median of 15 replays of rank 0. */
#include "backend/cuda/ranks/meeting.cu"
#include "backend/cuda/rows/norm.h"
#include "graph_time.cuh"

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

enum { NODES = 60, REPLAYS = 15, MOST_RANKS = MEETING_RANKS, MOST_FLOATS = 32 << 20 };

struct rank {
    cudaStream_t stream;
    dmeeting m;
    float *x, *y, *r, *weight;
    __half *normed;
    int32_t *rows;
    double us;
};
static rank all_ranks[MOST_RANKS];
static int n_ranks = 2;

static void open_rank(int i) {
    rank &r = all_ranks[i];
    TRY(cudaSetDevice(i));
    for (int k = 0; k < n_ranks; k++)
        if (k != i)
            TRY(cudaDeviceEnablePeerAccess(k, 0));
    TRY(cudaStreamCreateWithFlags(&r.stream, cudaStreamNonBlocking));
    r.m = dmeeting{.rank = i, .n = n_ranks, .patience_ns = 5000000000ull};
    TRY(cudaMalloc(&r.m.boxes[i], meeting_box_bytes(n_ranks)));
    TRY(cudaMemset(r.m.boxes[i], 0, meeting_box_bytes(n_ranks)));
    TRY(cudaMalloc(&r.m.counts, MEETING_COUNTS));
    TRY(cudaMemset(r.m.counts, 0, MEETING_COUNTS));
    TRY(cudaMallocHost(&r.m.missed, sizeof(int32_t)));
    *r.m.missed = 0;
    for (float **at : {&r.x, &r.y, &r.r}) {
        TRY(cudaMalloc(at, MOST_FLOATS * sizeof(float)));
        TRY(cudaMemset(*at, 0, MOST_FLOATS * sizeof(float)));
    }
    TRY(cudaMalloc(&r.normed, MOST_FLOATS * sizeof(__half)));
    TRY(cudaMalloc(&r.weight, 65536 * sizeof(float)));
    TRY(cudaMemset(r.weight, 0, 65536 * sizeof(float)));
    TRY(cudaMalloc(&r.rows, sizeof *r.rows));
}

typedef void put_fn(const rank &r, const struct launch *l, int n_rows, int width);

static dmat floats(float *at, int width) { return dmat{at, width, width, ELEMENT_F32}; }

static void put_packets(const rank &r, const struct launch *l, int n_rows, int width) {
    by_packets(l, n_rows, &r.m, r.rows, floats(r.x, width), floats(r.y, width));
}
static void put_slices(const rank &r, const struct launch *l, int n_rows, int width) {
    by_slices(l, n_rows, &r.m, r.rows, floats(r.x, width), floats(r.y, width));
}
static void put_shares(const rank &r, const struct launch *l, int n_rows, int width) {
    by_shares(l, n_rows, &r.m, r.rows, floats(r.x, width), floats(r.y, width));
}
static void put_normed(const rank &r, const struct launch *l, int n_rows, int width) {
    dadd_norm a = {.w = {r.weight, width, 1, ELEMENT_F32, nullptr}, .eps = 1e-6f};
    launch_all_reduce(l, n_rows, &r.m, r.rows, floats(r.x, width), floats(r.y, width));
    launch_add_norm(l, &a, floats(r.r, width), floats(r.y, width), floats(r.r, width),
                    dmat{r.normed, width, width, ELEMENT_F16}, dmat{});
}
static void put_fused(const rank &r, const struct launch *l, int n_rows, int width) {
    dadd_norm a = {.w = {r.weight, width, 1, ELEMENT_F32, nullptr}, .eps = 1e-6f, .meeting = &r.m, .rows = r.rows};
    launch_add_norm(l, &a, floats(r.r, width), floats(r.y, width), floats(r.r, width),
                    dmat{r.normed, width, width, ELEMENT_F16}, dmat{});
}
static void put_norm(const rank &r, const struct launch *l, int n_rows, int width) {
    dadd_norm a = {.w = {r.weight, width, 1, ELEMENT_F32, nullptr}, .eps = 1e-6f};
    launch_add_norm(l, &a, floats(r.r, width), floats(r.y, width), floats(r.r, width),
                    dmat{r.normed, width, width, ELEMENT_F16}, dmat{});
}
static void put_gather(const rank &r, const struct launch *l, int n_rows, int width) {
    int part = width / r.m.n;
    launch_all_gather(l, n_rows, &r.m, r.rows, r.rows, floats(r.x, part), r.m.rank * part, floats(r.y, width));
}

static void time_rank(int i, put_fn *put, int n_rows, int width) {
    rank &r = all_ranks[i];
    TRY(cudaSetDevice(i));
    struct launch l = {.stream = r.stream, .n_tokens = n_rows};
    TRY(cudaMemcpy(r.rows, &n_rows, sizeof n_rows, cudaMemcpyHostToDevice));
    std::vector<double> us = replay_times(
        r.stream,
        [&] {
            for (int k = 0; k < NODES; k++)
                put(r, &l, n_rows, width);
            return cudaGetLastError() == cudaSuccess;
        },
        REPLAYS, 3);
    r.us = us.empty() ? -1 : us[us.size() / 2] / NODES;
}

/* Of rank 0; all ranks do it. */
static double timed(put_fn *put, int n_rows, int width) {
    std::vector<std::thread> threads;
    for (int i = 0; i < n_ranks; i++)
        threads.emplace_back(time_rank, i, put, n_rows, width);
    for (std::thread &t : threads)
        t.join();
    for (int i = 0; i < n_ranks; i++)
        if (*all_ranks[i].m.missed) {
            printf("rank %d waited for rank %d\n", i, *all_ranks[i].m.missed - 1);
            exit(1);
        }
    return all_ranks[0].us;
}

static void tell_row(int n_rows, int width) {
    int64_t n = (int64_t)n_rows * width;
    printf("%6d x %5d  %9.1f KB", n_rows, width, (double)n * 4 / 1024);
    if (2 * n <= MEETING_SLICED)
        printf("  packets %7.2f us", timed(put_packets, n_rows, width));
    if (n * (n_ranks - 1) <= MEETING_SLICED)
        printf("  slices %7.2f us", timed(put_slices, n_rows, width));
    double shares = timed(put_shares, n_rows, width);
    printf("  shares %8.2f us, %5.0f GB/s  then ADD_NORM %8.2f us (alone %6.2f)", shares, (double)n * 4e-3 / shares,
           timed(put_normed, n_rows, width), timed(put_norm, n_rows, width));
    if (n_rows <= ADD_NORM_FEW && 2 * n <= MEETING_SLICED)
        printf("  in its node %7.2f us", timed(put_fused, n_rows, width));
    putchar('\n');
}

int main(int argc, char **argv) {
    int n_devices = 0;
    n_ranks = argc > 1 ? atoi(argv[1]) : 2;
    TRY(cudaGetDeviceCount(&n_devices));
    if (n_ranks < 2 || n_ranks > MOST_RANKS || n_devices < n_ranks) {
        printf("%d GPUs are here, %d ranks asked for\n", n_devices, n_ranks);
        return 1;
    }
    setlinebuf(stdout);
    for (int i = 0; i < n_ranks; i++)
        open_rank(i);
    for (int i = 0; i < n_ranks; i++)
        for (int k = 0; k < n_ranks; k++)
            all_ranks[i].m.boxes[k] = all_ranks[k].m.boxes[k];
    printf("%d ranks, sums in float32\n", n_ranks);
    for (int width : {2048, 4096, 5376, 8192})
        for (int n_rows : {1, 2, 4, 8, 16, 32, 64, 128, 512, 2048})
            if ((int64_t)n_rows * width <= MOST_FLOATS)
                tell_row(n_rows, width);
    for (int n_rows : {1, 8, 32, 128})
        printf("%6d rows of 128,256 logits gathered: %8.2f us\n", n_rows, timed(put_gather, n_rows, 128256));
    return 0;
}
