/* gemm_fp8_prefill.cu - products of hundreds and thousands of rows of e4m3, as prompts have them: unscaled products
 * (value.h), or LINEAR with GATED_ACT behind it.
 *
 *     y [M, out] = x [M, in] W^T                                                    x and W e4m3, y in half precision
 *     y [M, F] = act(x Wg^T + bg) * (x Wu^T + bu),  W = [Wg; Wu] of 2F rows         with a scale a row of x and W
 *
 * Mathematics by wgmma with tokens as the first operand, m64nNk32, 64 tokens by N rows of W from shared memory, sums in
 * half precision (e4m3_norm, value.h: none overflows). These take less energy than sums in float32, which is what such
 * products wait for, and half the registers, so tiles can be twice as large and bring half as much out of the L2, each
 * byte of which costs as much as 40 multiply-adds.
 *
 *     tile    256 tokens by some rows of W, in one product or two beside each other; of pairs one half of the rows are
 *             gates, the other what they let through, so that a lane has both
 *     block   two warpgroups, each with 128 of the tokens, in two parts of 64, and a thread that copies. A ring of
 *             stages, 128 bytes of each row of W and of x, is filled by bulk copies of tensor maps, in the 128-byte
 *             swizzle that wgmma reads. A block takes tile after tile; the ring runs on.
 *     cluster two blocks that share W, where tokens make an even number of tiles: the same rows and each other tokens.
 *             Each copies half of the rows to both (multicast), so that they leave the L2 once for both.
 *
 * Weights are never written, so a block alone has the ring full of them before the wait for the node before; tokens
 * follow into the same stages.
 *
 * The end of a tile (gemm_fp8_prefill_ends.cuh): nothing hides it, but it comes once in some 50,000 cycles, and needs
 * no shared memory, of which tiles of 336 rows leave none; the ring is filled meanwhile. Beside the y of pairs it may
 * write its e4m3 qact by a scale known beforehand, of the 16 bits as they leave (dmat.static_scale), and leave out of y
 * what that tells (untold_only). */
#include "backend/cuda/linear/fp8/gemm_fp8_gated.h"
#include "backend/cuda/linear/fp8/gemm_fp8_prefill.h"
#include "backend/cuda/linear/fp8/gemm_fp8_prefill_ends.cuh"
#include "backend/cuda/ptx/launching.cuh"
#include "backend/cuda/ptx/wgmma_e4m3_f16.cuh"
#include "backend/cuda/value.h"

#include <type_traits>

