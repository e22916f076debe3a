/* attention_decode_int4.cu - ATTENTION for few query tokens a sequence over a cache of int4 (kv_int4.cuh).
 *
 *     S^T [keys, columns] = K q^T,  P = 2^(S - m),  O^T [channels, columns] = V^T P^T
 *
 * As attention_decode.cu, whose feeding warps, lists and ring it has, but a computing warp takes a whole tile of 64
 * keys, every fourth of a part. Codes become half precision in registers and are the left operands of mma.m16n8k16; a
 * group's 32 channels are summed by themselves, since its scale, one a key, comes behind. Scales of values go into P, a
 * product for each group. Queries come rotated, and results are rotated back where the warps' sums meet: no key or
 * value is.
 *
 * Floor. Bytes of a position and KV head of 128 channels: 144, where e4m3 has 264; of Qwen2.5-7B 3.8 ns a token and
 * step at 4.2 TB/s, where that has 7.0. Instructions of a warp for 64 of them and up to 8 columns, from the code below:
 *
 *     keys      64 permutations, 128 to codes, 32 products, 64 for scales, 20 loads, 32 for bfloat16     340
 *     softmax   16 exponentials, and what scales, compares and sums them                                 100
 *     values    32 shifts, 128 to codes, 128 to values, 32 products, 40 loads                            360
 *     P         64 times scales, 32 to pairs, 32 turned, 64 for scales and their largest                 190
 *
 * Together some 990, of which four schedulers of 132 multiprocessors at 1.7 GHz start 0.91 tiles' worth a ns: 8.4 TB/s
 * of such a cache, where memory gives 4.2. So it should be bound by memory, half of the instructions' slots taken; no
 * card has run it. A warp's rows of values lie 64 bytes apart, so that matrices of them come from shared memory in 4
 * turns (8 with 256 channels): 128 of a tile's 250 cycles. */
#include "backend/cuda/attention/decode/attention_decode_int4.h"
#include "backend/cuda/attention/decode/decode_int4_join.cuh"

namespace {

template <class S> __device__ void compute_all_int4(const arguments &p, const memory<S> &m) {
    place_int4 at(threadIdx.x % 32);
    int warp = threadIdx.x / 32, n_kv = p.a.n_kv_heads, turn = 0; // turn: tiles that came before
    int n = p.prefetch ? __ldcg(p.parts.n) * n_kv : 0;
    wait_for_previous();
    let_next_start();
    n = p.prefetch ? n : __ldcg(p.parts.n) * n_kv;
    for (int item = blockIdx.x, i = 0; item < n; item += gridDim.x, i++) {
        const task<S> &t = m.tasks[i % 2];
        queries_int4<S> q;
        sums_int4<S> o;
        barrier_wait(m.queries_full, i & 1);
        q.take(p, m, t.n_columns, at);
        __syncwarp();
        barrier_arrive_warp(m.queries_empty, at.lane);
        o.clear();
        int n_tiles = (t.part.end - t.part.first + TILE - 1) / TILE;
        for (int k = warp; k < n_tiles; k += KEY_WARPS) {
            int stage = (turn + k) % S::N_STAGES;
            barrier_wait(m.full + stage * 8, (turn + k) / S::N_STAGES & 1);
            take_tile_int4<S>(p, m, t, t.part.first + k * TILE, stage, q, at, o);
            __syncwarp();
            barrier_arrive_warp(m.empty + stage * 8, at.lane);
        }
        turn += n_tiles;
        join_warps_int4<S>(p, m, t, item % n_kv, warp, at, o);
        if (t.part.n_parts > 1)
            join_parts_int4<S>(p, m, t, item % n_kv, warp);
        __syncwarp();
        barrier_arrive_warp(m.task_empty + i % 2 * 8, at.lane);
    }
}

template <class S>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS) attention_decode_int4(const __grid_constant__ arguments p) {
    extern __shared__ char shared[];
    memory<S> m(shared);
    first_part begin;
    if (threadIdx.x / 32 == S::COMPUTE / 32) // who copies
        begin.ask(p, blockIdx.x);
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::N_STAGES; i++) {
            barrier_init(m.full + i * 8, 1);
            barrier_init(m.empty + i * 8, WARP_ARRIVALS);
        }
        barrier_init(m.queries_full, WARP_ARRIVALS);
        barrier_init(m.queries_empty, KEY_WARPS * WARP_ARRIVALS);
        for (int i = 0; i < 2; i++)
            barrier_init(m.task_empty + i * 8, KEY_WARPS * WARP_ARRIVALS);
        barrier_init_done();
    }
    __syncthreads(); // the barriers are there
    if (threadIdx.x >= S::COMPUTE + 32)
        tell_all<S>(p, m);
    else if (threadIdx.x >= S::COMPUTE)
        copy_whole_tiles<S>(p, m, begin);
    else
        compute_all_int4<S>(p, m);
}

template <class S> void start(const launch *l, const arguments &p) {
    int n_blocks = n_multiprocessors() * S::BLOCKS;
    allow_shared(attention_decode_int4<S>, S::SHARED);
    launch_node(attention_decode_int4<S>, n_blocks, S::THREADS, S::SHARED, l->stream, taken_by(n_blocks, p));
}

} // namespace

bool attention_decode_int4_takes(const dattention *a, int block_size) {
    bool dim = a->head_dim == 64 || a->head_dim == 128 || a->head_dim == 256;
    return dim && a->rotary_dim == 0 && a->v_head_dim == a->head_dim && !a->paired_values && block_size == TILE;
}

void launch_attention_decode_int4(const launch *l, const dattention *a, const dparts *parts, bool prefetch, dmat q,
                                  dweight sinks, dcache cache, dmat out) {
    arguments p = arguments_of(l, *a, *parts, prefetch, q, sinks, cache, out);
    switch (a->head_dim) {
    case 64: start<shape_int4<64>>(l, p); break;   // Qwen2.5-0.5B, GPT-OSS
    case 128: start<shape_int4<128>>(l, p); break; // most
    case 256: start<shape_int4<256>>(l, p); break; // Gemma, Qwen3.5
    }
}
