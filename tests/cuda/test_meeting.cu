/* test_meeting.cu - ALL_REDUCE and ALL_GATHER of ranks (src/backend/cuda/ranks/meeting.cu): sums in the order of ranks,
 * bit for bit, of any shapes one right after the other; steps of fewer rows than they were launched for, or of none;
 * and a rank that does not come, which ends the others' waiting. All of it again with boxes in the host's memory, and
 * nothing else where cards do not reach each other's.
 *
 * Ranks are on as many devices as there are, one thread each. */
#include "backend/cuda/ranks/meeting.cu"
#include "backend/cuda/ranks/meeting.h"

#include "products.cuh"

#include <string.h>
#include <thread>
#include <time.h>
#include <vector>

enum { MOST_RANKS = 4, N_CASES = 24 };

struct shape {
    bool gathers, in_place;
    int rows, launched, width, stride, first[MOST_RANKS], widths[MOST_RANKS]; // first, widths: of a gather
};

struct rank {
    int device;
    cudaStream_t stream;
    dmeeting m;
    float *x[N_CASES], *y[N_CASES];
    int32_t *rows; // [N_CASES]
};

static struct {
    int n;
    bool by_host;
    uint64_t seed;
    rank of[MOST_RANKS];
    shape shapes[N_CASES];
} ranks;

static int drawn(int n) { return (int)(hash(ranks.seed++) % (unsigned)n); }

static float x_at(int rank, int i, int64_t at) {
    return (float)(int32_t)hash(ranks.seed * 1315423911u + (uint64_t)((int64_t)(rank * N_CASES + i) << 32 | at)) *
           0x1p-31f;
}

static int64_t floats_of(const shape &s) { return (int64_t)s.launched * s.stride; }

static void draw_shapes() {
    static const int widths[] = {2, 6, 64, 512, 1000, 1025, 2304, 5376};
    for (int i = 0; i < N_CASES; i++) {
        shape &s = ranks.shapes[i];
        s = shape{i % 4 == 3, i % 4 == 2};
        int beyond = i % 12 == 5 ? MEETING_PACKETS : i % 12 == 11 ? MEETING_SLICED : 0;
        s.width = widths[beyond ? 4 + drawn(4) : drawn(8)];
        s.launched = beyond ? beyond / s.width + 1 + drawn(9) : 1 + drawn(9);
        s.rows = i % 5 == 4 ? drawn(s.launched + 1) : s.launched;
        int left = s.width;
        for (int r = 0; s.gathers && r < ranks.n; r++) {
            s.first[r] = s.width - left;
            s.widths[r] = r == ranks.n - 1 ? left : i % 8 == 3 ? left / (ranks.n - r) / 4 * 4 : left / (ranks.n - r);
            left -= s.widths[r];
        }
        s.stride = s.width + (i % 3 == 0 ? 4 : 0);
    }
}

static void clear_box(rank &r) {
    size_t n_bytes = (size_t)meeting_box_bytes(ranks.n);
    if (ranks.by_host)
        memset(r.m.boxes[r.m.rank], 0, n_bytes);
    else
        MUST(cudaMemset(r.m.boxes[r.m.rank], 0, n_bytes));
    MUST(cudaMemset(r.m.counts, 0, MEETING_COUNTS));
    *r.m.missed = 0;
}

static void take_box(rank &r) {
    void **box = &r.m.boxes[r.m.rank];
    size_t n_bytes = (size_t)meeting_box_bytes(ranks.n);
    if (ranks.by_host)
        MUST(cudaMallocHost(box, n_bytes));
    else
        MUST(cudaMalloc(box, n_bytes));
    MUST(cudaMalloc(&r.m.counts, MEETING_COUNTS));
    MUST(cudaMallocHost(&r.m.missed, sizeof(int32_t)));
    clear_box(r);
}

