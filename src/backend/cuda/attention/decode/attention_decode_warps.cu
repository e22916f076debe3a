/* attention_decode_warps.cu - ATTENTION for one query token a sequence over a cache of e4m3, of so many sequences that
 * a warp, or two together, have a pair of a sequence and a KV head.
 *
 *     S [keys, columns] = K q^T,  P = 2^(S - m),  O^T [channels, columns] = V^T P^T
 *
 * A warp has a ring of three stages of 32 keys and their values, which its own bulk copies fill. What lies in a stage
 * goes to registers at once, and the stage is asked for again, for this pair or the next: no warp waits for another,
 * and the eight of a multiprocessor hide each other's chains of instructions. Products are of float16: Hopper's mma of
 * a warp widens e4m3 itself (F2FP, two a word), so queries may as well have float16's 11 bits in one term, and sums are
 * float32's. A pair of 272 keys takes 4,900 instructions of one warp, where attention_decode_bytes.cu takes 1,770 of
 * each of four.
 *
 * Where pairs are no more than half of the warps two take one, a team: stages in turn, each in a ring of its own and
 * from a base of its own. They meet when the pair ends: each leaves the other its half of the channels in shared
 * memory, and finishes its own. A multiprocessor has two blocks of four warps then, which find room beside the node
 * before sooner than one of eight. One stage is asked for before queries and the other behind them, as they would wait
 * for what all warps ask for.
 *
 * The loop begins and ends pairs in one place, the first too: instructions that run once come from the L2, and that is
 * slow.
 *
 * Tried and lost: rings of keys and of values of 64 (fewer instructions, and 0.5 to 1 % fewer tokens/s), six stages of
 * 16 keys (16.4 us for 13.6 at 128 x 272 of Qwen2.5-7B, 41.1 for 41.5 at 512), twelve warps with two stages, six with
 * four, QKV_PREP on the way (0.3 % more tokens/s at 128 sequences, 0.7 % fewer at 512). Of teams:
 * docs/lab/cuda_attention.md. */
#include "backend/cuda/attention/attention.h"
#include "backend/cuda/attention/attention_parts.h"
#include "backend/cuda/attention/decode/attention_decode.h"
#include "backend/cuda/attention/decode/decode_feed.cuh"
#include "backend/cuda/attention/decode/decode_warp.cuh"
#include "backend/cuda/ptx/late.cuh"
#include "backend/cuda/value.h"

namespace {

enum { SEQ, ROW, POSITION, N_COLUMNS, FIRST_COLUMN, FIRST, END, PART_OF, N_PARTS, AT, PART_WORDS }; // of a dpart

/* A part, a word a lane; nothing waits for it before it is used. */
__device__ int load_words(const arguments &p, int part) {
    int lane = threadIdx.x % 32;
    return load_late(reinterpret_cast<const int *>(p.parts.part + min(part, p.parts.max_parts - 1)) +
                     min(lane, (int)PART_WORDS - 1));
}
__device__ int word_of(int words, int i) { return __shfl_sync(0xffffffffu, words, i); }

/* What is computed before the launch. */
struct warp_plan {
    uint32_t block_bytes, values, key_scales, value_scales; // of the cache's block: its size, and where it has what
    int per_kv;                                             // query heads to a KV head
};

/* The pair after the one that is computed, and what is already being loaded of the one after that. */
template <class S> struct warp_next {
    bool is, is_asked;         // there is one; its copies have begun
    int words, kv, low, first; // low: the first key that is seen; first: that is read
    int first_block, blocks;   // 32 entries of the sequence's table from first_block on, one a lane
    int n_parts, later;
    pair_walk pair; // of later, a part's words

    /* What is to be known before the first copy is on its way; see first_part. */
    __device__ warp_next(const arguments &p, uint32_t item) : pair(p, item) {
        n_parts = load_late(p.parts.n);
        later = load_words(p, pair.part);
        blocks = load_blocks(p, min(pair.part, p.max_seqs - 1), 0);
    }
    __device__ void begin(const arguments &p) {
        int likely = pair.part;
        advance(p);
        if (word_of(words, SEQ) != likely || first_block > 0)
            blocks = load_blocks(p, word_of(words, SEQ), first_block);
    }
    __device__ void step(const arguments &p) {
        advance(p);
        blocks = load_blocks(p, word_of(words, SEQ), first_block);
    }

  private:
    __device__ void advance(const arguments &p) {
        is = pair.part < n_parts, is_asked = !is;
        words = is ? later : 0; // behind the last part lies anything
        kv = pair.kv;
        pair.next(p);
        later = load_words(p, pair.part);
        low = first_visible(p.a, word_of(words, POSITION));
        first = max(word_of(words, FIRST), low & -S::KEYS);
        first_block = first >> __ffs(p.n_slots) - 1;
    }
};

/* One lane of a warp that is together. The compiler knows that it is one, so that copies need no loop over lanes. */
__device__ __forceinline__ bool is_elected() {
    uint32_t is;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.b32 %0, 1, 0, p;\n}" : "=r"(is));
    return is;
}

