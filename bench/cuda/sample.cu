/* sample.cu - times SAMPLE (src/backend/cuda/sample/sample.cu) by what is asked of its rows.
 *
 *     bench_sample [ROWS ...]     rows of 152,064 logits, with their largest as lm_head.cu leaves them: of a model that
 *                                 is sure of itself, normal numbers of deviation 2 and above them 400 tokens as 20 -
 *                                 2.2 ln(rank), and of one that knows nothing, normal numbers of deviation 1
 *
 * A figure is of eight nodes in a graph, with other rows each where there are enough. */
#include "backend/cuda/head/lm_head.h"
#include "backend/cuda/sample/sample.cu"
#include "backend/cuda/sample/sample.h"
#include "backend/cuda/value.h"

#include "graph_time.cuh"

enum { V = 152064, MOST_ROWS = 512, NODES = 8, PARTS = 132, N_SEEN = 1000, ABOVE = 400 };
static launch l;
static struct {
    float *logits;
    dbest *bests;
    drow *rows;
    int32_t *counts;
} d;

static __device__ float random_of(uint64_t i, uint32_t *bits) { // uniform, and 32 further bits
    i += 0x9e3779b97f4a7c15u;
    i = (i ^ i >> 30) * 0xbf58476d1ce4e5b9u;
    i = (i ^ i >> 27) * 0x94d049bb133111ebu;
    i ^= i >> 31;
    *bits = (uint32_t)(i >> 32);
    return ((uint32_t)i + 0.5f) / 4294967296.0f;
}

static __global__ void fill_normal(float *at, float deviation) {
    int64_t row = (int64_t)blockIdx.y * V;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < V; i += gridDim.x * blockDim.x) {
        uint32_t bits;
        float u = random_of(row + i, &bits);
        at[row + i] = deviation * sqrtf(-2 * logf(u)) * cospif(bits * 0x1p-31f);
    }
}
static __global__ void raise_some(float *at) {
    uint32_t token;
    random_of((uint64_t)blockIdx.x * ABOVE + threadIdx.x + (1ull << 40), &token);
    at[(int64_t)blockIdx.x * V + token % V] = 20 - 2.2f * logf(1 + threadIdx.x);
}
/* A warp a part. */
static __global__ void find_bests(const float *at, dbest *bests) {
    best mine = {-INFINITY, INT_MAX};
    for (int i = blockIdx.x * 32 + threadIdx.x; i < V; i += PARTS * 32)
        mine = better(mine, best{at[(int64_t)blockIdx.y * V + i], i});
    mine = warp_best(mine);
    if (threadIdx.x == 0)
        bests[blockIdx.y * HEAD_BESTS + blockIdx.x] = dbest{mine.logit, mine.id};
}

struct asked {
    const char *name;
    float temperature, top_p;
    int top_k, n_top;
    bool scored, penalised;
};
static void ask(const asked &a, int n) {
    std::vector<drow> rows(MOST_ROWS);
    int counts[4] = {n, n, n, n};
    for (int r = 0; r < MOST_ROWS; r++) {
        rows[r] = {};
        rows[r].temperature = a.temperature, rows[r].top_p = a.top_p, rows[r].top_k = a.top_k;
        rows[r].least = -INFINITY, rows[r].target = -1, rows[r].n_top = a.n_top, rows[r].is_scored = a.scored;
        rows[r].repetition = a.penalised ? 1.2f : 1, rows[r].is_changed = a.penalised,
        rows[r].n_history = a.penalised ? N_SEEN : 0;
        rows[r].bits = (uint64_t)((r * 0.6180339887) * 0x1p53) & ((1ull << 53) - 1);
    }
    TRY(cudaMemcpy(d.rows, rows.data(), MOST_ROWS * sizeof(drow), cudaMemcpyHostToDevice));
    TRY(cudaMemcpy(d.counts, counts, sizeof counts, cudaMemcpyHostToDevice));
    l.n_rows = n;
}

