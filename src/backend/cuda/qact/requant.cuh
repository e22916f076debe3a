/* requant.cuh - rows that a product finds in e4m3 by a scale that does not fit them (struct drest), and makes anew
 * before it reads them.
 *
 * Every block looks at the largest sizes of its tokens, as its tile cannot be multiplied before. In most steps that is
 * all, and takes a third of what a node that looks does. Else the blocks with the same tokens share the pieces of the
 * rows that are left, and wait for one another. */
#pragma once

#include "backend/cuda/ptx/mma.cuh"
#include "backend/cuda/qact/quantise.h"
#include "backend/cuda/qact/static_rows.cuh"
#include "backend/cuda/value.h"

namespace {

struct requant_args {
    dmat value;               // with most; at NULL: nothing is left to be done
    dmat qact;                // of it, with static_scale
    dgrid_barrier *of_tokens; // [token tiles]
    dcounter others;
};

enum { REQUANT_HELD = 2 };

/* Blocks with the same tokens: where they meet, which of them this is, and how many they are. */
struct requant_blocks {
    dgrid_barrier *meeting;
    int mine, n;
};

/* Bits of the tokens [first, end), 32 in a word, whose rows are left: known to all lanes. */
struct requant_list {
    uint32_t bits[REQUANT_TOKENS / 32];
    __device__ bool any() const { return (bits[0] | bits[1] | bits[2] | bits[3]) != 0; }
};

/* By one warp. Of the tokens [first, first + REST_TOKENS). */
static __device__ void counter_list(const dcounter &others, const requant_list &list, int first, int lane) {
    int token = first + lane, n_rows = *others.n_rows, n = 0;
#pragma unroll
    for (int i = 0; i < REQUANT_TOKENS / 32; i++)
        n += __popc(list.bits[i] & __ballot_sync(0xffffffffu, token + i * 32 < n_rows));
    add_to_counter(others, n, lane == 0);
}

/* A warp's. Scales are written, and rows that are left counted, by one warp of all for whom `tells` holds. */
static __device__ requant_list look_at_rows(const requant_args &r, int first, int end, int lane, bool tells) {
    requant_list list;
    float most[REQUANT_TOKENS / 32];
#pragma unroll
    for (int i = 0; i < REQUANT_TOKENS / 32; i++) {
        int token = first + i * 32 + lane;
        most[i] = token < end ? __uint_as_float(__ldcg(r.value.absmax + token)) : 0;
    }
#pragma unroll
    for (int i = 0; i < REQUANT_TOKENS / 32; i++) {
        int token = first + i * 32 + lane;
        bool there = static_scale_fits(most[i], r.qact.static_scale);
        list.bits[i] = __ballot_sync(0xffffffffu, !there);
        if (tells && token < end)
            r.qact.scale[token] = there ? r.qact.static_scale : static_scale_else(most[i]);
    }
    if (tells && r.others.at && list.any())
        counter_list(r.others, list, first, lane);
    return list;
}

/* The rows of the list in order, into shared memory, by one warp. Returns how many. */
static __device__ int list_rows(const requant_list &list, int lane, uint32_t to) {
    int n = 0;
#pragma unroll
    for (int i = 0; i < REQUANT_TOKENS / 32; i++) {
        uint32_t bits = list.bits[i];
        if (bits >> lane & 1)
            store_shared(to + (n + __popc(bits & ((1u << lane) - 1))) * 4, i * 32 + lane);
        n += __popc(bits);
    }
    return n;
}

/* This block's share of the rows listed, by n_threads of it. */
template <element E>
static __device__ void make_rows(const requant_args &r, int first, uint32_t listed, int n_listed, int n_threads,
                                 const requant_blocks &blocks) {
    make_static_rows<E, REQUANT_HELD>(r.value, r.qact, n_listed, blocks.mine * n_threads + threadIdx.x,
                                      blocks.n * n_threads,
                                      [&](int k) { return first + (int)load_shared(listed + k * 4); });
}

/* One thread's, behind all that its block has written: returns when all blocks with these tokens have come. The last
 * makes room for the next. */
static __device__ void meet_blocks(dgrid_barrier *m, int n) {
    uint32_t held = *static_cast<volatile uint32_t *>(&m->n_held);
    __threadfence();
    if (atomicAdd(&m->n_come, 1) == (uint32_t)n - 1) {
        m->n_come = 0;
        __threadfence();
        atomicAdd(&m->n_held, 1);
    } else {
        while (*static_cast<volatile uint32_t *>(&m->n_held) == held) {
        }
    }
    __threadfence();
}

/* What a row is to be multiplied by, while another block may be writing that. */
static __device__ float scale_of_row(const requant_args &r, int token) {
    float most = __uint_as_float(__ldcg(r.value.absmax + token));
    return static_scale_fits(most, r.qact.static_scale) ? r.qact.static_scale : static_scale_else(most);
}

/* By all n_threads of the block that multiply, while a warp behind them waits to copy (copies_may_begin). listed:
 * shared memory of the warp, a word a token of the tile. */
static __device__ void requant_rows(const requant_args &r, const requant_list &list, int first, uint32_t listed,
                                    int n_threads, const requant_blocks &blocks) {
    int n_listed = list_rows(list, threadIdx.x % 32, listed);
    __syncwarp();
    if (r.value.element == ELEMENT_F16)
        make_rows<ELEMENT_F16>(r, first, listed, n_listed, n_threads, blocks);
    else
        make_rows<ELEMENT_BF16>(r, first, listed, n_listed, n_threads, blocks);
    fence_bulk_all();
    __threadfence();
    threads_sync(1, n_threads); // this block's share is written
    if (threadIdx.x == 0)
        meet_blocks(blocks.meeting, blocks.n);
    __syncwarp();                      // its first thread has come back
    threads_arrive(2, n_threads + 32); // so are the others
}
static __device__ void copies_may_begin(int n_threads) {
    threads_sync(2, n_threads + 32);
    fence_bulk_all();
}

} // namespace