/* Where a warp stands in its team, and where in shared memory the team leaves sums for each other. */
struct team_place {
    int team, rank;
    uint32_t mail;
};

/* What a warp asks for, ahead of what it computes. */
template <class S> struct warp_copies {
    uint32_t ring, full; // stages, and their barriers
    ring_place at;
    int n_ahead; // stages that are asked for and not yet used up
    int rank;    // in the team
    bool waited;
    // of the pair
    int seq, position, key, end, kv, first_block,
        blocks; // blocks: 32 entries of the sequence's table from first_block on, one a lane

    __device__ warp_copies(const arguments &p, uint32_t ring_, uint32_t barriers, int rank_) {
        ring = ring_, full = barriers, rank = rank_;
        at = {0, 0};
        n_ahead = 0;
        waited = !p.prefetch;
        key = end = 0;
    }
    __device__ void begin(const warp_next<S> &pair) {
        seq = word_of(pair.words, SEQ), position = word_of(pair.words, POSITION), end = word_of(pair.words, END);
        kv = pair.kv, key = pair.first + rank * S::KEYS, first_block = pair.first_block, blocks = pair.blocks;
    }
    __device__ bool has_more() const { return key < end; }
    /* Asks for the next stage of the pair. Keys of this step's own tokens are there when the node before has ended; all
     * others are of earlier steps. */
    __device__ void ask(const arguments &p, const warp_plan &plan) {
        int i = (key >> __ffs(p.n_slots) - 1) - first_block;
        if (!waited && key + S::KEYS > position) {
            wait_for_previous();
            waited = true;
        }
        if (i >= 32) {
            first_block += i;
            blocks = load_blocks(p, seq, first_block);
            i = 0;
        }
        int id = __shfl_sync(0xffffffffu, blocks, i);
        if (is_elected()) {
            uint32_t barrier = full + at.stage * 8, to = ring + at.stage * S::STAGE,
                     row = kv * p.n_slots + (key & (p.n_slots - 1));
            int n = id < 0 ? 0 : min(S::KEYS, end - key), bytes = n * S::DIM, scale_bytes = n * 4 + 15 & ~15;
            const char *from = static_cast<const char *>(p.cache.at) + (uint64_t)(uint32_t)id * plan.block_bytes;
            barrier_expect(barrier, 2 * (bytes + scale_bytes));
            if (n > 0) {
                bulk_copy(to, from + row * S::DIM, bytes, barrier);
                bulk_copy(to + S::SIDE, from + (row * S::DIM + plan.values), bytes, barrier);
                bulk_copy(to + S::SCALES, from + (row * 4 + plan.key_scales), scale_bytes, barrier);
                bulk_copy(to + S::SCALES + S::KEYS * 4, from + (row * 4 + plan.value_scales), scale_bytes, barrier);
            }
        }
        __syncwarp();
        at.next(S::N_STAGES);
        key += S::STEP;
        n_ahead++;
    }
    /* As much as there is room for, of the next pair too. */
    __device__ void fill(const arguments &p, const warp_plan &plan, warp_next<S> &next, int most) {
#pragma unroll 1
        while (n_ahead < most) {
            if (has_more()) {
                ask(p, plan);
            } else {
                if (next.is_asked)
                    return;
                next.is_asked = true;
                begin(next);
            }
        }
    }
};

/* The queries of a pair as the right operand: of 16 channels of its column a lane has four. Columns that nobody has are
 * the last's. */
template <class S>
__device__ void load_warp_queries(const arguments &p, int words, int kv, int per_kv, const warp_place &at,
                                  uint2 (&q)[S::PIECES]) {
    int64_t from =
        word_of(words, ROW) * p.q.stride + (int64_t)(kv * per_kv + min(at.group, per_kv - 1)) * S::DIM + 4 * at.quarter;
    const char *row = static_cast<const char *>(p.q.at) + from * (p.q.element == ELEMENT_F32 ? 4 : 2);
    if (p.q.element == ELEMENT_F16) {
#pragma unroll
        for (int c = 0; c < S::PIECES; c++)
            q[c] = __ldcg(reinterpret_cast<const uint2 *>(row) + 4 * c);
    } else {
#pragma unroll
        for (int c = 0; c < S::PIECES; c++) {
            float4 x = __ldcg(reinterpret_cast<const float4 *>(row) + 4 * c);
            q[c] = {to_pair<false>(x.x, x.y), to_pair<false>(x.z, x.w)};
        }
    }
}

