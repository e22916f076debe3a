/* sample.cu - greedy choice and log-probabilities: a block a row of logits, read twice (the second time from L2).
 *
 * The largest logit with ties to the lower id; whether all are finite numbers; log(sum(exp)) of the raw row in float32 partial
 * sums of 1,024 threads. */
#include "backend/cuda/device.cuh"

enum { THREADS = 1024 };

struct best {
    float logit;
    int id;
};

static __device__ best better(best a, best b) { return b.logit > a.logit || (b.logit == a.logit && b.id < a.id) ? b : a; }

static __device__ best warp_best(best x) {
    for (int step = 16; step > 0; step /= 2)
        x = better(x, best{__shfl_xor_sync(0xffffffffu, x.logit, step), __shfl_xor_sync(0xffffffffu, x.id, step)});
    return x;
}

static __global__ void greedy(device_plan plan, dmat logits, const int32_t *targets, dsample *out) {
    let_next_start();
    wait_for_previous();
    __shared__ float shared[32];
    __shared__ best bests[32];
    __shared__ int any_bad;
    int r = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32, bad = 0;
    if (r >= step_rows(plan))
        return;
    if (threadIdx.x == 0)
        any_bad = 0;
    __syncthreads(); // before anybody sets it
    best mine = {-INFINITY, 0};
    for (int i = threadIdx.x; i < logits.width; i += THREADS) {
        float x = load(logits, r, i);
        bad |= !(x < INFINITY);
        mine = better(mine, best{x, i});
    }
    if (bad)
        any_bad = 1;
    mine = warp_best(mine);
    if (lane == 0)
        bests[warp] = mine;
    __syncthreads(); // every warp's best, and any_bad
    mine = warp_best(bests[lane]);
    int target = targets[r];
    float sum = 0, above = 0, wanted = target >= 0 ? load(logits, r, target) : INFINITY;
    for (int i = threadIdx.x; i < logits.width; i += THREADS) {
        float x = load(logits, r, i);
        sum += expf(x - mine.logit);
        above += x > wanted;
    }
    sum = block_sum(sum, shared);
    above = block_sum(above, shared); // exact: fewer than 2^24 tokens
    if (threadIdx.x != 0)
        return;
    float log_sum = mine.logit + logf(sum);
    out[r] = dsample{
        mine.id, target, (int)above + 1, any_bad || mine.logit == -INFINITY, mine.logit - log_sum, target >= 0 ? wanted - log_sum : 0.0f};
}

void launch_greedy(const struct launch *l, struct dmat logits, const int32_t *target, struct dsample *out) {
    launch_node(greedy, l->n_rows, THREADS, 0, l->stream, l->plan, logits, target, out);
}
