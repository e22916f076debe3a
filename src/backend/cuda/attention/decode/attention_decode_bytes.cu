/* attention_decode_bytes.cu - ATTENTION for few query tokens a sequence over a cache of e4m3: attention_decode.cu's
 * parts, feeding warps and joining, another way through a tile. Nothing of the cache is converted:
 *
 *     S [64 keys, 3 x columns] = K q^T        e4m3 by wgmma, keys as they lie in shared memory
 *     O^T [channels, 2 x columns] = V^T P^T   likewise, V^T from registers: ldmatrix turns it, two byte permutes a word
 *                                             sort its keys
 *
 * Queries and P are sums of terms of e4m3 (t0 + t1/16 + t2/256): three hold the 11 bits that float16 has, two hold 8,
 * and a term costs 8 more columns of a product that has 64 rows anyhow. Against the same elements in double precision
 * the largest error of a row is 2.7e-3 of its largest value, as with products in float16. The tensor core keeps some 14
 * bits of a sum of e4m3 products, so sums are of one tile and added in float32.
 *
 * The warpgroup takes a tile: warp w the scores of keys 16w .. 16w+15, then channels 16w .. 16w+15 of every 64 for all
 * keys. So P goes through shared memory and a barrier, in the tensor core's layout, and the largest score of a column
 * is one for the warpgroup: raised, with a second barrier, by the first tile and where a score passes it by P_SLACK
 * powers of two, which the barrier itself tells all. The sums need no joining at a pair's end.
 *
 * A tile is a chain: some 200 instructions of a warp, of which most wait for the one before, four to five cycles each;
 * a pair has 400 besides. At 512 x 272 of Qwen2.5-7B computing warps waited for bytes 18 % of their time and for
 * themselves the rest, with two blocks a multiprocessor. So two tiles are taken at once, or the next one's scores are
 * started early (byte_shape). Tried: four blocks a multiprocessor, 80 registers a thread and two tiles in a ring, 16.2
 * for 14.4 us at 128 x 272, 50.7 for 46.6 at 512 x 272; two more warps that make the next pair's queries meanwhile,
 * nothing.
 *
 * Steps of more than 264 pairs (attention_team) are attention_decode_warps.cu's, of one token a sequence and 128
 * channels.
 *
 * Where pairs are few, SHARE blocks of a cluster take the tiles of one in turn; at its end the others leave their sums
 * in the shared memory of the first (st.async, counted by a barrier there). One block of SHARE warpgroups was tried: it
 * has to wait for the node before to leave its registers, and one multiprocessor reads all the keys. */
#include "backend/cuda/attention/attention.h"
#include "backend/cuda/attention/attention_parts.h"
#include "backend/cuda/attention/decode/attention_decode.h"
#include "backend/cuda/attention/decode/decode_bytes_end.cuh"
#include "backend/cuda/attention/decode/decode_prep.cuh"
#include "backend/cuda/value.h"