// ---- how a pair ends --------------------------------------------------------------------------------------------

/* Sums of a team's warps become those of all, in each of them of its OWN pieces of channels, which are o[0] to o[OWN -
 * 1] then. All of a team compute the same base and total, in the order of ranks. */
template <class S>
__device__ void join_team(const team_place &seat, const warp_place &at, warp_sums &o, float (&total)[2]) {
    int rank = seat.rank;
    bool has_stage = o.reference > 0;
    float by = has_stage ? o.reference * (1 / WARP_UNIT) : 0, own[S::OWN][4];
    uint32_t mine = seat.mail + rank * S::MAIL;
    threads_sync(1 + seat.team, 32 * S::TEAM); // what was left for the pair before is read
#pragma unroll
    for (int c = 0; c < S::PIECES; c++) {
        int to = c / S::OWN;
        float4 x = {o.o[c][0] * by, o.o[c][1] * by, o.o[c][2] * by, o.o[c][3] * by};
        if (to == rank)
            own[c % S::OWN][0] = x.x, own[c % S::OWN][1] = x.y, own[c % S::OWN][2] = x.z, own[c % S::OWN][3] = x.w;
        else
            store_shared_floats(mine + (c - (to > rank ? S::OWN : 0)) * 512 + at.lane * 16, x);
    }
    if (at.group == 0)
        store_shared_floats(mine + S::ENDS + at.quarter * 16, has_stage
                                                                  ? float4{o.base[0], total[0], o.base[1], total[1]}
                                                                  : float4{-INFINITY, 0, -INFINITY, 0});
    threads_sync(1 + seat.team, 32 * S::TEAM); // all of the team have left their sums
    float4 ends[S::TEAM];
    o.base[0] = o.base[1] = -INFINITY;
#pragma unroll
    for (int i = 0; i < S::TEAM; i++) {
        ends[i] = load_shared_floats(seat.mail + i * S::MAIL + S::ENDS + at.quarter * 16);
        o.base[0] = fmaxf(o.base[0], ends[i].x), o.base[1] = fmaxf(o.base[1], ends[i].z);
    }
    total[0] = total[1] = 0;
    o.clear_sums();
#pragma unroll
    for (int i = 0; i < S::TEAM; i++) {
        float w0 = weight_of(ends[i].x, o.base[0]), w1 = weight_of(ends[i].z, o.base[1]);
        total[0] += ends[i].y * w0, total[1] += ends[i].w * w1;
        uint32_t from = seat.mail + i * S::MAIL + (rank - (rank > i)) * S::OWN * 512 + at.lane * 16;
#pragma unroll
        for (int c = 0; c < S::OWN; c++) {
            float4 x = {own[c][0], own[c][1], own[c][2], own[c][3]};
            if (i != rank)
                x = load_shared_floats(from + c * 512);
            o.o[c][0] += x.x * w0, o.o[c][1] += x.y * w1;
            o.o[c][2] += x.z * w0, o.o[c][3] += x.w * w1;
        }
    }
    o.reference = WARP_UNIT;
}

/* The parts of a sequence, by the warp that ends last, in their order: o, base and l become those of all. Other warps
 * get false. The ranks of a team count for themselves. */
