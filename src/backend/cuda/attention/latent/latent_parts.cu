/* latent_parts.cu - deals the chunks of a step's tasks to the blocks of latent_decode: once a step, one block. All have
 * as many, but for one; a task whose chunks go to several is cut.
 *
 * Tokens of sequences with many in the step have a task without chunks; such sequences are cut into tiles.
 *
 * Thread i places task i (and i + 1024, ...); scans over the block tell where its chunks are in the line, and its sums.
 */
#include "backend/cuda/attention/latent/latent.cuh"
#include "backend/cuda/ptx/card.cuh"
#include "backend/cuda/ptx/device.cuh"

enum { THREADS = 1024 };

/* Inclusive sum over the threads before and this one. */
static __device__ int scan(int x, int *shared) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int step = 1; step < 32; step *= 2) {
        int y = __shfl_up_sync(0xffffffffu, x, step);
        x += lane >= step ? y : 0;
    }
    if (lane == 31)
        shared[warp] = x;
    __syncthreads(); // the sums of all warps are there
    for (int w = 0; w < warp; w++)
        x += shared[w];
    __syncthreads(); // shared may be used again
    return x;
}

static __device__ int tokens_of(const device_plan &plan, int seq) {
    return plan.query_start[seq + 1] - plan.query_start[seq];
}

/* Chunks of a row of the step for latent_decode. */
static __device__ int chunks_of(const device_plan &plan, int row) {
    return tokens_of(plan, plan.seq_of_row[row]) > LATENT_FEW ? 0 : latent_n_chunks(plan.position[row] + 1);
}

static __device__ int chunks_of_step(const device_plan &plan, int n_tokens, int *shared) {
    int n = 0;
    for (int t = threadIdx.x; t < n_tokens; t += THREADS)
        n += chunks_of(plan, t);
    n = __reduce_add_sync(0xffffffffu, n);
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = n;
    __syncthreads(); // the sums of all warps are there
    n = __reduce_add_sync(0xffffffffu, shared[threadIdx.x % 32]);
    __syncthreads(); // shared may be used again
    return n;
}

/* What blocks begin with whose first chunk is one of [low, high), of THREADS tasks from `first` on. */
static __device__ void deal_chunks(const dlatent_parts &p, int total, int first, int n_tokens, const int *starts,
                                   int low, int high) {
    for (int b = threadIdx.x; b < p.n_blocks; b += THREADS) {
        int at = latent_first_chunk(b, p.n_blocks, total), i = 0;
        if (at < low || at >= high)
            continue;
        for (int step = THREADS / 2; step > 0; step /= 2) // the last task that starts there or before
            i += starts[i + step] <= at ? step : 0;
        int group = (first + i) / n_tokens, row = (first + i) % n_tokens;
        p.begin[b].row = row;
        p.begin[b].group = group;
        p.begin[b].chunk = at - starts[i];
        p.begin[b].task = p.task[group * p.max_tokens + row];
    }
}

/* Tiles of sequences with many tokens; of each the last first, as those see most keys. */
static __device__ void deal_tiles(const device_plan &plan, const dlatent_parts &p, int *shared, int *sum) {
    int base = 0, n_seqs = step_seqs(plan);
    for (int first = 0; first < n_seqs; first += THREADS) {
        int s = first + threadIdx.x, tokens = s < n_seqs ? tokens_of(plan, s) : 0;
        int n = tokens > LATENT_FEW ? (tokens + LATENT_TOKENS - 1) / LATENT_TOKENS : 0;
        int end = base + scan(n, shared);
        for (int i = 0; i < n; i++)
            p.tile[end - 1 - i] = {plan.query_start[s] + i * LATENT_TOKENS, s};
        if (threadIdx.x == THREADS - 1)
            *sum = end;
        __syncthreads(); // the sum is there
        base = *sum;
        __syncthreads(); // and read
    }
    if (threadIdx.x == 0)
        *p.n_tiles = base;
}

static __global__ void latent_parts(device_plan plan, dlatent_parts p) {
    let_next_start();
    wait_for_previous();
    __shared__ int shared[32];
    __shared__ int starts[THREADS];
    __shared__ int2 sum;
    int n_tokens = step_tokens(plan), total = p.n_groups * chunks_of_step(plan, n_tokens, shared);
    for (int b = threadIdx.x; b < p.n_blocks; b += THREADS)
        p.begin[b].left = latent_first_chunk(b + 1, p.n_blocks, total) - latent_first_chunk(b, p.n_blocks, total);
    int2 base = {0, 0}; // chunks and sums of the tasks before
    for (int first = 0; first < p.n_groups * n_tokens; first += THREADS) {
        int i = first + threadIdx.x, group = i / n_tokens, row = i % n_tokens;
        bool is = i < p.n_groups * n_tokens;
        int n_keys = is ? plan.position[row] + 1 : 0, n = is ? chunks_of(plan, row) : 0;
        int end = base.x + scan(n, shared), start = end - n;
        int next = n > 0 ? latent_first_block(end, p.n_blocks, total) : 0;
        bool cut = n > 0 && latent_first_block(start + 1, p.n_blocks, total) < next;
        int n_sums = !is ? 0 : cut ? n : 1, sums = base.y + scan(n_sums, shared) - n_sums;
        if (is) {
            int seq = plan.seq_of_row[row];
            dlatent_task task = {seq, n_keys, plan.position[plan.query_start[seq]], sums | (cut ? LATENT_CUT : 0)};
            p.task[group * p.max_tokens + row] = task;
        }
        starts[threadIdx.x] = start;
        if (threadIdx.x == THREADS - 1)
            sum = {end, sums + n_sums};
        __syncthreads(); // the sums are there, the tasks, and where they start
        deal_chunks(p, total, first, n_tokens, starts, base.x, sum.x);
        base = sum;
        __syncthreads(); // and read
    }
    deal_tiles(plan, p, shared, &sum.x);
}

int latent_blocks(void) { return n_multiprocessors(); }

void launch_latent_parts(const launch *l, const dlatent_parts *parts) {
    launch_node(latent_parts, 1, THREADS, 0, l->stream, l->plan, *parts);
}