namespace {

/* All tiles of a pair, the block's i-th, that this block has: every SHARE-th from the rank-th on. */
template <class S>
__device__ void take_pair(const arguments &p, const byte_memory<S> &m, const prep_memory<S> &pm, int i,
                          const task<S> &t, const byte_pair<S> &c, const byte_place &at, ring_place &r, int &generation,
                          int rank, byte_sums<S> &o) {
    int first = t.part.first + rank * TILE, n_tiles = (t.part.end - first + S::SHARE * TILE - 1) / (S::SHARE * TILE),
        k = 0;
    float d[1][S::QUERY_ROWS / 2] = {};
    auto complete = [&](int k, ring_place place) { // the new token's key and value are not copied
        if constexpr (S::PREPARES)
            if (k < n_tiles && first + k * S::SHARE * TILE + TILE >= t.part.end && has_newest(t.part))
                place_newest<S>(m, pm, t, i, first + k * S::SHARE * TILE, place);
    };
    auto start = [&](int k) { // of whatever lies in the stage where there is none: its scores are never looked at
        complete(k, r);
        if (k < n_tiles)
            barrier_wait(m.full + r.stage * 8, r.parity);
        start_scores<S>(m, r, d[0]);
    };
    if (S::AHEAD)
        start(0);
    int n_single =
        S::TILES == 1 ? n_tiles : n_tiles % S::TILES; // these first: the bytes of more may still be on their way
    for (; k < n_single; k++, generation ^= 1) {
        if (!S::AHEAD)
            complete(k, r);
        take_tiles<S, 1>(p, m, t, first + k * S::SHARE * TILE, c, at, r, generation, k == 0, o, d,
                         [&] { start(k + 1); });
    }
    if constexpr (S::TILES > 1)
        for (; k < n_tiles; k += S::TILES, generation ^= 1) {
            float ds[S::TILES][S::QUERY_ROWS / 2] = {};
            ring_place last = r;
            for (int j = 0; j < 2 * (S::TILES - 1); j++)
                last.next(S::N_STAGES);
            complete(k + S::TILES - 1, last);
            take_tiles<S, S::TILES>(p, m, t, first + k * TILE, c, at, r, generation, k == 0, o, ds, [] {});
        }
    if (S::AHEAD) {
        products_wait<0>();
        registers_settle(d[0]);
        if (n_tiles == 0)
            threads_sync(1, S::COMPUTE); // as a tile has: these queries and their factors are read, the next pair's
                                         // come in their place
    }
}

template <class S> __device__ void compute_bytes(const arguments &p, const byte_memory<S> &m) {
    int lane = threadIdx.x % 32, n_kv = p.a.n_kv_heads, generation = 0;
    byte_place at(S::PANEL, S::SIDE);
    ring_place r = {0, 0};
    prep_memory<S> pm(m);
    query_weights<S> weights; // of the pair to come
    int n_items = p.prefetch ? __ldcg(p.parts.n) * n_kv : 0;
    int rank = S::SHARE > 1 ? cluster_rank() : 0, step = gridDim.x / S::SHARE;
    if (S::PREPARES)
        weights.load(p.prep, blockIdx.x / S::SHARE % n_kv, at);
    wait_for_previous();
    let_next_start();
    n_items = p.prefetch ? n_items : __ldcg(p.parts.n) * n_kv;
    for (int item = blockIdx.x / S::SHARE, i = 0; item < n_items; item += step, i++) {
        const task<S> &t = m.tasks[i % 2];
        byte_sums<S> o;
        barrier_wait(m.queries_full, i & 1);
        if constexpr (S::PREPARES)
            prepare_queries<S>(p, m, pm, i, weights, t.n_columns, at);
        else
            place_queries<S>(p, m, t.n_columns, at);
        barrier_arrive_warp(m.queries_empty, lane);
        byte_pair<S> c = {t.low, t.part.end, t.inside_from, t.inside_to};
#pragma unroll
        for (int n = 0; n < S::N_TILES; n++)
#pragma unroll
            for (int k = 0; k < 2; k++)
                c.by[n][k] = m.query_factor[8 * n + 2 * at.quarter + k] * (p.a.scale * 1.4426950408889634f);
        o.clear();
        take_pair<S>(p, m, pm, i, t, c, at, r, generation, rank, o);
        if (rank > 0) {
            leave_to_first<S>(m, rank, i, o);
        } else {
            if (S::SHARE > 1)
                join_blocks<S>(m, i, o);
            finish_pair<S>(p, m, t, item % n_kv, at, o);
        }
        if (t.part.n_parts > 1 && rank == 0) {
            threads_sync(1, S::COMPUTE); // this part's sums are written
            join_parts<S>(p, m, t, item % n_kv);
        }
        // Behind a barrier of finish_pair or join_parts: all have read what was left, and what joining parts wrote over
        // it.
        if (S::SHARE > 1 && rank == 0 && item + step < n_items && threadIdx.x > 0 && threadIdx.x < S::SHARE)
            barrier_arrive_at_rank(address_at_rank(m.merge_empty, threadIdx.x));
        __syncwarp();
        barrier_arrive_warp(m.task_empty + i % 2 * 8, lane);
        if (S::PREPARES)
            weights.load(p.prep, (item + step) % n_kv, at);
    }
}

template <class S>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS) attention_decode_bytes(const __grid_constant__ arguments p) {
    extern __shared__ char shared[];
    byte_memory<S> m(shared);
    first_part begin;
    if (threadIdx.x / 32 == S::COMPUTE / 32) // who copies
        begin.ask(p, blockIdx.x / S::SHARE);
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::N_STAGES; i++) {
            barrier_init(m.full + i * 8, 1);
            barrier_init(m.empty + i * 8, KEY_WARPS * WARP_ARRIVALS);
        }
        barrier_init(m.queries_full, WARP_ARRIVALS);
        barrier_init(m.queries_empty, S::COMPUTE / 32 * WARP_ARRIVALS);
        for (int i = 0; i < 2; i++)
            barrier_init(m.task_empty + i * 8, S::COMPUTE / 32 * WARP_ARRIVALS);
        for (int i = 0; i < 2 && S::PREPARES; i++)
            barrier_init(prep_memory<S>(m).fresh_full + i * 8, WARP_ARRIVALS);
        barrier_init(m.joined, 1);
        barrier_init(m.merge_empty, 1);
        barrier_init_done();
    }
    __syncthreads(); // the barriers are there
    if (S::SHARE > 1)
        cluster_sync(); // those of the other blocks too
    if (threadIdx.x >= S::COMPUTE + 32) {
        if constexpr (S::PREPARES)
            tell_prepared<S>(p, m, prep_memory<S>(m));
        else
            tell_all<S>(p, m);
    } else if (threadIdx.x >= S::COMPUTE)
        copy_all<S>(p, m, begin);
    else
        compute_bytes<S>(p, m);
}

