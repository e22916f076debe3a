/* attention_parts.cu - cuts the sequences of a step into parts for the attention kernels: once a step, one block a kind
 * of layer.
 *
 * A part is a run of keys (whole tiles of 64) that some columns, query heads of tokens, look at. To join parts costs as
 * much as some ten tiles, so a sequence is cut where the device would else have too little to do at once, or one block
 * would work longer than all others: a part has the step's tiles divided by the parts that run at once, LEAST at least,
 * and a sequence of half as many more stays whole, as do all of up to WHOLE tiles for each of the blocks that share it.
 * (Parts of 4 tiles wherever a sequence has more than 5, whatever else the step holds, cost 59 us where 128 sequences
 * of 528 tokens are to be read in 16.) Where warps take pairs the number of parts is rounded down: a few more than
 * there are warps would begin when all others end.
 *
 * A list is of sequences with few tokens in this step, or with many: least_tokens to most_tokens. The groups of columns
 * of a sequence stand last first, as the last see most keys and had better not be begun at the end.
 *
 * Thread s plans sequence s (and s + 1024, ...); a scan over the block gives each its place in the list. */
#include "backend/cuda/attention/attention_parts.h"
#include "backend/cuda/attention/decode/attention_decode.h"
#include "backend/cuda/ptx/card.cuh"
#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/value.h"

enum { THREADS = 1024, TILE = 64, WHOLE = 14, LEAST = 8 };

enum { AT_ONCE = 16 };
struct lists {
    dparts list[AT_ONCE];
    int at_once[AT_ONCE];  // of a list: parts that run at once
    int share[AT_ONCE];    // blocks that share a pair of a part and a KV head
    bool no_more[AT_ONCE]; // parts than run at once, as far as cuts decide it
};

/* How the columns and keys of a sequence are cut: n_groups groups of columns, each into n_parts. */
struct cut {
    int columns, n_groups, n_parts;
};

/* tiles: of a part. */
static __device__ int n_parts_of(int n_tiles, int tiles, int most, int whole, bool no_more) {
    if (n_tiles <= max(whole, tiles + tiles / 2))
        return 1;
    return max(1, min(most, (n_tiles + (no_more ? 0 : tiles - 1)) / tiles));
}

/* The first key that a token sees. */
static __device__ int first_key(const dparts &p, int position) {
    int first = p.window > 0 && position >= p.window ? position - p.window + 1 : 0;
    return p.chunk > 0 ? max(first, position / p.chunk * p.chunk) : first;
}

/* Tiles of keys that these tokens see. */
static __device__ int tiles_of(const dparts &p, int n_tokens, int position) {
    return (position + n_tokens - 1) / TILE - first_key(p, position) / TILE + 1;
}

static __device__ cut cut_sequence(const dparts &p, int n_tokens, int position, int tiles, int whole, bool no_more) {
    int columns = n_tokens * p.per_kv, n_groups = (columns + p.columns - 1) / p.columns;
    return {columns, n_groups,
            n_parts_of(tiles_of(p, n_tokens, position), tiles, p.max_split / n_groups, whole, no_more)};
}

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

/* at: in the list; sums: where what is to be joined is left. */
static __device__ void write_parts(const dparts &p, const cut &c, int seq, int row, int position, int at, int sums) {
    for (int g = 0; g < c.n_groups; g++) {
        int first_column = g * p.columns, last_column = min(first_column + p.columns, c.columns) - 1;
        int low = first_key(p, position + first_column / p.per_kv) / TILE,
            high = (position + last_column / p.per_kv) / TILE + 1;
        int end = position + last_column / p.per_kv + 1;
        int base = at + (c.n_groups - 1 - g) * c.n_parts, first_sum = sums + g * c.n_parts;
        for (int i = 0; i < c.n_parts; i++) {
            int from = low + (int)((int64_t)(high - low) * i / c.n_parts),
                to = low + (int)((int64_t)(high - low) * (i + 1) / c.n_parts);
            p.part[base + i] = {seq, row,       position, c.columns, first_column, from * TILE, min(to * TILE, end),
                                i,   c.n_parts, first_sum};
        }
    }
}

/* How many tiles a part of this step has: of all groups of columns of all sequences. */
static __device__ int tiles_of_part(const device_plan &plan, const dparts &p, int at_once, int *shared) {
    int n_seqs = step_seqs(plan), total = 0;
    for (int s = threadIdx.x; s < n_seqs; s += THREADS) {
        int row = plan.query_start[s], n_tokens = plan.query_start[s + 1] - row;
        if (n_tokens >= p.least_tokens && n_tokens <= p.most_tokens)
            total += tiles_of(p, n_tokens, plan.position[row] - p.behind) *
                     ((n_tokens * p.per_kv + p.columns - 1) / p.columns);
    }
    total = __reduce_add_sync(0xffffffffu, total);
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = total;
    __syncthreads(); // the sums of all warps are there
    total = __reduce_add_sync(0xffffffffu, shared[threadIdx.x % 32]);
    __syncthreads(); // shared may be used again
    return max(LEAST, (total + at_once - 1) / at_once);
}