static void open_rank(rank &r, int number, int n_devices) {
    r.device = number % n_devices;
    MUST(cudaSetDevice(r.device));
    for (int k = 0; k < ranks.n && !ranks.by_host; k++)
        if (k % n_devices != r.device) {
            cudaError_t code = cudaDeviceEnablePeerAccess(k % n_devices, 0);
            if (code != cudaErrorPeerAccessAlreadyEnabled)
                MUST(code);
            cudaGetLastError();
        }
    MUST(cudaStreamCreateWithFlags(&r.stream, cudaStreamNonBlocking));
    r.m = dmeeting{.rank = number, .n = ranks.n, .patience_ns = 60000000000ull};
    r.m.one_card = n_devices < ranks.n, r.m.by_host = ranks.by_host;
    take_box(r);
    MUST(cudaMalloc(&r.rows, N_CASES * sizeof(int32_t)));
}

static void fill(rank &r) {
    MUST(cudaSetDevice(r.device));
    for (int i = 0; i < N_CASES; i++) {
        const shape &s = ranks.shapes[i];
        int width = s.gathers ? s.widths[r.m.rank] : s.width, stride = s.gathers ? width : s.stride;
        std::vector<float> x((size_t)floats_of(s), -1.0f);
        for (int t = 0; t < s.launched; t++)
            for (int c = 0; c < width; c++)
                x[(size_t)t * stride + c] = x_at(r.m.rank, i, (int64_t)t * s.width + c);
        MUST(cudaMalloc(&r.x[i], floats_of(s) * 4));
        MUST(cudaMemcpy(r.x[i], x.data(), floats_of(s) * 4, cudaMemcpyHostToDevice));
        if (s.in_place) {
            r.y[i] = r.x[i];
        } else {
            MUST(cudaMalloc(&r.y[i], floats_of(s) * 4));
            MUST(cudaMemset(r.y[i], 0xff, floats_of(s) * 4));
        }
        MUST(cudaMemcpy(r.rows + i, &s.rows, sizeof s.rows, cudaMemcpyHostToDevice));
    }
}

static void release(rank &r) {
    MUST(cudaSetDevice(r.device));
    for (int i = 0; i < N_CASES; i++) {
        MUST(cudaFree(r.x[i]));
        if (!ranks.shapes[i].in_place)
            MUST(cudaFree(r.y[i]));
    }
    MUST((ranks.by_host ? cudaFreeHost : cudaFree)(r.m.boxes[r.m.rank]));
    MUST(cudaFree(r.m.counts));
    MUST(cudaFree(r.rows));
    MUST(cudaFreeHost(r.m.missed));
    MUST(cudaStreamDestroy(r.stream));
}

static void put(const rank &r, int i) {
    const shape &s = ranks.shapes[i];
    struct launch l = {.stream = r.stream};
    dmat y = {r.y[i], s.stride, s.width, ELEMENT_F32}, x = y;
    x.at = r.x[i];
    if (s.gathers) {
        x.stride = x.width = s.widths[r.m.rank];
        launch_all_gather(&l, s.launched, &r.m, r.rows + i, r.rows + i, x, s.first[r.m.rank], y);
    } else {
        launch_all_reduce(&l, s.launched, &r.m, r.rows + i, x, y);
    }
    MUST(cudaGetLastError());
}

static void meet(const rank *r) {
    MUST(cudaSetDevice(r->device));
    for (int i = 0; i < N_CASES; i++)
        put(*r, i);
    MUST(cudaStreamSynchronize(r->stream));
}

static float wanted(int i, int t, int c) {
    const shape &s = ranks.shapes[i];
    if (s.gathers)
        for (int r = ranks.n - 1; r >= 0; r--)
            if (c >= s.first[r])
                return x_at(r, i, (int64_t)t * s.width + c - s.first[r]);
    float sum = 0;
    for (int r = 0; r < ranks.n; r++)
        sum = r == 0 ? x_at(0, i, (int64_t)t * s.width + c) : sum + x_at(r, i, (int64_t)t * s.width + c);
    return sum;
}

