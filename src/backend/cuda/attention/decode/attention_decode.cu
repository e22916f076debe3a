/* attention_decode.cu - ATTENTION for few query tokens a sequence: bound by reading the cache once. Of 16 bits or int8;
 * of e4m3 see attention_decode_bytes.cu.
 *
 *     S^T [keys, columns] = K q^T,  P = 2^(S - m),  O^T [channels, columns] = V^T P^T
 *
 * A column is a query head of a token; the columns of a KV head share its keys, so a key is read once for all of them
 * (attention_parts.cu makes the list of what to read for whom). Keys are the 16 rows of mma.m16n8k16 and columns its 8,
 * so 7 query heads to a KV head fill the tensor core. The result of the first product, turned by movmatrix, is the
 * second's right operand.
 *
 * A block of threads takes every gridDim-th pair (part, KV head), so the grid is as large as the device whatever the
 * step holds. One of its warps brings tiles of 64 keys, then of their 64 values, into a ring of stages by bulk copies,
 * and runs ahead into the next pair; another brings what is to be known of the next pair, and its queries; KEY_WARPS *
 * CHANNEL_WARPS compute. Warp k takes keys 16k .. 16k+15 of each tile with a softmax of its own, so the computing warps
 * never wait for each other before a pair's end; where a value row is too wide for the registers of one warp,
 * CHANNEL_WARPS of them make the same scores and take their share of the channels. At the end the KEY_WARPS sums are
 * joined in shared memory and, where the sequence was cut, those of its parts by the block that comes last, in the
 * order of the parts.
 *
 * QKV_PREP done on the way, by the two warps that do not compute, was tried: one node less, and 9.1 us for 7.7 at 1 x
 * 272 of Qwen2.5-7B, 90 for 85 at 512 x 272, as one warp makes the queries of a pair one after the other. Over e4m3 the
 * computing warps make them (decode_prep.cuh).
 *
 * The largest score m is kept per column and raised only when a score passes it by 8 (P <= 256 fits float16 as well as
 * 1 does), which spares the reductions of nearly all tiles. Scores count in powers of two. Values of 8 bits have a
 * scale a row: it goes into P relative to the largest scale yet, so that P keeps float16's precision.
 *
 * Of shared keys (kv.cuh) a stage has a tile's values and what its keys have beside them: scores read of the values
 * what they share.
 *
 * Reads of the cache: each byte once a KV head, group of columns and step. Target: 85 % of the read rate, or 5 us. */
#include "backend/cuda/attention/attention.h"
#include "backend/cuda/attention/attention_parts.h"
#include "backend/cuda/attention/decode/attention_decode.h"
#include "backend/cuda/attention/decode/decode_feed.cuh"
#include "backend/cuda/attention/decode/decode_join.cuh"
#include "backend/cuda/value.h"

namespace {

template <class S> __device__ void compute_all(const arguments &p, const memory<S> &m) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_kv = p.a.n_kv_heads;
    place at = {lane, lane / 4, lane % 4, warp % KEY_WARPS, warp / KEY_WARPS};
    ring_place r = {0, 0};
    int n = p.prefetch ? __ldcg(p.parts.n) * n_kv : 0;
    wait_for_previous();
    let_next_start();
    n = p.prefetch ? n : __ldcg(p.parts.n) * n_kv;
    for (int item = blockIdx.x, i = 0; item < n; item += gridDim.x, i++) {
        const task<S> &t = m.tasks[i % 2];
        queries<S> q;
        sums<S> o;
        barrier_wait(m.queries_full, i & 1);
        q.take(p, m, t.n_columns, at);
        __syncwarp();
        barrier_arrive_warp(m.queries_empty, lane);
        o.clear();
        for (int tile = t.part.first; tile < t.part.end; tile += TILE)
            take_tile<S>(p, m, t, tile, q, at, r, o);
        join_warps<S>(p, m, t, item % n_kv, at, o);
        if (t.part.n_parts > 1)
            join_parts<S>(p, m, t, item % n_kv);
        __syncwarp();
        barrier_arrive_warp(m.task_empty + i % 2 * 8, lane);
    }
}

