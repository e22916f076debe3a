/* attention_prefill.cu - ATTENTION for many query tokens a sequence: bound by the tensor cores.
 *
 *     S [rows, keys] = q K^T,  P = 2^(S - m),  O [rows, channels] += P V
 *
 * A row is a query head of a token; the rows of a KV head, token after token, are cut into tiles of ROWS
 * (attention_parts.cu), and a block of threads takes one tile and walks over the keys that it sees, read in place from
 * the cache's blocks. Two warpgroups compute, with wgmma: each has 64 rows, or, where 512 channels do not fit the
 * registers of one, half of the channels of the same 64 (512 of e4m3 are attention_prefill_halves.cu's). While one
 * makes exponentials the other has the tensor cores. A third warpgroup brings keys and values, KEYS at a time, by bulk
 * copies: kv.cuh's layout is what wgmma reads. e4m3 keys are multiplied as they are (prefill_rows.cuh says how), other
 * bytes are widened to float16, times their row's scale, on the way.
 *
 * The largest score m is kept per row and raised only when a score passes it by 8; scores count in powers of two.
 * FLOPs: 4 * rows * keys seen * channels (6 with 512: both warpgroups make the scores); over bfloat16 2 more, for P in
 * two terms. */
#include "backend/cuda/attention/attention.h"
#include "backend/cuda/attention/attention_parts.h"
#include "backend/cuda/attention/prefill/attention_prefill.h"
#include "backend/cuda/attention/prefill/prefill_feed.cuh"
#include "backend/cuda/attention/prefill/prefill_rows.cuh"
#include "backend/cuda/attention/prefill/prefill_scores.cuh"
#include "backend/cuda/value.h"

namespace {

template <class S> struct sums { float o[S::CHANNELS / 2], m[2], l[2]; };

/* What a row's sums are multiplied by where its m was raised; any: of a row of the warp. */
struct shrinking {
    float by[2];
    bool any;
};

/* s, times a factor a row, becomes P; m is raised where it must be, and l shrinks; o is to. */
template <class S> __device__ shrinking soften(const float (&factor)[2], float (&s)[S::KEYS / 2], sums<S> &o) {
    constexpr float SLACK = 8;
    float most[2] = {-INFINITY, -INFINITY};
    shrinking shrink = {{1, 1}, false};
#pragma unroll
    for (int j = 0; j < S::KEYS / 8; j++)
#pragma unroll
        for (int k = 0; k < 2; k++)
            most[k] = fmaxf(most[k], fmaxf(s[4 * j + 2 * k], s[4 * j + 2 * k + 1]));
    most[0] *= factor[0];
    most[1] *= factor[1];
    shrink.any = __any_sync(0xffffffffu, most[0] > o.m[0] + SLACK || most[1] > o.m[1] + SLACK);
    if (shrink.any) {
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float m = fmaxf(most[k], __shfl_xor_sync(0xffffffffu, most[k], 1));
            m = fmaxf(o.m[k], fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2)));
            shrink.by[k] = m == -INFINITY ? 1.0f : exp2_fast(o.m[k] - m);
            o.m[k] = m;
            o.l[k] *= shrink.by[k];
        }
    }
#pragma unroll
    for (int k = 0; k < 2; k++) {
        float m = o.m[k] == -INFINITY ? 0.0f : o.m[k];
#pragma unroll
        for (int j = 0; j < S::KEYS / 8; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float e = exp2_fast(fmaf(s[4 * j + 2 * k + i], factor[k], -m));
                s[4 * j + 2 * k + i] = e;
                o.l[k] += e;
            }
    }
    return shrink;
}

/* Scores of a tile to P, masked. */
template <class S>
__device__ shrinking weigh(const arguments &p, const dpart &part, const place &at, int i, float (&s)[S::KEYS / 2],
                           sums<S> &o) {
    const float capped[2] = {1, 1};
    int tile = part.first + i * S::KEYS;
    if (p.a.softcap > 0)
        cap_scores<S>(at, p.a.softcap, s);
    if (tile + S::KEYS > min(at.first_position + 1, part.end) || tile < first_visible(p.a, at.last_position))
        hide<S>(p, part, at, tile, s);
    return soften<S>(p.a.softcap > 0 ? capped : at.by, s, o);
}

/* P as products read it. In bfloat16 it would be off by 1.6e-3, so there it is the sum of two, what rounding leaves and
 * the rounding of that. */
template <class S> struct weights { uint32_t pairs[S::KEYS / 16][4], rest[S::BF16 ? S::KEYS / 16 : 1][4]; };

