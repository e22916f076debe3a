/* plan.cu - the plan of a step, from the host's memory into the place where every kernel looks for it.
 *
 * The host has written what differs, in pinned memory with the device's layout; the kernel reads over the bus only what
 * the step has: its rows, and of each block table the entries that hold tokens. Tokens that are only expected are those
 * that the step before has sampled, which stand in row_token until this step samples.
 *
 * A load from the host's memory takes more than a microsecond, so nothing waits for one but what needs it: each array
 * has blocks of its own, a thread one entry, loaded before the wait for what the device wrote. A warp holds a
 * sequence's tables, of which it loads 32 entries before it knows how many there are: one round trip, two beyond 32
 * blocks. */
#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/step/take_plan.h"
#include "backend/cuda/value.h"

enum { THREADS = 256, LIST_BLOCKS = 128, AT_ONCE = 32 };

/* What the blocks of a row of the grid take. */
enum role { TOKENS, SEQUENCES, ROWS, SAMPLING, TABLES, LISTS };

static __device__ void take_tokens(const dtake &p, int i) {
    bool mine = i < p.n_tokens;
    int row = mine ? p.from[p.from_row + i] : -1, token = mine ? p.from[p.token_id + i] : 0,
        position = mine ? p.from[p.position + i] : 0, state = mine && p.state_row > 0 ? p.from[p.state_row + i] : -1;
    wait_for_previous();
    if (p.state_row > 0 && i == 0)
        p.to[p.state_source] = p.source;
    if (!mine)
        return;
    if (p.state_row > 0)
        p.to[p.state_row + i] = state;
    p.to[p.position + i] = position;
    if (row >= 0) {
        token = p.at.row_token[row];
        token = p.token_of ? p.token_of[token] : token;
    }
    p.to[p.token_id + i] = token;
}

static __device__ void take_sequence_numbers(const dtake &p, int i) {
    bool mine = i < p.n_seqs;
    int start = i <= p.n_seqs ? p.from[p.query_start + i] : 0; // one more than there are sequences
    int length = mine ? p.from[p.seq_len + i] : 0, known = mine ? p.from[p.n_known + i] : 0,
        slot = mine ? p.from[p.state_slot + i] : 0;
    int base = mine && p.state_base > 0 ? p.from[p.state_base + i] : 0,
        kept = mine && p.state_base > 0 ? p.from[p.state_kept + i] : 0;
    wait_for_previous();
    if (i == 0) {
        p.to[p.counts] = p.n_tokens, p.to[p.counts + 1] = p.n_seqs, p.to[p.counts + 2] = p.n_rows,
        p.to[p.counts + 3] = p.n_not_plain, p.to[p.counts + 4] = p.n_not_best;
        *reinterpret_cast<dplaces *>(p.to + p.places) = p.at;
    }
    if (i <= p.n_seqs)
        p.to[p.query_start + i] = start;
    if (!mine)
        return;
    p.to[p.seq_len + i] = length;
    p.to[p.n_known + i] = known;
    p.to[p.state_slot + i] = slot;
    if (p.state_base > 0)
        p.to[p.state_base + i] = base, p.to[p.state_kept + i] = kept;
}

static __device__ void take_row_numbers(const dtake &p, int i) {
    bool mine = i < p.n_rows;
    int newest = mine ? p.from[p.newest_row + i] : -1, row = mine ? p.from[p.out_row + i] : 0;
    wait_for_previous();
    if (!mine)
        return;
    p.to[p.out_row + i] = row;
    p.to[p.newest_row + i] = newest < 0 ? -1 : p.at.row_token[newest];
}

static __device__ int sampling_words(const dtake &p) { return p.n_rows * (int)(sizeof(drow) / 4); }

static __device__ void take_sampling(const dtake &p, int i) {
    bool mine = i < sampling_words(p);
    int word = mine ? p.from[p.rows + i] : 0;
    wait_for_previous();
    if (mine)
        p.to[p.rows + i] = word;
}

static __device__ void take_tables(const dtake &p, int s, int lane) {
    bool mine = s < p.n_seqs;
    int start = mine ? p.from[p.query_start + s] : 0, end = mine ? p.from[p.query_start + s + 1] : 0;
    int n_slots = mine ? p.from[p.seq_len + s] : 0, first[CUDA_MAX_GROUPS];
#pragma unroll
    for (int g = 0; g < CUDA_MAX_GROUPS; g++)
        if (mine && g < p.n_groups && lane < p.table_width[g])
            first[g] = p.from[p.block_table[g] + (int64_t)s * p.table_width[g] + lane];
    wait_for_previous();
    int n_blocks = (n_slots + (1 << p.log_block_size) - 1) >> p.log_block_size;
    for (int t = start + lane; t < end; t += 32)
        p.to[p.seq_of_row + t] = s;
#pragma unroll
    for (int g = 0; g < CUDA_MAX_GROUPS; g++) {
        int n = g < p.n_groups ? min(n_blocks, p.table_width[g]) : 0;
        int64_t at = p.block_table[g] + (int64_t)s * p.table_width[g];
        if (lane < n)
            p.to[at + lane] = first[g];
        for (int i = AT_ONCE + lane; i < n; i += 32)
            p.to[at + i] = p.from[at + i];
    }
}

static __device__ void take_lists(const dtake &p, int64_t i) {
    wait_for_previous();
    for (; i < p.n_lists; i += (int64_t)gridDim.x * THREADS)
        p.lists[i] = p.lists_from[i];
}

static __global__ void __launch_bounds__(THREADS) take_plan(dtake p) {
    let_next_start();
    int i = blockIdx.x * THREADS + threadIdx.x;
    switch (blockIdx.y) {
    case TOKENS: take_tokens(p, i); break;
    case SEQUENCES: take_sequence_numbers(p, i); break;
    case ROWS: take_row_numbers(p, i); break;
    case SAMPLING: take_sampling(p, i); break;
    case TABLES: take_tables(p, i / 32, i % 32); break;
    case LISTS: take_lists(p, i); break;
    }
}

static int blocks_of(int64_t n) { return (int)((n + THREADS - 1) / THREADS); }

void launch_take_plan(cudaStream_t stream, const struct dtake *p) {
    int most = blocks_of(p->n_tokens), lists = blocks_of(p->n_lists);
    for (int n : {blocks_of(p->n_seqs + 1), blocks_of((int64_t)p->n_seqs * 32),
                  blocks_of(p->n_rows * (int64_t)(sizeof(drow) / 4)), lists < LIST_BLOCKS ? lists : LIST_BLOCKS})
        most = n > most ? n : most;
    launch_node(take_plan, dim3(most, p->n_lists > 0 ? LISTS + 1 : LISTS), THREADS, 0, stream, *p);
}
