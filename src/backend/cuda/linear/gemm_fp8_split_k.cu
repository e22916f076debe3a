/* gemm_fp8_split_k.cu - unscaled products (value.h) of 65 and more rows of e4m3, whose terms the blocks of a cluster
 * share.
 *
 *     y [M, out] = x [M, in] W^T          x and W e4m3, y in half precision
 *
 * Mathematics: wgmma m64nNk32 with tokens as the first operand, 64 tokens by N rows of W from shared memory, sums in
 * pairs of halves, which elements of e4m3 are small enough for (value.h): less energy than float32, half of the
 * registers, and half of the bytes where blocks join them.
 *
 *     tile    up to 128 tokens by N rows of W; tokens are spread evenly over their tiles.
 *     cluster SPLIT blocks with the same tile, each with a part of its terms, so that there is work for all
 *             multiprocessors though tiles are large: a block takes in (tokens + N) * in / SPLIT bytes, and what a
 *             multiprocessor takes in, 50 to 60 bytes a cycle, is what bounds these products, not memory. And that for
 *             each of SHARERS tiles of tokens, 1 or 2: those share W, which both take from the L2 in turn for one
 *             another (multicast). Loads alone of down at 256 rows take 33 us where two blocks read each row of W, 23
 *             where one does.
 *     block   two warpgroups, each with 64 of the tokens, and a thread that copies. A ring of stages of W and one of x,
 *             128 bytes of each row, are filled by bulk copies of tensor maps; as many stages of x as W leaves room
 *             for, as x is what is waited for.
 *
 * Weights are never written: BEGUN stages of W are on their way before the wait for the node before; sharers meet
 * first. That is what the library's kernels cannot do, and where most of the gain comes from. What else the rings hold
 * is asked for behind the wait, W and x in turn, as x of the first stages must not stand behind W of all. The block
 * takes less than half of a multiprocessor's registers, so that small nodes before and behind it run beside it; those
 * behind start when all before this one has ended, so that they may read before they wait what that left.
 *
 * Where W is there once more on both sides of the L2, in tiles of N rows (l2_copy.h), a block takes its stages from its
 * own side, if one cluster reads each row. Of 448 and 512 rows two do, which may be of other sides, so that the row
 * would come from memory twice; clusters that claim their tiles so that both are of one side gained nothing there
 * (70,161 to 70,282 tokens/s for 70,070 to 70,299).
 *
 * x may have been written by a static scale, which rows of other sizes must not keep (launch_requantise): then blocks
 * look at the rows' largest sizes while the first of x is copied, and make the rows that it does not fit (requant.cuh);
 * then that is copied again.
 *
 * The end: each block finishes some columns. It gets the others' sums into memory that is for nothing else (nobody
 * waits until rings are free), adds them in the order of the blocks, so that results are the same every time, and
 * writes by way of shared memory, 64 bytes of a token at a time. All is unrolled: with loops and divisions it took 2.4
 * us in place of 1.
 *
 * On an H200, in a step of Qwen2.5-7B of 128 rows: qkv 5.8 us, o 5.2, down 23.4 where the library takes 8.0, 7.7 and
 * 24.7 (docs/lab/cuda_linear_many_rows.md).
 * Tried and lost: sums of each part to memory, added by the node behind (writing them takes 1.7 us); at 128 rows
 * clusters that also share x or W; tiles of 256 tokens, whose ends take 2 to 5 us; four blocks for qkv and o (only 30
 * such clusters have a place at once). */
#include "backend/cuda/device/l2_copy.cuh"
#include "backend/cuda/linear/gemm_fp8_split_k.h"
#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/ptx/launching.cuh"
#include "backend/cuda/ptx/mma.cuh"
#include "backend/cuda/ptx/ring.cuh"
#include "backend/cuda/ptx/wgmma_e4m3_f16.cuh"
#include "backend/cuda/qact/quantise.h"
#include "backend/cuda/qact/requant.cuh"
#include "backend/cuda/value.h"