static double time_sample(int n) {
    auto put = [&] {
        for (int i = 0; i < NODES; i++) {
            int64_t first = i * n % (MOST_ROWS - n + 1);
            launch_sample(&l, dmat{d.logits + first * V, V, V, ELEMENT_F32},
                          dbests{d.bests + first * HEAD_BESTS, PARTS, nullptr}, nullptr);
        }
        return cudaGetLastError() == cudaSuccess;
    };
    put(); // what is found out at the first launch is not captured
    return microseconds(l.stream, put, 7) / NODES;
}

static void open_all() {
    std::vector<int32_t> seen(N_SEEN), none(MOST_ROWS, -1);
    int32_t *lists, *newest;
    dplaces places = {}, *on_device;
    for (int i = 0; i < N_SEEN; i++)
        seen[i] = i * 7919 % V;
    TRY(cudaStreamCreate(&l.stream));
    TRY(cudaMalloc(&d.logits, (size_t)MOST_ROWS * V * sizeof(float)));
    TRY(cudaMalloc(&d.bests, MOST_ROWS * HEAD_BESTS * sizeof(dbest)));
    TRY(cudaMalloc(&d.rows, MOST_ROWS * sizeof(drow)));
    TRY(cudaMalloc(&d.counts, 4 * sizeof(int)));
    TRY(cudaMalloc(&lists, N_SEEN * 4));
    TRY(cudaMalloc(&newest, MOST_ROWS * 4));
    TRY(cudaMalloc(&places.row_token, MOST_ROWS * 4));
    TRY(cudaMalloc(&on_device, sizeof places));
    TRY(cudaMallocHost(&places.sampled, MOST_ROWS * sizeof(dsampled))); // of the host, as in a step
    TRY(cudaMallocHost(&places.top_token, MOST_ROWS * MOST_TOP_LOGPROBS * 4));
    TRY(cudaMallocHost(&places.top_logprob, MOST_ROWS * MOST_TOP_LOGPROBS * 4));
    TRY(cudaMemcpy(lists, seen.data(), N_SEEN * 4, cudaMemcpyHostToDevice));
    TRY(cudaMemcpy(newest, none.data(), MOST_ROWS * 4, cudaMemcpyHostToDevice));
    places.lists = lists;
    TRY(cudaMemcpy(on_device, &places, sizeof places, cudaMemcpyHostToDevice));
    l.plan.counts = d.counts, l.plan.rows = d.rows, l.plan.newest = newest, l.plan.places = on_device;
}

static void table(const char *name, const std::vector<int> &sizes) {
    static const asked kinds[] = {{"greedy, log-probability", 0, 1, 0, 0, true, false},
                                  {"temperature 1", 1, 1, 0, 0, false, false},
                                  {"0.7, top_k 50, top_p 0.9", 0.7f, 0.9f, 50, 0, false, false},
                                  {"1, top_p 0.9", 1, 0.9f, 0, 0, false, false},
                                  {"1, penalties over 1,000", 1, 1, 0, 0, false, true},
                                  {"1, 20 top_logprobs", 1, 1, 0, 20, true, false}};
    find_bests<<<dim3(PARTS, MOST_ROWS), 32, 0, l.stream>>>(d.logits, d.bests);
    TRY(cudaStreamSynchronize(l.stream));
    for (const asked &a : kinds) {
        printf("%-10s %-26s", name, a.name);
        for (int n : sizes) {
            ask(a, n);
            printf("  M=%d %.1f us", n, time_sample(n));
        }
        printf("\n");
        fflush(stdout);
    }
}

int main(int argc, char **argv) {
    std::vector<int> sizes;
    for (int i = 1; i < argc; i++)
        sizes.push_back(std::min(std::max(atoi(argv[i]), 1), (int)MOST_ROWS));
    if (sizes.empty())
        sizes = {1, 8, 32, 128, 256, 512};
    open_all();
    fill_normal<<<dim3(32, MOST_ROWS), 256, 0, l.stream>>>(d.logits, 2);
    raise_some<<<MOST_ROWS, ABOVE, 0, l.stream>>>(d.logits);
    table("sure", sizes);
    fill_normal<<<dim3(32, MOST_ROWS), 256, 0, l.stream>>>(d.logits, 1);
    table("knows not", sizes);
    return 0;
}
