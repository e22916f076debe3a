/* gemm_fp8_split_k_tile.cuh - what a block of gemm_fp8_split_k.cu does with its tile: products of all stages, sums that
 * blocks of a cluster send each other, and what is written of them. */
#pragma once

#include "backend/cuda/linear/fp8/gemm_fp8_split_k_feed.cuh"
#include "backend/cuda/ptx/mma.cuh"
#include "backend/cuda/ptx/wgmma_e4m3_f16.cuh"

namespace {

/* Of an octet of columns: those of the first of the thread's two tokens, then of the second. */
static __device__ __forceinline__ uint2 load_pairs(uint32_t at) {
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at) : "memory");
    return v;
}
static __device__ __forceinline__ uint32_t add_pair(uint32_t a, uint32_t b) {
    uint32_t sum;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
    return sum;
}

template <int N, int SPLIT, int SHARERS> struct block : block_feed<N, SPLIT, SHARERS> {
    using S = shape<N, SPLIT>;
    using feed_of = block_feed<N, SPLIT, SHARERS>;
    using feed_of::a, feed_of::w, feed_of::x, feed_of::join, feed_of::full, feed_of::done, feed_of::joined;
    using feed_of::begin, feed_of::fill, feed_of::fill_again, feed_of::feed, feed_of::prepare, feed_of::end_token;
    using feed_of::feed_of;
    using feed_of::rank, feed_of::sharer, feed_of::row_tile, feed_of::token_tile, feed_of::n_pieces;

    // ---- rows of x that are left ----

    __device__ requant_list look(int lane, bool tells) const {
        return look_at_rows(a.requant, token_tile * a.tile_tokens, end_token(), lane, tells);
    }

    // ---- products: a warpgroup's ----

    /* The warpgroup is done with piece i. The other sharer's block is told where it waits for that: behind its last
     * wait it may have ended. */
    __device__ __forceinline__ void release(int i, int slot) const {
        barrier_arrive(done + slot * 8);
        if (SHARERS > 1 && i + S::X_STAGES < n_pieces)
            barrier_arrive_at_rank(address_at_rank(done + slot * 8, (1 - sharer) * SPLIT + rank));
    }

    /* again: the first pieces of x were asked for twice, and their slots are a time round ahead. */
    __device__ __forceinline__ void multiply(uint32_t (&sums)[N / 4], int group, bool tells, bool again) const {
        const uint64_t first_w = operand_rows(w), first_x = operand_rows(x + group * GROUP_TOKENS * PIECE_BYTES);
        const uint64_t high = first_w & 0xffffffff00000000u;
        const uint32_t w0 = kept((uint32_t)first_w), x0 = kept((uint32_t)first_x);
        int slot = 0, x_slot = 0, parity = 0, last = -1;
        for (int i = 0; i < n_pieces; i++) {
            uint32_t at_w = of_warp(w0 + slot * (S::W_BYTES >> 4)), at_x = of_warp(x0 + x_slot * (X_BYTES >> 4));
            barrier_wait(full + slot * 8, parity ^ (again && slot < S::X_STAGES));
            products_begin();
#pragma unroll
            for (int k = 0; k < PIECE_BYTES / E4M3_K; k++)
                e4m3_half_product<N>::multiply(sums, high | (at_x + k * E4M3_K_STEP), high | (at_w + k * E4M3_K_STEP),
                                               i > 0 || k > 0);
            products_commit();
            products_wait<1>(); // of the stage before
            if (last >= 0 && tells)
                release(i - 1, last);
            last = slot;
            x_slot = x_slot + 1 == S::X_STAGES ? 0 : x_slot + 1;
            if (++slot == S::W_STAGES)
                slot = 0, parity ^= 1;
        }
        products_wait<0>();
        registers_settle(sums);
    }

    // ---- the end ----

    /* To each of the others the sums of its columns, for the thread of the same number. */
    template <int TO> __device__ __forceinline__ void send_to(const uint32_t (&sums)[N / 4]) const {
        int from = rank < TO ? rank : rank - 1; // among those who send there
        uint32_t there = address_at_rank(join + from * S::SENT_BYTES + threadIdx.x * PAIRS_BYTES, sharer * SPLIT + TO),
                 counted = address_at_rank(joined, sharer * SPLIT + TO);
#pragma unroll
        for (int j = S::first_of(TO); j < S::first_of(TO + 1); j++)
            store_at_rank(there + (j - S::first_of(TO)) * OCTET_BYTES, make_uint2(sums[2 * j], sums[2 * j + 1]),
                          counted);
    }
    template <int TO> __device__ __forceinline__ void send(const uint32_t (&sums)[N / 4]) const {
        if constexpr (TO < SPLIT) {
            if (TO != rank)
                send_to<TO>(sums);
            send<TO + 1>(sums);
        }
    }

    /* Up to four octets of the tile from BASE on, which block RANK finishes: all sums of the lane's two tokens, for two
     * columns each. */
    template <int RANK, int BASE>
    __device__ __forceinline__ void add_up(uint2 (&v)[4], const uint32_t (&sums)[N / 4]) const {
        constexpr int TO = S::first_of(RANK + 1), FIRST = S::first_of(RANK);
#pragma unroll
        for (int from = 0; from < SPLIT; from++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (BASE + i < TO) {
                    uint2 s = make_uint2(sums[2 * (BASE + i)], sums[2 * (BASE + i) + 1]);
                    if (from != RANK)
                        s = load_pairs(join + (from < RANK ? from : from - 1) * S::SENT_BYTES +
                                       (BASE + i - FIRST) * OCTET_BYTES + threadIdx.x * PAIRS_BYTES);
                    v[i] = from == 0 ? s : make_uint2(add_pair(v[i].x, s.x), add_pair(v[i].y, s.y));
                }
    }
    template <int RANK, int BASE>
    __device__ __forceinline__ void finish(const uint32_t (&sums)[N / 4], int first_token, int lane) const {
        constexpr int TO = S::first_of(RANK + 1);
        if constexpr (BASE < TO) {
            uint32_t staging = w + threadIdx.x / 32 * STAGING, to = staging + lane / 4 * PITCH + lane % 4 * 4;
            uint2 v[4];
            add_up<RANK, BASE>(v, sums);
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (BASE + i < TO) {
                    store_shared(to + i * 16, v[i].x);
                    store_shared(to + i * 16 + 8 * PITCH, v[i].y);
                }
            __syncwarp();
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int token = i * 8 + lane / 4, octet = BASE + lane % 4, column = row_tile * N + octet * 8;
                if (octet < TO && column < a.n_columns && first_token + token < end_token())
                    *reinterpret_cast<uint4 *>(static_cast<char *>(a.y) +
                                               ((first_token + token) * a.y_stride + column) * 2) =
                        load_shared_16(staging + token * PITCH + lane % 4 * 16);
            }
            __syncwarp();
            finish<RANK, BASE + 4>(sums, first_token, lane);
        }
    }
    /* What this block does, whose rank is no constant. */
    template <int RANK>
    __device__ __forceinline__ void finish_own(const uint32_t (&sums)[N / 4], int first_token, int lane) const {
        if constexpr (RANK < SPLIT) {
            if (rank == RANK)
                finish<RANK, S::first_of(RANK)>(sums, first_token, lane);
            else
                finish_own<RANK + 1>(sums, first_token, lane);
        }
    }

    // ---- who does what ----

    /* W is read by the blocks of all token tiles that do not share it. */
    __device__ uint64_t policy() const { return gridDim.y > 1 ? policy_read_again() : policy_read_once(); }

    /* Before all threads meet: one thread makes the barriers ready, and has the first stages of W come, unless others
     * send some of them. */
    __device__ void start(const w_maps &maps, int lane) const {
        if (lane == 0) {
            prepare();
            if (SHARERS == 1)
                begin(maps, policy());
        }
        __syncwarp();
    }
    /* All blocks of the cluster have begun, and their barriers are ready: who shares W knows before he asks for it,
     * others before they send. */
    __device__ void meet_early(const w_maps &maps, bool asks) const {
        if (SHARERS > 1) {
            cluster_are_here();
            if (asks)
                begin(maps, policy());
            __syncwarp();
        }
    }
    __device__ static void meet_late() {
        if (SHARERS == 1)
            cluster_are_here();
    }
    /* x is asked for before it is known whether rows of it are left, which is rare. */
    __device__ void copy(const w_maps &maps, const CUtensorMap *x_map, int lane) const {
        if (lane == 0)
            fill(maps, x_map, policy());
        __syncwarp();
        if (a.requant.value.at && look(lane, row_tile == 0 && rank == 0).any()) {
            copies_may_begin(CONSUMERS);
            if (lane == 0)
                fill_again(x_map);
            __syncwarp();
            threads_arrive(AGAIN, CONSUMERS + 32);
        }
        if (lane == 0)
            feed(maps, x_map, policy());
        __syncwarp();
        meet_late();
    }
    __device__ void compute(int warp, int lane) const {
        uint32_t sums[N / 4] = {}; // a part may have no terms
        int group = warp / 4;
        bool again = false;
        if (a.requant.value.at) {
            requant_list list = look(lane, false);
            again = list.any();
            if (again) {
                if (n_pieces > 0)
                    barrier_wait(full, 0); // x's first stage is there, and nobody's
                requant_rows(a.requant, list, token_tile * a.tile_tokens, x + warp * REQUANT_TOKENS * 4, CONSUMERS,
                             {a.requant.of_tokens + token_tile, row_tile * SPLIT + rank, (int)gridDim.x / SHARERS});
                threads_sync(AGAIN, CONSUMERS + 32);
            }
        }
        multiply(sums, group, threadIdx.x % WARPGROUP == 0, again);
        meet_late();
        send<0>(sums);
        threads_sync(1, CONSUMERS); // nobody reads W's ring any more, which values leave through
        barrier_wait(joined, 0);
        finish_own<0>(sums, token_tile * a.tile_tokens + group * GROUP_TOKENS + warp % 4 * 16, lane);
    }
};

} // namespace