template <class S>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS) attention_decode(const __grid_constant__ arguments p) {
    extern __shared__ char shared[];
    memory<S> m(shared);
    first_part begin;
    if (threadIdx.x / 32 == S::COMPUTE / 32) // who copies
        begin.ask(p, blockIdx.x / S::SHARE);
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::N_STAGES; i++) {
            barrier_init(m.full + i * 8, 1);
            barrier_init(m.empty + i * 8, S::COMPUTE / 32 * WARP_ARRIVALS);
        }
        barrier_init(m.queries_full, WARP_ARRIVALS);
        barrier_init(m.queries_empty, S::COMPUTE / 32 * WARP_ARRIVALS);
        for (int i = 0; i < 2; i++)
            barrier_init(m.task_empty + i * 8, S::COMPUTE / 32 * WARP_ARRIVALS);
        barrier_init_done();
    }
    __syncthreads(); // the barriers are there
    if (threadIdx.x >= S::COMPUTE + 32)
        tell_all<S>(p, m);
    else if (threadIdx.x >= S::COMPUTE)
        copy_all<S>(p, m, begin);
    else
        compute_all<S>(p, m);
}

template <class S> void start(const launch *l, const arguments &p) {
    int n_blocks = n_multiprocessors() * S::BLOCKS;
    allow_shared(attention_decode<S>, S::SHARED);
    launch_node(attention_decode<S>, n_blocks, S::THREADS, S::SHARED, l->stream, taken_by(n_blocks, p));
}

template <int DIM, element E, bool SHARED_KV = false> void start_columns(const launch *l, const arguments &p) {
    if (p.parts.columns == 8)
        start<shape<DIM, 1, E, SHARED_KV>>(l, p);
    else
        start<shape<DIM, 2, E, SHARED_KV>>(l, p);
}

template <element E> void start_dim(const launch *l, const arguments &p) {
    switch (p.a.head_dim) {
    case 64: start_columns<64, E>(l, p); break;   // Qwen2.5-0.5B, GPT-OSS
    case 128: start_columns<128, E>(l, p); break; // most
    case 256: start_columns<256, E>(l, p); break; // Gemma, Qwen3.5
    case 512:                                     // Gemma 4, global layers
        if (p.a.rotary_dim > 0)
            start_columns<512, E, true>(l, p);
        else
            start_columns<512, E>(l, p);
        break;
    }
}

} // namespace

bool attention_decode_takes(const dattention *a, element cache, int block_size) {
    bool dim = a->head_dim == 64 || a->head_dim == 128 || a->head_dim == 256 || a->head_dim == 512;
    bool keys = a->rotary_dim == 0 || (a->head_dim == 512 && a->rotary_dim == SHARED_KV_DIM);
    return dim && keys && a->v_head_dim == a->head_dim && !a->paired_values && block_size >= 16 && cache != ELEMENT_F32;
}

void launch_attention_decode(const launch *l, const dattention *a, const dparts *parts, bool prefetch, dmat q,
                             dweight sinks, dcache cache, dmat out) {
    arguments p = arguments_of(l, *a, *parts, prefetch, q, sinks, cache, out);
    switch (cache.element) {
    case ELEMENT_F16: start_dim<ELEMENT_F16>(l, p); break;
    case ELEMENT_BF16: start_dim<ELEMENT_BF16>(l, p); break;
    case ELEMENT_E4M3:
        if (attention_takes_warps(l, cache.element, a->head_dim, a->n_heads / a->n_kv_heads, a->n_kv_heads) &&
            q.element != ELEMENT_BF16)
            launch_attention_decode_warps(l, a, parts, prefetch, q, sinks, cache, out);
        else
            launch_attention_decode_bytes(l, a, parts, prefetch, q, sinks, cache, out);
        break;
    default: start_dim<ELEMENT_I8>(l, p);
    }
}