namespace {

enum { GROUPS = 2, GROUP_TOKENS = PARTS * PART_TOKENS, TOKENS = GROUPS * GROUP_TOKENS };
enum {
    CONSUMERS = GROUPS * WARPGROUP,
    THREADS = CONSUMERS + WARPGROUP,
    WARPS = CONSUMERS / 32,
    X_BYTES = TOKENS * PIECE_BYTES
};
enum { SHARED_MOST = 227 << 10, BARRIER_BYTES = 256 };

enum gemm_prefill_end { RAW, BIASED, GATED, SILU }; // BIASED: pairs with biases; SILU: GATED by that

/* Shared memory: the ring, stages of [rows of W][128 bytes], [tokens][128 bytes]; of pairs scales for each warpgroup.
 */
template <int N, int COUNT, gemm_prefill_end END> struct tile_shape {
    static constexpr int ROWS = N * COUNT, COLUMNS = END != RAW ? ROWS / 2 : ROWS; // of W; of y
    static constexpr int W_BYTES = ROWS * PIECE_BYTES, STAGE_BYTES = W_BYTES + X_BYTES;
    using end = std::conditional_t<END == RAW, unscaled_end<ROWS>, gated_end<ROWS, END == SILU, END == BIASED>>;
    static constexpr int REST = ATOM + GROUPS * end::SCALES;
    static constexpr int STAGES = (SHARED_MOST - BARRIER_BYTES - REST) / STAGE_BYTES,
                         SHARED = REST + STAGES * STAGE_BYTES;
    static_assert(ROWS % 16 == 0 && W_BYTES / 2 % ATOM == 0 && STAGES >= 3 && 16 * STAGES <= BARRIER_BYTES, "");
};

/* The tiles of a cluster, one after the other: those of the same rows of W and all tokens lie together. */
template <int SHARERS> struct tile_walk {
    int at, step, n, abreast, rank;
    __device__ tile_walk(const gemm_prefill_args &a)
        : at(blockIdx.x / SHARERS), step(gridDim.x / SHARERS), n(a.n_tiles), abreast(a.token_tiles / SHARERS),
          rank(SHARERS > 1 ? cluster_rank() : 0) {}
    __device__ bool there() const { return at < n; }
    __device__ void next() { at += step; }
    __device__ int first_token() const { return (at % abreast * SHARERS + rank) * TOKENS; }
    __device__ int row_tile() const { return at / abreast; }
};

template <int N, int COUNT, gemm_prefill_end END, int SHARERS> struct block {
    using S = tile_shape<N, COUNT, END>;
    const gemm_prefill_args &a;
    uint32_t ring, scales, full, empty; // in shared memory
    int rank;                           // in the cluster

    /* barriers: full, a stage's bytes have come; empty, both warpgroups of all blocks that share it are done with it.
     */
    __device__ block(const gemm_prefill_args &a, uint32_t ring, uint32_t barriers)
        : a(a), ring(ring), scales(ring + S::STAGES * S::STAGE_BYTES), full(barriers), empty(barriers + S::STAGES * 8),
          rank(SHARERS > 1 ? cluster_rank() : 0) {}

    // ---- copying: one thread's ----

    __device__ void prepare() const {
        for (int i = 0; i < S::STAGES; i++) {
            barrier_init(full + i * 8, 1);
            barrier_init(empty + i * 8, GROUPS * SHARERS);
        }
        barrier_init_done();
        fence_bulk();
    }
    /* Two that share copy half of the rows each, to both. Of pairs one half are gates. */
    __device__ void put_w(const CUtensorMap *map, int slot, int row_tile, int i, uint64_t policy) const {
        constexpr int HALF = S::ROWS / 2, HALF_BYTES = S::W_BYTES / 2;
        uint32_t to = ring + slot * S::STAGE_BYTES, there = full + slot * 8;
        int column = i * PIECE_BYTES, row = row_tile * (END != RAW ? HALF : S::ROWS),
            apart = END != RAW ? a.n_columns : HALF;
        barrier_expect(there, S::STAGE_BYTES);
        if (SHARERS > 1) {
            bulk_copy_box_to(3, to + rank * HALF_BYTES, map, column, row + rank * apart, there, policy);
        } else {
            bulk_copy_box(to, map, column, row, there, policy);
            bulk_copy_box(to + HALF_BYTES, map, column, row + apart, there, policy);
        }
    }
    __device__ void put_x(const CUtensorMap *map, int slot, int token, int i, uint64_t policy) const {
        bulk_copy_box(ring + slot * S::STAGE_BYTES + S::W_BYTES, map, i * PIECE_BYTES, token, full + slot * 8, policy);
    }
    /* W of the first tile into all of the ring goes before the wait. */
    __device__ void feed(const CUtensorMap *w_map, const CUtensorMap *x_map) const {
        const uint64_t of_w = policy_read_again(), often = policy_read_often();
        tile_walk<SHARERS> tile(a);
        int n_early = tile.there() ? min(a.n_pieces, (int)S::STAGES) : 0;
        for (int i = 0; i < n_early; i++)
            put_w(w_map, i, tile.row_tile(), i, of_w);
        wait_for_previous();
        ring_place at = {0, S::STAGES, 1}; // the parity of the round before, whose end is waited for
        bool refills = false;
        for (int early = n_early; tile.there(); tile.next()) {
            const int row_tile = tile.row_tile(), token = tile.first_token();
            for (int i = 0; i < a.n_pieces; i++) {
                if (refills)
                    barrier_wait(empty + at.slot * 8, at.parity);
                if (early > 0)
                    early--;
                else
                    put_w(w_map, at.slot, row_tile, i, of_w);
                put_x(x_map, at.slot, token, i, often);
                at.step();
                refills = refills || at.slot == 0;
            }
        }
    }

    // ---- products: a warpgroup's ----

    uint32_t told; // of the block whom this lane tells that a slot is free; 0: nobody
    warp_sums<S::ROWS> sums;

    __device__ void release(int slot) const {
        if (slot >= 0 && told)
            barrier_arrive_at_rank(told + slot * 8);
    }
    __device__ __forceinline__ auto sums_of(int part, int c) -> uint32_t (&)[N / 4] {
        return reinterpret_cast<uint32_t(&)[N / 4]>(sums[part][c * (N / 4)]);
    }
    __device__ __forceinline__ void multiply_stage(uint64_t x, uint64_t w, bool add) {
#pragma unroll
        for (int k = 0; k < PIECE_BYTES / E4M3_K; k++)
#pragma unroll
            for (int part = 0; part < PARTS; part++)
#pragma unroll
                for (int c = 0; c < COUNT; c++)
                    e4m3_half_product<N>::multiply(sums_of(part, c),
                                                   x + k * E4M3_K_STEP + part * (PART_TOKENS * PIECE_BYTES >> 4),
                                                   w + k * E4M3_K_STEP + c * (N * PIECE_BYTES >> 4), add || k > 0);
    }
    __device__ __forceinline__ void multiply(ring_place &at, int group) {
        const uint64_t first = operand_rows(ring), high = first & 0xffffffff00000000u;
        int last = -1;
        for (int i = 0; i < a.n_pieces; i++) {
            uint32_t w = of_warp((uint32_t)first + at.slot * (S::STAGE_BYTES >> 4));
            barrier_wait(full + at.slot * 8, at.parity);
            products_begin();
            multiply_stage(high | (w + (S::W_BYTES + group * GROUP_TOKENS * PIECE_BYTES >> 4)), high | w, i > 0);
            products_commit();
            products_wait<1>(); // of the stage before
            release(last);
            last = at.slot;
            at.step();
        }
        products_wait<0>();
#pragma unroll
        for (int part = 0; part < PARTS; part++)
            registers_settle(sums[part]);
        release(last);
    }

    // ---- tile after tile ----

    __device__ void compute_raw(int group, int warp, int lane) {
        const typename S::end end = {a, lane};
        ring_place at = {0, S::STAGES, 0};
        for (tile_walk<SHARERS> tile(a); tile.there(); tile.next()) {
            multiply(at, group);
            wait_for_previous(); // who reads y has
            end.write(sums, tile.row_tile() * S::COLUMNS,
                      tile.first_token() + group * GROUP_TOKENS + warp % 4 * TILE_TOKENS);
        }
    }
    __device__ void compute_gated(int group, int warp, int lane) {
        typename S::end end = {a, scales + group * S::end::SCALES, lane, {}};
        ring_place at = {0, S::STAGES, 0};
        for (tile_walk<SHARERS> tile(a); tile.there(); tile.next()) {
            const int column = tile.row_tile() * S::COLUMNS,
                      token = tile.first_token() + group * GROUP_TOKENS + warp % 4 * TILE_TOKENS;
            threads_sync(1 + group, WARPGROUP); // nobody reads scales of the tile before
            end.fetch_scales(column);
            wait_for_previous();
            end.fetch_x_scales(token);
            multiply(at, group);
            asm volatile("cp.async.wait_all;" ::: "memory");
            threads_sync(1 + group, WARPGROUP); // scales are there
            if (a.y_element == ELEMENT_F16)
                end.template write<false>(sums, column, token);
            else
                end.template write<true>(sums, column, token);
        }
    }
    __device__ void compute(int warp, int lane) {
        told = warp % 4 > 0 || lane >= SHARERS ? 0 : SHARERS > 1 ? address_at_rank(empty, lane) : empty;
        if constexpr (END == RAW)
            compute_raw(warp / 4, warp, lane);
        else
            compute_gated(warp / 4, warp, lane);
        wait_for_previous();
    }
};

/* Registers that the copying warpgroup leaves go to the others' sums. */
template <int N, int COUNT, gemm_prefill_end END, int SHARERS>
__global__ void __launch_bounds__(THREADS, 1)
    gemm_prefill_product(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap x_map,
                         const __grid_constant__ gemm_prefill_args a) {
    let_next_start();
    extern __shared__ unsigned char unaligned[];
    __shared__ uint64_t barriers[2 * tile_shape<N, COUNT, END>::STAGES];
    block<N, COUNT, END, SHARERS> b(a, kept((shared_address(unaligned) + ATOM - 1) & ~(uint32_t)(ATOM - 1)),
                                    kept(shared_address(barriers)));
    int warp = (int)of_warp(threadIdx.x / 32), lane = threadIdx.x % 32;
    if (threadIdx.x == CONSUMERS)
        b.prepare();
    __syncthreads();
    if (SHARERS > 1)
        cluster_sync(); // barriers are ready
    if (warp >= WARPS) {
        registers_fewer<40>();
        if (threadIdx.x == CONSUMERS)
            b.feed(&w_map, &x_map);
        __syncwarp();
    } else {
        registers_more<232>();
        b.compute(warp, lane);
        __syncwarp();
    }
    if (SHARERS > 1)
        cluster_sync(); // others copy to this block, and tell it that they are done, to the end
}

// ---- how it is cut --------------------------------------------------------------------------------------------------

int up_to(int n, int of) { return (n + of - 1) / of; }

using kernel = void (*)(CUtensorMap, CUtensorMap, gemm_prefill_args);
struct instance {
    struct gemm_prefill_cut cut;
    int shared;
    kernel run;
};
#define INSTANCE(N, COUNT, END, SHARERS) \
    { {N * COUNT, SHARERS}, tile_shape<N, COUNT, END>::SHARED, gemm_prefill_product<N, COUNT, END, SHARERS> }
#define INSTANCES_OF(N, COUNT, END) INSTANCE(N, COUNT, END, 1), INSTANCE(N, COUNT, END, 2)
const instance INSTANCES[GEMM_PREFILL_CUTS] = {INSTANCES_OF(192, 1, RAW), INSTANCES_OF(224, 1, RAW),
                                               INSTANCES_OF(256, 1, RAW), INSTANCES_OF(144, 2, RAW),
                                               INSTANCES_OF(168, 2, RAW)};
const instance OF_PAIRS[] = {INSTANCES_OF(256, 1, GATED), INSTANCES_OF(144, 2, GATED), INSTANCES_OF(168, 2, GATED)};
const instance OF_SILU[] = {INSTANCES_OF(256, 1, SILU), INSTANCES_OF(144, 2, SILU), INSTANCES_OF(168, 2, SILU)};
const instance OF_BIASED[] = {INSTANCES_OF(256, 1, BIASED)};

int blocks_of(const instance *i) { // that run at once; all fill a multiprocessor
    return blocks_at_once(i->run, i->cut.sharers, THREADS, i->shared);
}

/* All tiles; those that a cluster computes together count once. */
int tiles_of(const instance *i, struct dweight w, int n_rows) {
    return up_to((int)w.out, i->cut.rows) * (up_to(n_rows, TOKENS) / i->cut.sharers);
}

/* What it costs, in cycles of the tensor core on each multiprocessor. Energy is what counts, as power sets the clock: a
 * byte that a block alone gets out of the L2 costs as much as 0.0095 of them, 0.0055 if two share it; one that waits
 * costs about half, as a higher clock makes up for a part of it. The ends of tiles of many rows take longer than those
 * of others, by END cycles a row beyond LARGE (measured; why is not known). */
double cost_of(const instance *i, struct dweight w, int n_rows) {
    const double BYTE = 0.0095, SHARED_BYTE = 0.0055, WAITS = 0.55, END = 80;
    const int LARGE = 240;
    double rows = i->cut.rows, w_byte = i->cut.sharers > 1 ? SHARED_BYTE : BYTE;
    double tile = up_to((int)w.in, PIECE_BYTES) * (8 * rows + PIECE_BYTES * (TOKENS * BYTE + rows * w_byte));
    int blocks = blocks_of(i), busy = tiles_of(i, w, n_rows) * i->cut.sharers, passes = up_to(busy, blocks);
    return (busy + (passes * blocks - busy) * WAITS) / blocks * tile + passes * END * (rows > LARGE ? rows - LARGE : 0);
}

/* Of what it costs, what the terms alone would: without copies, waiting and rows that are not there. Where less is left
 * the library is as fast, behind whose product of pairs a GATED_ACT is to come. */
const double WORTH = 0.72, WORTH_OF_PAIRS = 0.7;

double use_of(const instance *i, struct dweight w, int n_rows) {
    return (double)n_rows * (double)w.out * (double)w.in / (4096.0 * blocks_of(i)) / cost_of(i, w, n_rows);
}

bool shares(const instance *i, int n_rows) { return up_to(n_rows, TOKENS) % i->cut.sharers == 0; }

bool lies_well(struct dweight w, struct dmat x, struct dmat y) {
    return w.element == ELEMENT_E4M3 && x.element == ELEMENT_E4M3 && w.in % 16 == 0 && x.stride % 16 == 0 &&
           (uintptr_t)w.at % 16 == 0 && (uintptr_t)x.at % 16 == 0 && (uintptr_t)y.at % 16 == 0 && y.stride % 8 == 0 &&
           w.out <= INT32_MAX / 4 && w.in <= GEMM_PREFILL_MOST_IN;
}

cudaError_t launch_instance(cudaStream_t stream, const instance *i, int n_rows, struct dweight w, struct dmat x,
                            struct dmat y, gemm_prefill_args args) {
    CUtensorMap w_map, x_map;
    cuuint64_t w_size[2] = {(cuuint64_t)w.in, (cuuint64_t)w.out}, w_stride[1] = {(cuuint64_t)w.in};
    cuuint64_t x_size[2] = {(cuuint64_t)x.width, (cuuint64_t)n_rows}, x_stride[1] = {(cuuint64_t)x.stride};
    cuuint32_t w_box[2] = {PIECE_BYTES, (cuuint32_t)i->cut.rows / 2}, x_box[2] = {PIECE_BYTES, TOKENS};
    if (!shares(i, n_rows) ||
        !encode_rows(&w_map, w.at, 2, w_size, w_stride, w_box, CU_TENSOR_MAP_L2_PROMOTION_L2_128B) ||
        !encode_rows(&x_map, x.at, 2, x_size, x_stride, x_box, CU_TENSOR_MAP_L2_PROMOTION_L2_128B))
        return cudaErrorInvalidValue;
    args.y = y.at;
    args.y_stride = y.stride;
    args.n_tokens = n_rows;
    args.n_pieces = up_to((int)w.in, PIECE_BYTES);
    args.token_tiles = up_to(n_rows, TOKENS);
    args.n_tiles = tiles_of(i, w, n_rows);
    int wanted = args.n_tiles * i->cut.sharers, n_blocks = wanted < blocks_of(i) ? wanted : blocks_of(i);
    cudaFuncSetAttribute(i->run, cudaFuncAttributeMaxDynamicSharedMemorySize, i->shared);
    return launch_cluster(i->run, dim3(n_blocks), i->cut.sharers, dim3(THREADS), i->shared, stream, w_map, x_map, args);
}

/* The cheapest of n, of which the first takes all. */
const instance *best_of(const instance *all, int n, struct dweight w, int n_rows) {
    const instance *best = all;
    for (const instance *i = all + 1; i < all + n; i++)
        if (shares(i, n_rows) && cost_of(i, w, n_rows) < cost_of(best, w, n_rows))
            best = i;
    return best;
}

struct pair_instances {
    const instance *all;
    int n;
};
pair_instances of_pairs(bool silu, bool biased) { // the same tiles with either activation
    if (biased)
        return {OF_BIASED, 2};
    return {silu ? OF_SILU : OF_PAIRS, GEMM_PREFILL_PAIR_CUTS};
}

} // namespace