static __global__ void attention_parts(device_plan plan, const __grid_constant__ lists all) {
    let_next_start();
    wait_for_previous();
    const dparts &p = all.list[blockIdx.x];
    __shared__ int shared[32];
    __shared__ int total, total_sums;
    int n_seqs = step_seqs(plan), base = 0, base_sums = 0;
    int tiles = p.max_split > 1 ? tiles_of_part(plan, p, all.at_once[blockIdx.x], shared) : 1;
    for (int first = 0; first < n_seqs; first += THREADS) {
        int s = first + threadIdx.x;
        cut c = {};
        int row = 0, position = 0;
        int n_tokens = s < n_seqs ? plan.query_start[s + 1] - plan.query_start[s] : 0;
        if (n_tokens >= p.least_tokens && n_tokens <= p.most_tokens) {
            row = plan.query_start[s];
            position = plan.position[row] - p.behind;
            c = cut_sequence(p, n_tokens, position, tiles, WHOLE * all.share[blockIdx.x], all.no_more[blockIdx.x]);
        }
        int n = c.n_groups * c.n_parts, end = base + scan(n, shared), n_sums = c.n_parts > 1 ? n : 0;
        int end_sums = base_sums + scan(n_sums, shared);
        if (n > 0 && end <= p.max_parts)
            write_parts(p, c, s, row, position, end - n, end_sums - n_sums);
        if (threadIdx.x == THREADS - 1) {
            total = end;
            total_sums = end_sums;
        }
        __syncthreads(); // the totals are there
        base = total;
        base_sums = total_sums;
        __syncthreads(); // and read
    }
    if (threadIdx.x == 0)
        *p.n = min(base, p.max_parts);
}

/* Of attention: two a multiprocessor where their rings fit, beside what blocks of a cluster leave to the first. */
static int attention_blocks(int head_dim, int share) {
    return n_multiprocessors() * (head_dim > 256 || (head_dim == 256 && share > 1) ? 1 : 2);
}

int attention_clusters(int head_dim, int share) {
    int blocks = attention_blocks(head_dim, share);
    return (share == 4 ? blocks - blocks / 8 : blocks) /
           share; // clusters of four do not find a place on all multiprocessors
}

int attention_share(element cache, int head_dim, int n_seqs, int n_kv_heads) {
    int64_t pairs = (int64_t)n_seqs * n_kv_heads;
    if (cache != ELEMENT_E4M3)
        return 1;
    return pairs <= attention_clusters(head_dim, 4) ? 4 : pairs <= attention_clusters(head_dim, 2) ? 2 : 1;
}

int attention_teams(int n_warps) { return 8 / n_warps * n_multiprocessors(); }

int attention_team(int n_seqs, int n_kv_heads) {
    int64_t pairs = (int64_t)n_seqs * n_kv_heads;
    if (pairs > attention_teams(2))
        return 1;
    return pairs > attention_teams(2) / 2 ? 2 : 0;
}

bool attention_takes_warps(const launch *l, element cache, int head_dim, int per_kv, int n_kv_heads) {
    bool one_each = l->n_tokens <= l->n_seqs, shape = head_dim == 128 && per_kv <= 8 && l->block_size >= 32;
    return cache == ELEMENT_E4M3 && shape && one_each && attention_team(l->n_seqs, n_kv_heads) > 0;
}

void launch_attention_parts(const launch *l, const dparts *parts, int n, int stride) {
    for (int first = 0; first < n; first += AT_ONCE) {
        lists some;
        int k = 0;
        for (; k < AT_ONCE && first + k < n; k++) {
            some.list[k] = parts[(first + k) * stride];
            const dparts &p = some.list[k];
            int share = attention_share(p.cache, p.head_dim, l->n_seqs, p.n_kv_heads);
            bool warps = attention_takes_warps(l, p.cache, p.head_dim, p.per_kv, p.n_kv_heads);
            int at_once = warps ? attention_teams(attention_team(l->n_seqs, p.n_kv_heads))
                                : attention_clusters(p.head_dim, share);
            some.share[k] = share;
            some.no_more[k] = warps;
            some.at_once[k] = max(1, at_once / p.n_kv_heads);
        }
        launch_node(attention_parts, k, THREADS, 0, l->stream, l->plan, some);
    }
}