namespace {

enum { GROUPS = 2, CONSUMERS = GROUPS * WARPGROUP, THREADS = CONSUMERS + 32 };
enum {
    GROUP_TOKENS = 64,
    TOKENS = GROUPS * GROUP_TOKENS,
    X_BYTES = TOKENS * PIECE_BYTES,
    MOST_STAGES = 24,
    SHARED_MOST = 226 << 10
};
enum { PAIRS_BYTES = 8, OCTET_BYTES = CONSUMERS * PAIRS_BYTES }; // of a thread, for eight columns; of all
enum { LINE = 64, PITCH = LINE + 16, STAGING = 16 * PITCH };     // of a warp: 16 tokens, 64 bytes of each
enum { AGAIN = 3 };                                              // a barrier, behind those of requant.cuh
enum { BEGUN = 4 };                                              // stages of W that are asked for before the wait

struct split_k_args {
    void *y;
    int64_t y_stride;
    int n_columns, n_tokens, n_pieces; // of y; of 128 columns of x
    int tile_tokens;                   // a multiple of 8
    requant_args requant;
    dl2_copy l2_copy; // without `at`: W is read where its rows lie
};

struct w_maps {
    CUtensorMap w;
    l2_copy_maps l2_copy; // of split_k_args.l2_copy
};

/* Shared memory: W's ring, x's, then what the others of the cluster send: [from][octet of columns][thread] of two pairs
 * of sums. */
template <int N, int SPLIT> struct shape {
    static constexpr int EIGHTS = N / 8, MOST_EIGHTS = (EIGHTS + SPLIT - 1) / SPLIT, W_BYTES = N * PIECE_BYTES;
    static constexpr int SENT_BYTES = MOST_EIGHTS * OCTET_BYTES, JOIN_BYTES = (SPLIT - 1) * SENT_BYTES;
    static constexpr int w_stages(int of_x) {
        int n = (SHARED_MOST - ATOM - JOIN_BYTES - of_x * X_BYTES) / W_BYTES;
        return n < MOST_STAGES ? n : MOST_STAGES;
    }
    static constexpr int x_stages() { // barriers are those of W's ring, which is the longer one
        int n = 8;
        while (w_stages(n) <= n)
            n--;
        return n;
    }
    static constexpr int X_STAGES = x_stages(), W_STAGES = w_stages(X_STAGES);
    static constexpr int SHARED = ATOM + W_STAGES * W_BYTES + X_STAGES * X_BYTES + JOIN_BYTES;
    static_assert(X_STAGES >= 3 && W_STAGES >= BEGUN && WARPGROUP / 32 * GROUPS * STAGING <= W_STAGES * W_BYTES, "");
    /* The first octet that a block finishes. */
    static constexpr __host__ __device__ int first_of(int rank) { return EIGHTS * rank / SPLIT; }
};

// ---- of a thread
// ------------------------------------------------------------------------------------------------------

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

// ---- a block
// ----------------------------------------------------------------------------------------------------------

template <int N, int SPLIT, int SHARERS> struct block {
    using S = shape<N, SPLIT>;
    const split_k_args &a;
    uint32_t w, x, join, full, done, joined; // in shared memory
    int rank, sharer;                        // among those with the same tile; which of the cluster's tiles
    int side, first_group;                   // of a near copy: what this block reads
    int row_tile, token_tile, piece, n_pieces;

    __device__ int end_token() const { return min(a.n_tokens, (token_tile + 1) * a.tile_tokens); } // of the tile

    /* barriers: full, a stage's bytes have come; done, both warpgroups of all sharers are done with it; joined, all
     * that is sent to this block has come. */
    __device__ block(const split_k_args &a, uint32_t ring, uint32_t barriers)
        : a(a), w(ring), x(ring + S::W_STAGES * S::W_BYTES), join(x + S::X_STAGES * X_BYTES), full(barriers),
          done(barriers + S::W_STAGES * 8), joined(barriers + S::W_STAGES * 16), rank(blockIdx.x % SPLIT),
          sharer(blockIdx.x / SPLIT % SHARERS), side(l2_copy_own_side(a.l2_copy)),
          first_group(l2_copy_group(&a.l2_copy, blockIdx.x / (SPLIT * SHARERS), 0)),
          row_tile(blockIdx.x / (SPLIT * SHARERS)), token_tile(blockIdx.y * SHARERS + sharer),
          piece(a.n_pieces * rank / SPLIT), n_pieces(a.n_pieces * (rank + 1) / SPLIT - piece) {}

    // ---- copying: one thread's ----

    __device__ void prepare() const {
        for (int i = 0; i < S::W_STAGES; i++) {
            barrier_init(full + i * 8, 1);
            barrier_init(done + i * 8, GROUPS * SHARERS);
        }
        barrier_init(joined, 1);
        barrier_init_done();
        barrier_expect(joined, (SPLIT - 1) * (S::first_of(rank + 1) - S::first_of(rank)) * OCTET_BYTES);
        fence_bulk();
    }
    __device__ void put_w(const w_maps &maps, int i, int slot, uint64_t policy) const {
        const int ranks = SHARERS == 1 ? 0 : (1 | 1 << SPLIT) << rank;
        uint32_t to = w + slot * S::W_BYTES, full_there = full + slot * 8;
        barrier_expect(full_there, S::W_BYTES + a.tile_tokens * PIECE_BYTES);
        if (i % SHARERS != sharer) // those bytes may come before this block expects them
            return;
        if (a.l2_copy.at)
            l2_copy_make(a.l2_copy, &maps.l2_copy, first_group, side, piece + i, to, full_there, policy, ranks);
        else if (SHARERS == 1)
            bulk_copy_box(to, &maps.w, (piece + i) * PIECE_BYTES, row_tile * N, full_there, policy);
        else
            bulk_copy_box_to(ranks, to, &maps.w, (piece + i) * PIECE_BYTES, row_tile * N, full_there, policy);
    }
    __device__ void put_x(const CUtensorMap *x_map, int i, int slot, int x_slot, uint64_t policy) const {
        bulk_copy_box(x + x_slot * X_BYTES, x_map, (piece + i) * PIECE_BYTES, token_tile * a.tile_tokens,
                      full + slot * 8, policy);
    }
    __device__ int n_begun() const { return min(n_pieces, (int)BEGUN); }
    __device__ void begin(const w_maps &maps, uint64_t policy) const {
#pragma unroll 1
        for (int i = 0; i < n_begun(); i++)
            put_w(maps, i, i, policy);
    }
    /* What the rings have room for. */
    __device__ void fill(const w_maps &maps, const CUtensorMap *x_map, uint64_t policy) const {
        uint64_t often = policy_read_often();
#pragma unroll 1
        for (int i = 0; i < n_pieces && i < S::W_STAGES; i++) {
            if (i >= n_begun())
                put_w(maps, i, i, policy);
            if (i < S::X_STAGES)
                put_x(x_map, i, i, i, often);
        }
    }
    /* x once more, whose rows have changed: when all is there that was asked for, as that would come over it. */
    __device__ void fill_again(const CUtensorMap *x_map) const {
        uint64_t often = policy_read_often();
#pragma unroll 1
        for (int i = 0; i < n_pieces && i < S::X_STAGES; i++) {
            barrier_wait(full + i * 8, 0);
            barrier_expect(full + i * 8, a.tile_tokens * PIECE_BYTES);
            put_x(x_map, i, i, i, often);
        }
    }
    __device__ void feed(const w_maps &maps, const CUtensorMap *x_map, uint64_t policy) const {
        uint64_t often = policy_read_often();
        int slot = 0, parity = 0, x_slot = 0, x_full = S::X_STAGES;
#pragma unroll 1
        for (int i = 0; i + S::X_STAGES < n_pieces; i++) { // where piece i was there is room
            barrier_wait(done + slot * 8, parity);
            if (i + S::W_STAGES < n_pieces)
                put_w(maps, i + S::W_STAGES, slot, policy);
            put_x(x_map, i + S::X_STAGES, x_full, x_slot, often);
            x_slot = x_slot + 1 == S::X_STAGES ? 0 : x_slot + 1;
            x_full = x_full + 1 == S::W_STAGES ? 0 : x_full + 1;
            if (++slot == S::W_STAGES)
                slot = 0, parity ^= 1;
        }
    }

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

/* No block ends before all that is sent to it has come: sums, W, and that others are done with W. */
template <int N, int SPLIT, int SHARERS>
__global__ void __launch_bounds__(THREADS, 1)
    split_k_product(const __grid_constant__ w_maps maps, const __grid_constant__ CUtensorMap x_map,
                    const __grid_constant__ split_k_args a) {
    extern __shared__ unsigned char unaligned[];
    __shared__ uint64_t barriers[2 * shape<N, SPLIT>::W_STAGES + 1];
    block<N, SPLIT, SHARERS> b(a, kept((shared_address(unaligned) + ATOM - 1) & ~(uint32_t)(ATOM - 1)),
                               kept(shared_address(barriers)));
    int warp = (int)of_warp(threadIdx.x / 32), lane = threadIdx.x % 32;
    bool copies = warp == CONSUMERS / 32;
    if (copies)
        b.start(maps, lane);
    __syncthreads(); // barriers are ready
    cluster_is_here();
    b.meet_early(maps, copies && lane == 0);
    // In this order: who starts behind this node may rely on all before it being done (norm.cu).
    wait_for_previous(); // for x, and for those who read y
    let_next_start();
    if (copies)
        b.copy(maps, &x_map, lane);
    else
        b.compute(warp, lane);
}

// ---- how it is cut --------------------------------------------------------------------------------------------------

int up_to(int n, int of) { return (n + of - 1) / of; }

using kernel = void (*)(w_maps, CUtensorMap, split_k_args);
struct instance {
    struct split_k_cut cut;
    int shared;
    kernel run;
};
#define INSTANCE(N, SPLIT, SHARERS) \
    { {N, SPLIT, SHARERS}, shape<N, SPLIT>::SHARED, split_k_product<N, SPLIT, SHARERS> }
/* Those that share W first, then narrow ones. */
const instance INSTANCES[SPLIT_K_CUTS] = {
    INSTANCE(120, 2, 2), INSTANCE(160, 2, 2), INSTANCE(112, 1, 2), INSTANCE(128, 1, 2), INSTANCE(144, 1, 2),
    INSTANCE(168, 1, 2), INSTANCE(192, 1, 2), INSTANCE(56, 2, 1),  INSTANCE(64, 2, 1),  INSTANCE(72, 2, 1),
    INSTANCE(88, 2, 1),  INSTANCE(96, 2, 1),  INSTANCE(112, 2, 1), INSTANCE(128, 2, 1), INSTANCE(144, 2, 1),
    INSTANCE(168, 2, 1), INSTANCE(120, 4, 1), INSTANCE(144, 4, 1), INSTANCE(184, 4, 1)};

int blocks_of(const instance *i) { return blocks_at_once(i->run, i->cut.split * i->cut.sharers, THREADS, i->shared); }

/* Tiles of tokens of so many rows. */
int token_tiles(const instance *i, int n_rows) { return up_to(n_rows, TOKENS * i->cut.sharers) * i->cut.sharers; }

/* In how many parts. By four blocks where terms are many: joining four takes longer, and x is half as much for each. */
enum { MANY_TERMS = 12288 };
int parts_of(struct dweight w, int tiles) { return tiles > 2 ? 1 : tiles == 1 && w.in >= MANY_TERMS ? 4 : 2; }

/* Per cent: of the blocks that run at once, and of tiles that are tokens, where there are two, two that share W, and
 * more of those. */
enum { WORST_FILL = 85, WORST_TOKENS = 75, WORST_TOKENS_SHARED = 62, WORST_TOKENS_OF_MANY = 87 };
bool suits(const instance *i, struct dweight w, int n_rows) {
    int tiles = token_tiles(i, n_rows), blocks = up_to((int)w.out, i->cut.rows) * tiles * i->cut.split;
    bool shared = i->cut.sharers > 1 ? n_rows > TOKENS : tiles <= 2;
    int worst = tiles > 2 ? WORST_TOKENS_OF_MANY : i->cut.sharers > 1 ? WORST_TOKENS_SHARED : WORST_TOKENS;
    bool full = tiles == 1 || n_rows * 100 >= tiles * TOKENS * worst;
    return shared && full && i->cut.split == parts_of(w, tiles) && blocks <= blocks_of(i) &&
           blocks * 100 >= blocks_of(i) * WORST_FILL;
}

} // namespace

/* One cluster reads each row of W: two of other sides would have the same rows come from memory twice. */
static bool reads_once(const instance *i, int n_rows) { return token_tiles(i, n_rows) == i->cut.sharers; }

int split_k_l2_copy_rows(struct dweight w, int i) {
    int of_few = split_k_cut_of(w, TOKENS), cut = i == 0 ? of_few : split_k_cut_of(w, 2 * TOKENS);
    bool same = i > 0 && cut >= 0 && of_few >= 0 && INSTANCES[cut].cut.rows == INSTANCES[of_few].cut.rows;
    return i > 1 || cut < 0 || same || !reads_once(&INSTANCES[cut], (i + 1) * TOKENS) ? 0 : INSTANCES[cut].cut.rows;
}

/* The copy that a product reads, not one whose tiles have gates beside ups; NULL: none. */
static const dl2_copy *l2_copy_for(const dl2_copy *const *l2_copy, const instance *i, int n_rows) {
    for (int k = 0; l2_copy && k < L2_COPY_SHAPES; k++)
        if (l2_copy[k] && l2_copy[k]->shape.halves == 1 && l2_copy[k]->shape.rows == i->cut.rows &&
            reads_once(i, n_rows))
            return l2_copy[k];
    return nullptr;
}

struct split_k_cut split_k_cut_at(int i) {
    return INSTANCES[i].cut;
}

int split_k_cut_of(struct dweight w, int n_rows) {
    for (int i = 0; i < SPLIT_K_CUTS; i++)
        if (suits(&INSTANCES[i], w, n_rows))
            return i;
    return -1;
}

bool split_k_requantises(struct dweight w, int n_rows) {
    return split_k_cut_of(w, n_rows) >= 0 && n_rows <= REQUANT_MEETINGS * TOKENS;
}

bool split_k_takes(struct dweight w, struct dmat x, struct dmat y, int n_rows) {
    bool in_place = w.in % 16 == 0 && x.stride % 16 == 0 && (uintptr_t)w.at % 16 == 0 && (uintptr_t)x.at % 16 == 0 &&
                    (uintptr_t)y.at % 16 == 0 && y.stride % 8 == 0;
    return w.element == ELEMENT_E4M3 && x.element == ELEMENT_E4M3 && y.element == ELEMENT_F16 && in_place &&
           n_rows >= 1 && w.out % 8 == 0 && w.out <= INT32_MAX / 4 && w.in <= HALF_SUMS_IN;
}

cudaError_t launch_gemm_split_k_cut(cudaStream_t stream, int n_rows, struct dweight w,
                                    const struct dl2_copy *const *l2_copy, struct dmat x, struct dmat y,
                                    const struct drequant *requant, int cut) {
    const instance *i = &INSTANCES[cut];
    int tiles = token_tiles(i, n_rows), tile_tokens = up_to(up_to(n_rows, tiles), 8) * 8;
    w_maps maps = {};
    CUtensorMap x_map;
    cuuint64_t w_size[2] = {(cuuint64_t)w.in, (cuuint64_t)w.out}, w_stride[1] = {(cuuint64_t)w.in};
    cuuint64_t x_size[2] = {(cuuint64_t)x.width, (cuuint64_t)n_rows}, x_stride[1] = {(cuuint64_t)x.stride};
    cuuint32_t w_box[2] = {PIECE_BYTES, (cuuint32_t)i->cut.rows}, x_box[2] = {PIECE_BYTES, (cuuint32_t)tile_tokens};
    if (!encode_rows(&maps.w, w.at, 2, w_size, w_stride, w_box, CU_TENSOR_MAP_L2_PROMOTION_L2_128B) ||
        !encode_rows(&x_map, x.at, 2, x_size, x_stride, x_box, CU_TENSOR_MAP_L2_PROMOTION_L2_128B))
        return cudaErrorInvalidValue;
    split_k_args args = {y.at, y.stride, (int)w.out, n_rows, up_to((int)w.in, PIECE_BYTES), tile_tokens, {}, {}};
    const dl2_copy *read = l2_copy_for(l2_copy, i, n_rows);
    if (read)
        args.l2_copy = *read;
    if (read && !l2_copy_maps_of(read, &maps.l2_copy))
        return cudaErrorInvalidValue;
    if (requant && requant->value.at)
        args.requant = {requant->value, x, requant->of_tokens, requant->others};
    cudaFuncSetAttribute(i->run, cudaFuncAttributeMaxDynamicSharedMemorySize, i->shared);
    int cluster = i->cut.split * i->cut.sharers;
    dim3 grid(up_to((int)w.out, i->cut.rows) * cluster, tiles / i->cut.sharers);
    return launch_cluster(i->run, grid, cluster, dim3(THREADS), i->shared, stream, maps, x_map, args);
}

cudaError_t launch_gemm_split_k(cudaStream_t stream, int n_rows, struct dweight w,
                                const struct dl2_copy *const *l2_copy, struct dmat x, struct dmat y,
                                const struct drequant *requant) {
    int cut = split_k_cut_of(w, n_rows);
    return launch_gemm_split_k_cut(stream, n_rows, w, l2_copy, x, y, requant, cut < 0 ? 0 : cut);
}