static int check(const rank &r) {
    int n_bad = *r.m.missed != 0;
    MUST(cudaSetDevice(r.device));
    for (int i = 0; i < N_CASES; i++) {
        const shape &s = ranks.shapes[i];
        std::vector<float> y((size_t)floats_of(s));
        MUST(cudaMemcpy(y.data(), r.y[i], floats_of(s) * 4, cudaMemcpyDeviceToHost));
        bool fine = true;
        for (int t = 0; t < s.rows && fine; t++)
            for (int c = 0; c < s.width && fine; c++)
                if (y[(size_t)t * s.stride + c] != wanted(i, t, c)) {
                    printf("rank %d of %d, case %d (%s, %d of %d rows of %d): row %d, column %d is %g, not %g\n",
                           r.m.rank, ranks.n, i,
                           s.gathers    ? "gather"
                           : s.in_place ? "in place"
                                        : "sum",
                           s.rows, s.launched, s.width, t, c, y[(size_t)t * s.stride + c], wanted(i, t, c));
                    fine = false;
                }
        n_bad += !fine;
    }
    return n_bad;
}

/* Nothing that was asked of the devices is left. */
static void settle() {
    for (int r = 0; r < ranks.n; r++) {
        MUST(cudaSetDevice(ranks.of[r].device));
        MUST(cudaDeviceSynchronize());
    }
}

static int test_meetings(int n, int n_devices) {
    std::vector<std::thread> threads;
    int n_bad = 0;
    ranks.n = n;
    draw_shapes();
    for (int r = 0; r < n; r++)
        open_rank(ranks.of[r], r, n_devices);
    for (int r = 0; r < n; r++)
        for (int k = 0; k < n; k++)
            ranks.of[r].m.boxes[k] = ranks.of[k].m.boxes[k];
    for (int r = 0; r < n; r++)
        fill(ranks.of[r]);
    settle(); // what is cleared is so before
    for (int r = 0; r < n; r++)
        threads.emplace_back(meet, &ranks.of[r]);
    for (std::thread &t : threads)
        t.join();
    for (int r = 0; r < n; r++)
        n_bad += check(ranks.of[r]);
    return n_bad;
}

/* The largest of a row of all ranks, of equals the first: logits are few different ones, and one is not a number. */
enum { BEST_ROWS = 7, BEST_WIDTH = 1003, PITCH = 160 };

static float logit_at(int t, int i) {
    return t == 3 && i == 500 ? NAN : (float)(hash(ranks.seed + (uint64_t)(t * BEST_WIDTH + i)) % 50);
}

/* This rank's logits, [BEST_ROWS][its columns]. */
static float *put_logits(const rank &r, int first, int width) {
    int n_rows = BEST_ROWS;
    std::vector<float> x((size_t)BEST_ROWS * width);
    float *at;
    MUST(cudaSetDevice(r.device));
    for (int t = 0; t < BEST_ROWS; t++)
        for (int i = 0; i < width; i++)
            x[(size_t)t * width + i] = logit_at(t, first + i);
    MUST(cudaMalloc(&at, x.size() * 4));
    MUST(cudaMemcpy(at, x.data(), x.size() * 4, cudaMemcpyHostToDevice));
    MUST(cudaMemcpy(r.rows, &n_rows, sizeof n_rows, cudaMemcpyHostToDevice));
    return at;
}

static int first_of(int rank) { return BEST_WIDTH * rank / ranks.n; }

static void tell_largest(const rank *r, float *logits, dlargest *bests) {
    int first = first_of(r->m.rank), width = first_of(r->m.rank + 1) - first;
    struct launch l = {.stream = r->stream};
    MUST(cudaSetDevice(r->device));
    launch_gather_largest(&l, BEST_ROWS + 1, &r->m, r->rows, dmat{logits, width, width, ELEMENT_F32}, first, bests,
                          PITCH);
    MUST(cudaGetLastError());
    MUST(cudaStreamSynchronize(r->stream));
}

static int check_largest(const rank &r, const dlargest *bests) {
    int n_bad = 0;
    for (int t = 0; t < BEST_ROWS; t++) {
        int want = 0, is = -1;
        for (int i = 1; i < BEST_WIDTH; i++)
            if (!isnan(logit_at(t, want)) && !(logit_at(t, i) <= logit_at(t, want)))
                want = i;
        for (int k = 0; k < r.m.n * MEETING_BESTS; k++) {
            const dlargest &b = bests[t * PITCH + k];
            bool more = is < 0 || !(b.logit <= logit_at(t, is));
            if (b.id < BEST_WIDTH && (is < 0 || !isnan(logit_at(t, is))) && more)
                is = b.id;
        }
        if (is != want)
            printf("rank %d of %d, row %d: the largest is %d, not %d\n", r.m.rank, r.m.n, t, is, want);
        n_bad += is != want;
    }
    return n_bad;
}