template <class S> __device__ void round_weights(const float (&s)[S::KEYS / 2], weights<S> &w) {
#pragma unroll
    for (int k = 0; k < S::KEYS / 16; k++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float x = s[8 * k + 2 * j], y = s[8 * k + 2 * j + 1];
            w.pairs[k][j] = to_pair<S::BF16>(x, y);
            if constexpr (S::BF16)
                w.rest[k][j] = rest_of_pair(x, y, w.pairs[k][j]);
        }
}

/* Starts o += P V of the warpgroup's channels. */
template <class S>
__device__ void begin_values(const memory<S> &m, const place &at, int tile, const weights<S> &w, sums<S> &o) {
    uint32_t values = m.values(tile) + at.sharer * (S::CHANNELS / 64) * S::PANEL;
    products_begin();
    registers_settle(o.o);
#pragma unroll
    for (int k = 0; k < S::KEYS / 16; k++) {
        uint64_t some = operand_turned(values + k * 2048, S::PANEL);
        if constexpr (S::BF16)
            halves_product<S::CHANNELS, true>::add_turned(o.o, w.rest[k], some);
        halves_product<S::CHANNELS, S::BF16>::add_turned(o.o, w.pairs[k], some);
    }
    products_commit();
}

template <class S> __device__ void shrink_sums(const shrinking &shrink, sums<S> &o) {
    if (shrink.any) {
#pragma unroll
        for (int j = 0; j < S::CHANNELS / 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                o.o[4 * j + i] *= shrink.by[i / 2];
    }
}

/* Warpgroups of different rows start products by turns: so while one waits for the tensor cores, and has them, the
 * other makes exponentials. */
template <class S> __device__ void await_turn() {
    if (S::SHARERS == 1)
        threads_sync(3 + threadIdx.x / 128, COMPUTE);
}
template <class S> __device__ void give_turn() {
    if (S::SHARERS == 1)
        threads_arrive(3 + 1 - threadIdx.x / 128, COMPUTE);
}

template <class S> __device__ void await_keys(const memory<S> &m, int i) {
    barrier_wait(m.key_full(i), m.turn(i, S::N_KEYS));
}
template <class S> __device__ void await_values(const memory<S> &m, int i) {
    barrier_wait(m.value_full(i), m.turn(i, S::N_VALUES));
}

/* A tile of which no row of the warpgroup sees a key. */
template <class S> __device__ void pass_tile(const memory<S> &m, int i) {
    await_turn<S>();
    give_turn<S>();
    await_keys<S>(m, i);
    release(m.key_empty(i));
    await_values<S>(m, i);
    release(m.value_empty(i));
}

/* The tiles from `first` to before `end`, one after the other: where both warpgroups make the scores of the same rows,
 * these keep the tensor cores and shared memory busy, and values are there once. */
template <class S>
__device__ void take_tiles_alone(const arguments &p, const memory<S> &m, const dpart &part, const place &at, int first,
                                 int end, sums<S> &o) {
    for (int i = first; i < end; i++) {
        float s[S::KEYS / 2];
        weights<S> w;
        await_keys<S>(m, i);
        begin_scores<S>(m, at, i, s);
        products_wait<0>();
        end_scores<S>(m, i, s);
        release(m.key_empty(i));
        shrink_sums<S>(weigh<S>(p, part, at, i, s, o), o);
        round_weights<S>(s, w);
        await_values<S>(m, i);
        begin_values<S>(m, at, i, w, o);
        products_wait<0>();
        registers_settle(o.o);
        release(m.value_empty(i));
    }
}

/* The same, where a warpgroup has rows of its own: while exponentials are made of the scores of one tile, the products
 * of those of the tile before with its values go on. */
template <class S>
__device__ void take_tiles(const arguments &p, const memory<S> &m, const dpart &part, const place &at, int first,
                           int end, sums<S> &o) {
    float s[S::KEYS / 2];
    weights<S> w;
    await_keys<S>(m, first);
    await_turn<S>();
    begin_scores<S>(m, at, first, s);
    give_turn<S>();
    products_wait<0>();
    end_scores<S>(m, first, s);
    release(m.key_empty(first));
    weigh<S>(p, part, at, first, s, o);
    round_weights<S>(s, w);
    for (int i = first + 1; i < end; i++) {
        await_keys<S>(m, i);
        await_turn<S>();
        begin_scores<S>(m, at, i, s);
        await_values<S>(m, i - 1);
        begin_values<S>(m, at, i - 1, w, o);
        give_turn<S>();
        products_wait<1>();
        end_scores<S>(m, i, s);
        release(m.key_empty(i));
        shrinking shrink = weigh<S>(p, part, at, i, s, o);
        products_wait<0>();
        registers_settle(o.o);
        shrink_sums<S>(shrink, o);
        release(m.value_empty(i - 1));
        round_weights<S>(s, w);
    }
    await_values<S>(m, end - 1);
    begin_values<S>(m, at, end - 1, w, o);
    products_wait<0>();
    registers_settle(o.o);
    release(m.value_empty(end - 1));
}

/* In float32: a lane has two channels in a row. */
template <class S>
__device__ void store_floats(const arguments &p, const dpart &part, int kv, const place &at, const float (&by)[2],
                             const sums<S> &o) {
    int t = threadIdx.x % 4;
#pragma unroll
    for (int k = 0; k < 2; k++) {
        if (at.row[k] >= part.columns)
            continue;
        row_place row = place_of_row(p, part, kv, at.row[k]);
        uint32_t most = 0;
        float *to = static_cast<float *>(p.out.at) + row.token * p.out.stride + (int64_t)row.head * S::DIM + 2 * t;
#pragma unroll
        for (int j = 0; j < S::CHANNELS / 8; j++) {
            float x = o.o[4 * j + 2 * k] * by[k], y = o.o[4 * j + 2 * k + 1] * by[k];
            most = max(most, max(__float_as_uint(x) & 0x7FFFFFFF, __float_as_uint(y) & 0x7FFFFFFF));
            *reinterpret_cast<float2 *>(to + moved<S>(p, at.sharer * S::CHANNELS + 8 * j)) = {x, y};
        }
        if (p.out.absmax) // of every fourth of the row's channels
            atomicMax(p.out.absmax + row.token, most);
    }
}

/* In 16 bits: rows come to where the queries were, and from there a warp stores one at a time. */
template <class S, bool BF16>
__device__ void store_pairs(const arguments &p, const dpart &part, const memory<S> &m, int kv, const place &at,
                            const float (&by)[2], const sums<S> &o) {
    constexpr int LANES = S::CHANNELS / 8, ROWS = 32 / LANES; // of a row; rows at a time
    int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    char *room =
        m.base + at.sharer * (S::CHANNELS / 64) * S::QUERY_PANEL + (at.first_row + 16 * warp) * 128; // the warp's rows
    threads_sync(S::SHARERS == 1 ? 5 + threadIdx.x / 128 : 1,
                 S::SHARERS == 1 ? 128 : COMPUTE); // nobody needs their queries any more
#pragma unroll
    for (int k = 0; k < 2; k++)
#pragma unroll
        for (int j = 0; j < S::CHANNELS / 8; j++)
            *reinterpret_cast<uint32_t *>(room + j / 8 * S::QUERY_PANEL + (g + 8 * k) * 128 + ((j % 8) ^ g) * 16 +
                                          4 * t) =
                to_pair<BF16>(o.o[4 * j + 2 * k] * by[k], o.o[4 * j + 2 * k + 1] * by[k]);
    __syncwarp(); // the rows are there
#pragma unroll 2
    for (int i = 0; i < 16 / ROWS; i++) {
        int r = i * ROWS + lane / LANES, c = lane % LANES, of = part.first_column + at.first_row + 16 * warp + r;
        uint4 x = *reinterpret_cast<const uint4 *>(room + c / 8 * S::QUERY_PANEL + r * 128 + ((c % 8) ^ (r & 7)) * 16);
        row_place row = place_of_row(p, part, kv, of);
        store_eight<LANES, BF16>(p, of < part.columns,
                                 row.token * p.out.stride + (int64_t)row.head * S::DIM +
                                     moved<S>(p, at.sharer * S::CHANNELS + 8 * c),
                                 row.token, x);
    }
}

/* Divides by the softmax's denominator and stores. */
template <class S>
__device__ void finish(const arguments &p, const dpart &part, const memory<S> &m, int kv, const place &at,
                       const sums<S> &o) {
    int per_kv = p.a.n_heads / p.a.n_kv_heads;
    float by[2];
#pragma unroll
    for (int k = 0; k < 2; k++) {
        float l = o.l[k] + __shfl_xor_sync(0xffffffffu, o.l[k], 1);
        l += __shfl_xor_sync(0xffffffffu, l, 2);
        if (p.sinks.at)
            l += exp2_fast(load(p.sinks, kv * per_kv + at.row[k] % per_kv) * 1.4426950408889634f - o.m[k]);
        by[k] = 1.0f / l;
    }
    if (p.out.element == ELEMENT_F32)
        store_floats<S>(p, part, kv, at, by, o);
    else if (p.out.element == ELEMENT_F16)
        store_pairs<S, false>(p, part, m, kv, at, by, o);
    else
        store_pairs<S, true>(p, part, m, kv, at, by, o);
}

template <class S>
__device__ void compute_all(const arguments &p, const memory<S> &m, const dpart &part, int kv, int n_tiles) {
    load_queries<S>(p, m, part, kv);
    place at = place_of<S>(p, part);
    set_row_scales<S>(p, m, at);
    sums<S> o;
#pragma unroll
    for (int i = 0; i < S::CHANNELS / 2; i++)
        o.o[i] = 0;
    o.m[0] = o.m[1] = -INFINITY;
    o.l[0] = o.l[1] = 0;
    // Tiles before the window of the first row, and behind the last row, are of the other warpgroup's rows alone.
    int first = uniform((first_visible(p.a, at.first_position) - part.first) / S::KEYS);
    int end = uniform(min(n_tiles, (at.last_position - part.first) / S::KEYS + 1));
    if (threadIdx.x >= 128)
        give_turn<S>(); // the first warpgroup begins
    for (int i = 0; i < first; i++)
        pass_tile<S>(m, i);
    if constexpr (S::SHARERS == 1)
        take_tiles<S>(p, m, part, at, first, end, o);
    else
        take_tiles_alone<S>(p, m, part, at, first, end, o);
    for (int i = end; i < n_tiles; i++)
        pass_tile<S>(m, i);
    if (threadIdx.x < 128)
        await_turn<S>(); // what the other gave last
    finish<S>(p, part, m, kv, at, o);
}

template <class S>
__global__ void __launch_bounds__(THREADS, 1) attention_prefill(const __grid_constant__ arguments p) {
    extern __shared__ char shared[];
    memory<S> m(shared);
    if (threadIdx.x == 0)
        m.start();
    __syncthreads(); // the barriers are there
    wait_for_previous();
    let_next_start();
    int item = blockIdx.x, n_kv = p.a.n_kv_heads;
    dpart part = p.parts.part[item / n_kv]; // there is one, or room for one: both loads are under way together
    if (item >= *p.parts.n * n_kv)
        return;
    int kv = item % n_kv, n_tiles = (part.end - part.first + S::KEYS - 1) / S::KEYS;
    if (threadIdx.x >= COMPUTE) {
        registers_fewer<S::COPY_REGISTERS>();
        source s = source_of<S>(p, part, kv);
        if constexpr (S::KEYS_AS_THEY_ARE)
            widen_values<S>(m, s, n_tiles);
        else if constexpr (S::BYTES)
            widen_both<S>(m, s, n_tiles);
        else if (threadIdx.x < COMPUTE + 32)
            copy_all<S>(m, s, n_tiles);
    } else {
        registers_more<S::COMPUTE_REGISTERS>();
        compute_all<S>(p, m, part, kv, n_tiles);
    }
}

template <class S> void start(const launch *l, const arguments &p) { launch_items<S>(attention_prefill<S>, l, p); }

template <element E> void start_dim(const launch *l, const arguments &p) {
    switch (p.a.head_dim) {
    case 64: start<shape<64, E>>(l, p); break;
    case 128: start<shape<128, E>>(l, p); break;
    case 256: start<shape<256, E>>(l, p); break;
    case 512:
        if constexpr (E == ELEMENT_E4M3)
            launch_attention_prefill_halves(l, &p.a, &p.parts, p.q, p.sinks, p.cache, p.out);
        else
            start<shape<512, E>>(l, p);
        break;
    }
}

} // namespace

int attention_prefill_rows(const dattention *a) {
    return a->head_dim == 512 ? shape<512, ELEMENT_F16>::ROWS : shape<128, ELEMENT_F16>::ROWS;
}

void launch_attention_prefill(const launch *l, const dattention *a, const dparts *parts, dmat q, dweight sinks,
                              dcache cache, dmat out) {
    arguments p = {l->plan, *a, *parts, q, out, sinks, cache, l->block_size};
    switch (cache.element) {
    case ELEMENT_F16: start_dim<ELEMENT_F16>(l, p); break;
    case ELEMENT_BF16: start_dim<ELEMENT_BF16>(l, p); break;
    case ELEMENT_E4M3: start_dim<ELEMENT_E4M3>(l, p); break;
    default: start_dim<ELEMENT_I8>(l, p);
    }
}