template <class S>
__device__ bool join_warp_parts(const arguments &p, int words, int kv, int rank, const warp_place &at, warp_sums &o,
                                float (&total)[2]) {
    int n_parts = word_of(words, N_PARTS), first = word_of(words, AT),
        stride = p.a.n_kv_heads * S::COLUMNS * (S::DIM + 2);
    float *base = p.parts.partial + ((int64_t)first * p.a.n_kv_heads + kv) * S::COLUMNS * (S::DIM + 2);
    float *mine = base + (int64_t)word_of(words, PART_OF) * stride, by = o.reference * (1 / WARP_UNIT);
#pragma unroll
    for (int c = 0; c < S::OWN; c++)
        __stcg(reinterpret_cast<float4 *>(mine) + (rank * S::OWN + c) * 32 + at.lane,
               float4{o.o[c][0] * by, o.o[c][1] * by, o.o[c][2] * by, o.o[c][3] * by});
    if (at.group == 0)
        __stcg(reinterpret_cast<float4 *>(mine + S::COLUMNS * S::DIM) + at.quarter,
               float4{o.base[0], total[0], o.base[1], total[1]});
    __syncwarp();
    int n = 0;
    if (at.lane == 0) {
        int32_t *arrived = p.parts.arrived + (int64_t)(first + rank) * p.a.n_kv_heads + kv;
        asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;" : "=r"(n) : "l"(arrived) : "memory");
        if (n == n_parts - 1)
            *arrived = 0;
    }
    if (__shfl_sync(0xffffffffu, n, 0) != n_parts - 1)
        return false;
    __syncwarp();
    const float4 *ends = reinterpret_cast<const float4 *>(base + S::COLUMNS * S::DIM) + at.quarter;
    o.clear_sums();
    o.base[0] = o.base[1] = -INFINITY;
    for (int i = 0; i < n_parts; i++) {
        float4 end = __ldcg(ends + (int64_t)i * stride / 4);
        o.base[0] = fmaxf(o.base[0], end.x), o.base[1] = fmaxf(o.base[1], end.z);
    }
    total[0] = total[1] = 0;
#pragma unroll 2
    for (int i = 0; i < n_parts; i++) {
        const float4 *from =
            reinterpret_cast<const float4 *>(base + (int64_t)i * stride) + rank * S::OWN * 32 + at.lane;
        float4 end = __ldcg(ends + (int64_t)i * stride / 4), x[S::OWN];
#pragma unroll
        for (int c = 0; c < S::OWN; c++)
            x[c] = __ldcg(from + c * 32);
        float w0 = exp2_fast(end.x - o.base[0]), w1 = exp2_fast(end.z - o.base[1]);
        total[0] += end.y * w0;
        total[1] += end.w * w1;
#pragma unroll
        for (int c = 0; c < S::OWN; c++) {
            o.o[c][0] += x[c].x * w0, o.o[c][1] += x[c].y * w1;
            o.o[c][2] += x[c].z * w0, o.o[c][3] += x[c].w * w1;
        }
    }
    o.reference = WARP_UNIT;
    return true;
}

/* This lane's channels of its columns, by a store of pairs of pair_bytes. */
template <class S, class STORE>
__device__ void store_warp_columns(const arguments &p, int64_t first, int per_kv, int rank, const warp_place &at,
                                   const warp_sums &o, int pair_bytes, STORE store) {
#pragma unroll
    for (int k = 0; k < 2; k++) {
        int column = 2 * at.quarter + k;
        char *to =
            static_cast<char *>(p.out.at) + ((first + column * S::DIM) / 2 + at.group + 8 * S::OWN * rank) * pair_bytes;
        if (column < per_kv)
#pragma unroll
            for (int c = 0; c < S::OWN; c++)
                store(to + 8 * c * pair_bytes, o.o[c][k], o.o[c][2 + k]);
    }
}

__device__ float larger_or_nan(float a, float b) {
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(fabsf(b)));
    return y;
}

template <class S>
__device__ void finish_warp_pair(const arguments &p, int words, int kv, int per_kv, const team_place &seat,
                                 const warp_place &at, const float (&sink)[2], warp_sums &o) {
    float total[2] = {sum_of_keys(o.l[0]), sum_of_keys(o.l[1])};
    if constexpr (S::TEAM > 1)
        join_team<S>(seat, at, o, total);
    if (word_of(words, N_PARTS) > 1 && !join_warp_parts<S>(p, words, kv, seat.rank, at, o, total))
        return;
    float most = 0;
#pragma unroll
    for (int k = 0; k < 2; k++) {
        float top = fmaxf(o.base[k], sink[k]), w = weight_of(o.base[k], top);
        float by = o.reference * (1 / WARP_UNIT) * __fdividef(w, total[k] * w + weight_of(sink[k], top));
        by = 2 * at.quarter + k < per_kv ? by : 0.0f;
#pragma unroll
        for (int c = 0; c < S::OWN; c++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                o.o[c][2 * h + k] *= by;
                most = larger_or_nan(most, o.o[c][2 * h + k]);
            }
    }
    int row = word_of(words, ROW);
    int64_t first = row * p.out.stride + (int64_t)kv * per_kv * S::DIM;
    if (p.out.element == ELEMENT_F32)
        store_warp_columns<S>(p, first, per_kv, seat.rank, at, o, 8, [](char *to, float x, float y) {
            *reinterpret_cast<float2 *>(to) = {x, y};
        });
    else
        store_warp_columns<S>(p, first, per_kv, seat.rank, at, o, 4, [&](char *to, float x, float y) {
            *reinterpret_cast<uint32_t *>(to) =
                p.out.element == ELEMENT_F16 ? to_pair<false>(x, y) : to_pair<true>(x, y);
        });
    if (p.out.absmax)
        fold_absmax(p.out.absmax, row, most);
}