// ---- unscaled products
// ---------------------------------------------------------------------------------------------------

struct gemm_prefill_cut gemm_prefill_cut_at(int i) {
    return INSTANCES[i].cut;
}

bool gemm_prefill_takes_cut(int n_rows, int cut) { return shares(&INSTANCES[cut], n_rows); }

int gemm_prefill_cut_of(struct dweight w, int n_rows) {
    return (int)(best_of(INSTANCES, GEMM_PREFILL_CUTS, w, n_rows) - INSTANCES);
}

bool gemm_prefill_pays(struct dweight w, int n_rows) {
    return use_of(&INSTANCES[gemm_prefill_cut_of(w, n_rows)], w, n_rows) >= WORTH;
}

bool gemm_prefill_takes(struct dweight w, struct dmat x, struct dmat y, int n_rows) {
    return lies_well(w, x, y) && y.element == ELEMENT_F16 && n_rows >= 1 && w.out % 8 == 0;
}

cudaError_t launch_gemm_prefill_cut(cudaStream_t stream, int n_rows, struct dweight w, struct dmat x, struct dmat y,
                                    int cut) {
    gemm_prefill_args args = {};
    args.n_columns = (int)w.out;
    return launch_instance(stream, &INSTANCES[cut], n_rows, w, x, y, args);
}