/* Memory is made before any rank waits: the driver may let that wait for what runs on the card, which may be the rank
 * that is waiting for this one. */
static int test_largest() {
    std::vector<std::thread> threads;
    dlargest *bests[MOST_RANKS];
    float *logits[MOST_RANKS];
    int n_bad = 0;
    for (int r = 0; r < ranks.n; r++) {
        MUST(cudaMallocHost(&bests[r], (BEST_ROWS + 1) * PITCH * sizeof(dlargest)));
        logits[r] = put_logits(ranks.of[r], first_of(r), first_of(r + 1) - first_of(r));
    }
    settle();
    for (int r = 0; r < ranks.n; r++)
        threads.emplace_back(tell_largest, &ranks.of[r], logits[r], bests[r]);
    for (std::thread &t : threads)
        t.join();
    for (int r = 0; r < ranks.n; r++) {
        n_bad += check_largest(ranks.of[r], bests[r]);
        n_bad += *ranks.of[r].m.missed != 0;
        MUST(cudaFreeHost(bests[r]));
        MUST(cudaFree(logits[r]));
    }
    return n_bad;
}

/* Of the same ranks, the first alone: it says for whom it has waited, once, and then waits no more. */
static int test_one_alone() {
    rank &r = ranks.of[0];
    int n_bad = 0;
    r.m.patience_ns = 200000000;
    for (int first : {3, 1, 5, 11}) { // a gather, packets, slices, shares
        timespec began, ended;
        MUST(cudaSetDevice(r.device));
        clear_box(r); // as if nothing had been
        MUST(cudaDeviceSynchronize());
        clock_gettime(CLOCK_MONOTONIC, &began);
        for (int i = first; i < first + 12; i++)
            put(r, i);
        MUST(cudaStreamSynchronize(r.stream));
        clock_gettime(CLOCK_MONOTONIC, &ended);
        double s = (double)(ended.tv_sec - began.tv_sec) + (double)(ended.tv_nsec - began.tv_nsec) * 1e-9;
        if (*r.m.missed < 2 || *r.m.missed > ranks.n) {
            printf("rank 0 alone, from case %d: missed %d\n", first, *r.m.missed);
            n_bad++;
        }
        if (ranks.of[0].device != ranks.of[ranks.n - 1].device && s > 60) {
            printf("rank 0 alone, from case %d: waited %.1f s\n", first, s);
            n_bad++;
        }
    }
    return n_bad;
}

static int test_all(int n_devices) {
    int n_bad = 0;
    for (int n = 2; n <= MOST_RANKS; n++) {
        n_bad += test_meetings(n, n_devices);
        n_bad += test_largest();
        if (n == MOST_RANKS)
            n_bad += test_one_alone();
        for (int r = 0; r < n; r++)
            release(ranks.of[r]);
    }
    return n_bad;
}

static bool reach_each_other(int n_devices) {
    int can = 1;
    if (n_devices > 1)
        MUST(cudaDeviceCanAccessPeer(&can, 0, 1));
    return can;
}

int main(int argc, char **argv) {
    const char *given = argc > 1 ? argv[1] : getenv("GYRE_TEST_SEED");
    int n_devices = 0, n_bad = 0;
    setenv("CUDA_MODULE_LOADING", "EAGER", 0); // device/open.c says why
    ranks.seed = given ? strtoull(given, nullptr, 10) : (uint64_t)time(nullptr);
    setlinebuf(stdout);
    printf("seed %llu\n", (unsigned long long)ranks.seed);
    MUST(cudaGetDeviceCount(&n_devices));
    if (reach_each_other(n_devices))
        n_bad += test_all(n_devices);
    ranks.by_host = true;
    n_bad += test_all(n_devices);
    printf(n_bad ? "%d CASES FAILED\n" : "all fine\n", n_bad);
    return n_bad != 0;
}