// ---- pairs ------------------------------------------------------------------------------------------------------

template <class S>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
    attention_decode_warps(const __grid_constant__ arguments p, const __grid_constant__ warp_plan plan) {
    extern __shared__ char shared[];
    int warp = threadIdx.x / 32, per_kv = plan.per_kv, words = 0, kv = 0, key = 0;
    warp_place at;
    uint32_t rings = (shared_address(shared) + 127) & ~127, ring = rings + warp * S::N_STAGES * S::STAGE;
    uint32_t mails = rings + S::WARPS * S::N_STAGES * S::STAGE,
             full = mails + S::WARPS * S::MAIL + warp * S::N_STAGES * 8;
    team_place seat = {warp / S::TEAM, warp % S::TEAM, mails + warp / S::TEAM * S::TEAM * S::MAIL};
    if (!p.prefetch)
        wait_for_previous();
    warp_next<S> next(p, blockIdx.x + seat.team * gridDim.x);
    if (is_elected()) {
        for (int i = 0; i < S::N_STAGES; i++)
            barrier_init(full + i * 8, 1);
        barrier_init_done();
    }
    __syncwarp();
    next.begin(p);
    warp_copies<S> copies(p, ring, full, seat.rank);
    ring_place r = {0, 0};
    warp_pair c = {0, 0, p.a.scale * 1.4426950408889634f};
    warp_sums o;
    uint2 q[S::PIECES];
    float sink[2];
    bool has_begun = false, is_first = false;
    for (;;) {
        copies.fill(p, plan, next, has_begun ? S::N_STAGES : S::N_BEGUN);
        if (key >= c.end) {
            if (has_begun)
                finish_warp_pair<S>(p, words, kv, per_kv, seat, at, sink, o);
            if (!next.is)
                break;
            if (!has_begun) {
                wait_for_previous();
                copies.waited = true;
                let_next_start();
            }
            has_begun = true;
            words = next.words, kv = next.kv;
            load_warp_queries<S>(p, words, kv, per_kv, at, q);
            c.low = next.low, c.end = word_of(words, END), key = next.first + seat.rank * S::KEYS;
            next.step(p);
            for (int k = 0; k < 2; k++)
                sink[k] = p.sinks.at
                              ? load(p.sinks, kv * per_kv + min(2 * at.quarter + k, per_kv - 1)) * 1.4426950408889634f
                              : -INFINITY;
            o.clear();
            is_first = true;
            if (S::TEAM > 1 && (key >= c.end || copies.n_ahead < S::N_STAGES))
                continue; // asks for more first; a short pair has no stage for this warp
        }
        warp_stage<S> d;
        float s[S::M_TILES][4];
        uint32_t weights[2 * S::M_TILES];
        barrier_wait(full + r.stage * 8, r.parity);
        d.load(ring + r.stage * S::STAGE, at);
        d.scores(q, s);
        r.next(S::N_STAGES);
        __syncwarp(); // the stage is read
        copies.n_ahead--;
        if (copies.has_more())
            copies.ask(p, plan);
        warp_weights<S>(p, key, c, at, s, is_first, d, o, weights);
        d.add_values(weights, o);
        is_first = false;
        key += S::STEP;
    }
    if (!has_begun) {
        wait_for_previous();
        let_next_start();
    }
}

template <int TEAM>
void start_teams(const launch *l, const dattention *a, const dparts *parts, bool prefetch, dmat q, dweight sinks,
                 dcache cache, dmat out) {
    typedef warp_shape<TEAM> S;
    allow_shared(attention_decode_warps<S>, S::SHARED);
    int n_teams = attention_teams(TEAM);
    arguments p = taken_by(n_teams, arguments_of(l, *a, *parts, prefetch, q, sinks, cache, out));
    uint32_t side = a->n_kv_heads * l->block_size;
    warp_plan plan = {(uint32_t)cache.block_elements, side * S::DIM, side * 2 * S::DIM, side * (2 * S::DIM + 4),
                      a->n_heads / a->n_kv_heads};
    launch_node(attention_decode_warps<S>, n_teams / S::TEAMS, S::THREADS, S::SHARED, l->stream, p, plan);
}

} // namespace

void launch_attention_decode_warps(const launch *l, const dattention *a, const dparts *parts, bool prefetch, dmat q,
                                   dweight sinks, dcache cache, dmat out) {
    auto start = attention_team(l->n_seqs, a->n_kv_heads) == 2 ? start_teams<2> : start_teams<1>;
    start(l, a, parts, prefetch, q, sinks, cache, out);
}