cudaError_t launch_gemm_prefill(cudaStream_t stream, int n_rows, struct dweight w, struct dmat x, struct dmat y) {
    return launch_gemm_prefill_cut(stream, n_rows, w, x, y, gemm_prefill_cut_of(w, n_rows));
}

// ---- pairs ----------------------------------------------------------------------------------------------------------

struct gemm_prefill_cut gemm_prefill_pair_cut_at(int i) {
    return OF_SILU[i].cut;
}

int gemm_prefill_pair_cut_of(struct dweight w, bool biased, int n_rows) {
    pair_instances of = of_pairs(true, biased);
    return (int)(best_of(of.all, of.n, w, n_rows) - of.all);
}

bool gemm_prefill_takes_pair_cut(bool biased, int n_rows, int cut) {
    pair_instances of = of_pairs(true, biased);
    return cut < of.n && shares(of.all + cut, n_rows);
}

bool gemm_prefill_gated_pays(struct dweight w, bool biased, int n_rows) {
    return use_of(of_pairs(true, biased).all + gemm_prefill_pair_cut_of(w, biased, n_rows), w, n_rows) >=
           WORTH_OF_PAIRS;
}

bool gemm_prefill_gated_takes(const struct dgated *a, struct dmat x, struct dmat y, int n_rows) {
    return lies_well(a->w, x, y) && x.scale && a->w.scale && n_rows >= 1 && a->w.out % 16 == 0 && a->act <= 1 &&
           (y.element == ELEMENT_F16 || y.element == ELEMENT_BF16);
}