template <class S> void start(const launch *l, const arguments &p) {
    allow_shared(attention_decode_bytes<S>, S::SHARED);
    int n_clusters = attention_clusters(S::DIM, S::SHARE);
    launch_cluster(attention_decode_bytes<S>, n_clusters * S::SHARE, S::SHARE, S::THREADS, S::SHARED, l->stream,
                   taken_by(n_clusters, p));
}

template <int DIM, bool SHARED_KV> void start_columns(const launch *l, const arguments &p) {
    int share = attention_share(ELEMENT_E4M3, DIM, l->n_seqs, p.a.n_kv_heads);
    if (p.parts.columns != 8)
        start<byte_shape<DIM, 2, 1, SHARED_KV>>(l, p);
    else if (share == 4)
        start<byte_shape<DIM, 1, 4, SHARED_KV>>(l, p);
    else if (share == 2)
        start<byte_shape<DIM, 1, 2, SHARED_KV>>(l, p);
    else
        start<byte_shape<DIM, 1, 1, SHARED_KV>>(l, p);
}

} // namespace

void launch_attention_decode_bytes(const launch *l, const dattention *a, const dparts *parts, bool prefetch, dmat q,
                                   dweight sinks, dcache cache, dmat out) {
    arguments p = arguments_of(l, *a, *parts, prefetch, q, sinks, cache, out);
    switch (a->head_dim) {
    case 64: start_columns<64, false>(l, p); break;
    case 128: start_columns<128, false>(l, p); break;
    case 256: start_columns<256, false>(l, p); break;
    default:
        if (a->rotary_dim > 0)
            start_columns<512, true>(l, p);
        else
            start_columns<512, false>(l, p);
    }
}

static bool lies_in_sixteens(const void *at) { return (uintptr_t)at % 16 == 0; }

bool attention_decode_prepares(const dattention *a, const dprep *prep, dcache cache) {
    const dqkv &q = prep->a;
    const dmat &x = prep->x;
    bool sizes = a->head_dim == 128 && a->v_head_dim == 128 && a->n_heads / a->n_kv_heads <= 8 && !q.k_absent;
    bool lies = lies_in_sixteens(x.at) && x.stride % 8 == 0 && lies_in_sixteens(x.col_scale) &&
                lies_in_sixteens(x.bias) && lies_in_sixteens(prep->q_norm.at) && lies_in_sixteens(prep->k_norm.at);
    return cache.element == ELEMENT_E4M3 && sizes && lies && prep->q_norm.element == ELEMENT_F32;
}

void launch_attention_decode_prepares(const launch *l, const dattention *a, const dparts *parts, const dprep *prep,
                                      dweight sinks, dcache cache, dmat out) {
    arguments p = arguments_of(l, *a, *parts, true, {}, sinks, cache, out);
    p.prep = *prep;
    int share = attention_share(ELEMENT_E4M3, 128, l->n_seqs, a->n_kv_heads);
    if (share == 4)
        start<byte_shape<128, 1, 4, false, true>>(l, p);
    else if (share == 2)
        start<byte_shape<128, 1, 2, false, true>>(l, p);
    else
        start<byte_shape<128, 1, 1, false, true>>(l, p);
}
