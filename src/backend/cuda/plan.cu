/* plan.cu - the plan of a step, from the host's memory into the place where every kernel looks for it.
 *
 * The host has written what differs, in pinned memory with the device's layout; the kernel reads over the bus only what the
 * step has: its rows, and of each block table the entries that hold tokens. Two round trips of latency, and bytes / 50 GB/s. Tokens
 * that are only expected are those that the step before has sampled, which stand in row_token until this step samples.
 * Thread i holds entry i of every array; a warp holds a sequence. */
#include "backend/cuda/device.cuh"

enum { THREADS = 256, MOST_BLOCKS = 128 };

static __device__ void take_tokens(const dtake &p, int i) {
    int row = p.from[p.from_row + i], token = p.from[p.token_id + i];
    p.to[p.position + i] = p.from[p.position + i];
    p.to[p.token_id + i] = row < 0 ? token : p.at.row_token[row];
}

static __device__ void take_sequence_numbers(const dtake &p, int i) {
    p.to[p.query_start + i] = p.from[p.query_start + i]; // one more than there are sequences
    if (i == p.n_seqs)
        return;
    p.to[p.seq_len + i] = p.from[p.seq_len + i];
    p.to[p.n_known + i] = p.from[p.n_known + i];
    p.to[p.state_slot + i] = p.from[p.state_slot + i];
}

static __device__ void take_row_numbers(const dtake &p, int i) {
    int newest = p.from[p.newest_row + i];
    p.to[p.out_row + i] = p.from[p.out_row + i];
    p.to[p.newest_row + i] = newest < 0 ? -1 : p.at.row_token[newest];
}

static __device__ void take_sequence(const dtake &p, int s, int lane) {
    int start = p.from[p.query_start + s], end = p.from[p.query_start + s + 1], n_slots = p.from[p.seq_len + s];
    int n_blocks = (n_slots + (1 << p.log_block_size) - 1) >> p.log_block_size;
    for (int t = start + lane; t < end; t += 32)
        p.to[p.seq_of_row + t] = s;
    for (int g = 0; g < p.n_groups; g++) {
        int64_t at = p.block_table[g] + (int64_t)s * p.table_width[g];
        for (int i = lane; i < min(n_blocks, p.table_width[g]); i += 32)
            p.to[at + i] = p.from[at + i];
    }
}

static __global__ void take_plan(dtake p) {
    let_next_start();
    wait_for_previous();
    int first = blockIdx.x * THREADS + threadIdx.x, step = gridDim.x * THREADS;
    if (first == 0) {
        p.to[p.counts] = p.n_tokens, p.to[p.counts + 1] = p.n_seqs, p.to[p.counts + 2] = p.n_rows;
        *reinterpret_cast<dplaces *>(p.to + p.places) = p.at;
    }
    for (int i = first; i < p.n_tokens; i += step)
        take_tokens(p, i);
    for (int i = first; i <= p.n_seqs; i += step)
        take_sequence_numbers(p, i);
    for (int i = first; i < p.n_rows; i += step)
        take_row_numbers(p, i);
    for (int i = first; i < p.n_rows * (int)(sizeof(drow) / 4); i += step)
        p.to[p.rows + i] = p.from[p.rows + i];
    for (int s = first / 32; s < p.n_seqs; s += step / 32)
        take_sequence(p, s, first % 32);
    for (int64_t i = first; i < p.n_lists; i += step)
        p.lists[i] = p.lists_from[i];
}

void launch_take_plan(cudaStream_t stream, const struct dtake *p) {
    int64_t most = p->n_tokens;
    most = most > p->n_seqs * 32 ? most : p->n_seqs * 32;
    most = most > p->n_lists / 8 ? most : p->n_lists / 8;
    most = most > p->n_rows * 24 ? most : p->n_rows * 24;
    int blocks = static_cast<int>((most + THREADS) / THREADS);
    launch_node(take_plan, blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS, THREADS, 0, stream, *p);
}