cudaError_t launch_gemm_prefill_gated_cut(cudaStream_t stream, int n_rows, const struct dgated *a, struct dmat x,
                                          struct dmat y, int cut) {
    if (a->qact.at && !is_static_qact(a->qact))
        return cudaErrorInvalidValue;
    gemm_prefill_args args = {};
    args.n_columns = (int)a->w.out / 2;
    args.w_scale = a->w.scale;
    args.bias = a->bias;
    args.x_scale = x.scale;
    args.absmax = y.absmax;
    args.bend = a->act == 0 ? 0.5f : GELU_BEND;
    args.twist = a->act == 0 ? 0 : GELU_TWIST;
    args.y_element = y.element;
    args.qact = static_cast<uint8_t *>(a->qact.at);
    args.qact_stride = a->qact.stride;
    args.qact_factor = 1 / a->qact.static_scale;
    args.untold_only = y.untold_only && a->qact.at;
    return launch_instance(stream, of_pairs(a->act == 0, a->bias).all + cut, n_rows, a->w, x, y, args);
}

cudaError_t launch_gemm_prefill_gated(cudaStream_t stream, int n_rows, const struct dgated *a, struct dmat x,
                                      struct dmat y) {
    return launch_gemm_prefill_gated_cut(stream, n_rows, a, x, y, gemm_prefill_pair_cut_of(a->w, a->bias, n_rows));
}
