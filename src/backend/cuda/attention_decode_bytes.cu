/* attention_decode_bytes.cu - ATTENTION for few query tokens a sequence over a cache of e4m3: attention_decode.cu's parts, feeding warps and
 * joining, another way through a tile. Nothing of the cache is converted:
 *
 *     S [64 keys, 3 x columns] = K q^T        e4m3 by wgmma, keys as they lie in shared memory
 *     O^T [channels, 2 x columns] = V^T P^T   likewise, V^T from registers: ldmatrix turns it, two byte permutes a word sort its keys
 *
 * Queries and P are sums of terms of e4m3 (t0 + t1/16 + t2/256): three hold the 11 bits that float16 has, two hold 8, and a term costs 8
 * more columns of a product that has 64 rows anyhow. Against the same elements in double precision the largest error of a row is 2.9e-3 of
 * its largest value, as with products in float16. The tensor core keeps some 14 bits of a sum of e4m3 products, so sums are of one tile
 * and added in float32.
 *
 * A warpgroup takes a tile: warp w the scores of keys 16w .. 16w+15, then channels 16w .. 16w+15 of every 64 for all keys. So P goes
 * through shared memory and a barrier, in the tensor core's layout, and the largest score of a column is one for the warpgroup: raised,
 * with a second barrier, by the first tile and where a score passes it by P_SLACK powers of two, which the barrier itself tells all. The
 * sums need no joining at a pair's end. Where pairs are few, GROUPS warpgroups of a block share one, tile by tile.
 *
 * With attention_decode.cu's kernel, which converts e4m3 to float16 in registers, it was 8.0, 17, 57 and 152 us for Qwen2.5-7B at
 * 1 x 272, 128 x 272, 512 x 272 and 128 x 2,048; this: docs/benchmarks.md. */
#include "backend/cuda/decode_bytes.cuh"
#include "backend/cuda/decode_feed.cuh"

namespace {

template <class S> __device__ void compute_bytes(const arguments &p, const byte_memory<S> &m) {
    int lane = threadIdx.x % 32, n_kv = p.a.n_kv_heads, buffer = 0;
    byte_place at = {lane, (int)threadIdx.x / 32 % 4, lane / 4, lane % 4, (int)threadIdx.x / 128};
    ring_place r = {at.of * S::RING, 0, at.of * S::RING}; // of this warpgroup
    int n = p.prefetch ? __ldcg(p.parts.n) * n_kv : 0;
    wait_for_previous();
    let_next_start();
    n = p.prefetch ? n : __ldcg(p.parts.n) * n_kv;
    for (int item = blockIdx.x, i = 0; item < n; item += gridDim.x, i++) {
        const task<S> &t = m.tasks[i % 2];
        byte_sums<S> o;
        barrier_wait(m.queries_full, i & 1);
        place_queries<S>(p, m, t.n_columns, at);
        if (lane == 0)
            barrier_arrive(m.queries_empty);
        byte_pair<S> c = {t.low, t.part.end, t.inside_from, t.inside_to};
#pragma unroll
        for (int n = 0; n < S::N_TILES; n++)
#pragma unroll
            for (int k = 0; k < 2; k++)
                c.by[n][k] = m.query_factor[8 * n + 2 * at.quarter + k] * (p.a.scale * 1.4426950408889634f);
        o.clear();
        int n_tiles = (t.part.end - t.part.first + TILE - 1) / TILE;
        for (int k = at.of; k < n_tiles; k += S::GROUPS, buffer ^= 1)
            take_bytes<S>(p, m, t, t.part.first + k * TILE, c, at, r, buffer, k == at.of, o);
        if (S::GROUPS > 1)
            join_groups<S>(m, at, o);
        if (at.of == 0)
            finish_pair<S>(p, m, t, item % n_kv, at, o);
        if (t.part.n_parts > 1) {
            threads_sync(1, S::COMPUTE); // this part's sums are written
            join_parts<S>(p, m, t, item % n_kv);
        }
        __syncwarp();
        if (lane == 0)
            barrier_arrive(m.task_empty + i % 2 * 8);
    }
}

template <class S> __global__ void __launch_bounds__(S::THREADS, S::BLOCKS) attention_decode_bytes(const __grid_constant__ arguments p) {
    extern __shared__ char shared[];
    byte_memory<S> m(shared);
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::N_STAGES; i++) {
            barrier_init(m.full + i * 8, 1);
            barrier_init(m.empty + i * 8, KEY_WARPS);
        }
        barrier_init(m.queries_full, 1);
        barrier_init(m.queries_empty, S::COMPUTE / 32);
        for (int i = 0; i < 2; i++)
            barrier_init(m.task_empty + i * 8, S::COMPUTE / 32);
        barrier_init_done();
    }
    __syncthreads(); // the barriers are there
    if (threadIdx.x >= S::COMPUTE + 32)
        tell_all<S>(p, m);
    else if (threadIdx.x >= S::COMPUTE)
        copy_all<S>(p, m);
    else
        compute_bytes<S>(p, m);
}

template <class S> void start(const launch *l, const arguments &p) {
    static int n_blocks;
    if (!n_blocks) {
        int device = 0, n_sms = 0;
        cudaGetDevice(&device);
        cudaDeviceGetAttribute(&n_sms, cudaDevAttrMultiProcessorCount, device);
        cudaFuncSetAttribute(attention_decode_bytes<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::SHARED);
        n_blocks = n_sms * S::BLOCKS;
    }
    launch_node(attention_decode_bytes<S>, n_blocks, S::THREADS, S::SHARED, l->stream, p);
}

/* Where there are fewer pairs than multiprocessors, several warpgroups share one. */
template <int DIM> void start_columns(const launch *l, const arguments &p) {
    bool few = attention_blocks(l->n_seqs, p.a.n_kv_heads) < attention_blocks(1 << 30, 1);
    if (p.parts.columns != 8)
        start<byte_shape<DIM, 2, 1>>(l, p);
    else if (few)
        start<byte_shape<DIM, 1, DIM <= 128 ? 4 : DIM == 256 ? 2 : 1>>(l, p);
    else
        start<byte_shape<DIM, 1, 1>>(l, p);
}

} // namespace

void launch_attention_decode_bytes(const launch *l, const dattention *a, const dparts *parts, bool prefetch, dmat q, dweight sinks,
                                   dcache cache, dmat out) {
    arguments p = {l->plan, *a, *parts, q, out, sinks, cache, l->block_size, prefetch};
    switch (a->head_dim) {
    case 64: start_columns<64>(l, p); break;
    case 128: start_columns<128>(l, p); break;
    case 256: start_columns<256>(l, p); break;
    default: start_columns<512>(l, p);
    }
}
