/* gemm_w4_many.cu - LINEAR of many rows by weights of four bits, with GATED_ACT behind it or alone: see core/ops.def
 * and weights/quads.h.
 *
 * Mathematics by wgmma with W as the first operand, from registers: m64nNk16, 64 rows of W by N tokens, sums in
 * float32. A warp's share of such an operand is laid out as that of m16n8k16 is, so the same blocks that gemm_w4.cu
 * streams are decoded on their way into the tensor core, by every warp its tile; that is a tenth of what the product
 * takes.
 *
 *     tile    128 rows of W, 64 to each of two warpgroups, by N tokens
 *     block   tile after tile; one thread fills a ring of stages, 128 columns of W's rows and of the tokens, by a copy
 *             of a tensor map each, which runs on from tile to tile. The fragment of a step is made while the step
 *             before is multiplied
 *     cluster of 128 tokens and more two blocks that share the tokens, with each other rows of W. Each copies half of
 *             the columns to both (multicast), so that they leave the L2 once for both
 *
 * Tiles of the same rows and all tokens lie together: W leaves the memory once. Bytes of a stage: 9 KB of W, 256 N of
 * x, from the L2. */
#include "backend/cuda/linear/w4/gemm_w4_many.h"
#include "backend/cuda/linear/w4/gemm_w4_many_ends.cuh"
#include "backend/cuda/linear/w4/gemm_w4_maps.cuh"
#include "backend/cuda/linear/w4/gemm_w4_product.cuh"
#include "backend/cuda/linear/w4/quads_gguf.cuh"

enum { W4_TILES = 8, W4_GROUPS = 2, W4_MANY_WARPS = W4_GROUPS * WARPGROUP / 32 };

/* Of few tokens a block waits for its weights most of the time: so several are on a multiprocessor. */
static __host__ __device__ constexpr int w4_many_together(int tokens) {
    return tokens <= 32 ? 3 : tokens <= 64 ? 2 : 1;
}
static __host__ __device__ constexpr int w4_many_sharers(int tokens) { return tokens >= 128 ? 2 : 1; }
/* Of many a warpgroup copies, and leaves its registers to the others. */
static __host__ __device__ constexpr int w4_many_threads(int tokens) {
    return W4_GROUPS * WARPGROUP + (tokens > 128 ? WARPGROUP : 32);
}
static constexpr int w4_many_shared(int tokens) {
    return ((226 << 10) / w4_many_together(tokens) - 3072) / 1024 * 1024;
}

struct w4_many_args : gemm_w4_args {
    int n_items, abreast; // tiles of a cluster, of which so many have the same rows
};

/* Where it lies in shared memory. */
struct w4_many_ring {
    uint32_t x, w, full, empty;
    int x_bytes, w_bytes, w_room, n_stages;
    __device__ uint32_t x_stage(int slot) const { return x + slot * x_bytes; }
    __device__ uint32_t w_stage(int slot) const { return w + slot * w_room; }
};

/* A block's tiles, one after another. */
template <int N> struct w4_many_walk {
    static constexpr int SHARERS = w4_many_sharers(N);
    const w4_many_args &a;
    int at, rank;
    __device__ __forceinline__ w4_many_walk(const w4_many_args &a)
        : a(a), at(blockIdx.x / SHARERS), rank(blockIdx.x % SHARERS) {}
    __device__ __forceinline__ bool there() const { return at < a.n_items; }
    __device__ __forceinline__ void next() { at += gridDim.x / SHARERS; }
    __device__ __forceinline__ int first_tile() const { return (at / a.abreast * SHARERS + rank) * W4_TILES; }
    __device__ __forceinline__ int first_token() const { return at % a.abreast * N; }
};

/* One thread's. W of the first tile into all of the ring goes before the wait. */
template <int N>
static __device__ void w4_many_fill(const w4_many_args &a, const w4_many_ring &r, const CUtensorMap *w_map,
                                    const CUtensorMap *x_map) {
    constexpr int SHARERS = w4_many_sharers(N);
    uint64_t again = policy_read_again(), often = policy_read_often();
    w4_many_walk<N> tile(a);
    auto put_w = [&](int piece, int slot) {
        barrier_expect(r.full + 8 * slot, r.w_bytes + r.x_bytes);
        bulk_copy_box(r.w_stage(slot), w_map, 0, piece * a.block_runs, tile.first_tile(), 0, r.full + 8 * slot, again);
    };
    auto put_x = [&](int piece, int slot) {
        uint32_t to = r.x_stage(slot), full = r.full + 8 * slot;
        int column = piece * W4_HALVES, token = tile.first_token();
        if constexpr (SHARERS == 2)
            bulk_copy_box_to(3, to + tile.rank * (N * PIECE_BYTES), x_map, 0, token, column + tile.rank, 0, full,
                             often);
        else
            bulk_copy_box(to, x_map, 0, token, column, 0, full, often);
    };
    int n_early = tile.there() ? min(a.n_pieces, r.n_stages) : 0;
    for (int i = 0; i < n_early; i++)
        put_w(i, i);
    wait_for_previous();
    ring_place at = {0, r.n_stages, 1}; // the parity of the round before, whose end is waited for
    bool refills = false;
    for (int early = n_early; tile.there(); tile.next())
        for (int i = 0; i < a.n_pieces; i++) {
            if (refills)
                barrier_wait(r.empty + 8 * at.slot, at.parity);
            if (early > 0)
                early--;
            else
                put_w(i, at.slot);
            put_x(i, at.slot);
            at.step();
            refills = refills || at.slot == 0;
        }
}

/* A warpgroup's sums: of its 64 rows of W by the tokens. told: where this lane tells that slots are free; or 0. */
template <quad_kind KIND, int GROUP, int N>
static __device__ __forceinline__ void w4_many_multiply(const w4_many_args &a, const w4_many_ring &r, ring_place &at,
                                                        int warp, int lane, uint32_t told, float (&d)[N / 2]) {
    uint32_t f[2][4] = {};
    int last = -1;
    auto release = [&] {
        if (told && last >= 0)
            barrier_arrive_at_rank(told + 8 * last);
    };
#pragma unroll 1
    for (int piece = 0; piece < a.n_pieces; piece++) {
        barrier_wait(r.full + 8 * at.slot, at.parity);
        uint32_t block = r.w_stage(at.slot) + warp * a.block_bytes;
        quads_fragments<KIND, GROUP, false> tile;
        tile.load(block, lane, a.has_zeros);
        quads_words<KIND> words;
        words.load(block + lane * 16);
        uint64_t x = operand_rows(of_warp(r.x_stage(at.slot)));
#pragma unroll
        for (int step = 0; step < QUADS_STEPS; step++) {
            tile.fragment(step, words.of, f[step % 2]);
            registers_settle(f[step % 2]);
            products_begin();
            w4_product<N>::multiply(d, f[step % 2], x + (step / 4 * N * PIECE_BYTES + step % 4 * 32) / 16,
                                    piece > 0 || step > 0);
            products_commit();
            products_wait<1>();                  // of the step before
            registers_settle(f[(step + 1) % 2]); // which read these until now
            if (step == 0)
                release();
        }
        last = at.slot;
        at.step();
    }
    products_wait<0>();
    registers_settle(d);
    release();
}

template <quad_kind KIND, int GROUP, int N>
static __device__ __forceinline__ void w4_many_compute(const w4_many_args &a, const w4_many_ring &r, int warp,
                                                       int lane) {
    constexpr int SHARERS = w4_many_sharers(N);
    int to = WARP_ARRIVALS > 1 ? lane % SHARERS : lane;
    uint32_t told = to < SHARERS ? address_at_rank(r.empty, to) : 0;
    w4_many_end<N> end(a, lane);
    ring_place at = {0, r.n_stages, 0};
#pragma unroll 1
    for (w4_many_walk<N> tile(a); tile.there(); tile.next()) {
        float d[N / 2]; // set by the first product
        end.begin(tile.first_tile() + warp);
        w4_many_multiply<KIND, GROUP, N>(a, r, at, warp, lane, told, d);
        wait_for_previous(); // who reads y has
        end.write(d, tile.first_token());
    }
}

template <quad_kind KIND, int GROUP, int N>
static __global__ void __launch_bounds__(w4_many_threads(N), w4_many_together(N))
    gemm_w4_many(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap x_map,
                 const __grid_constant__ w4_many_args a) {
    constexpr int SHARERS = w4_many_sharers(N);
    let_next_start();
    extern __shared__ unsigned char unaligned[];
    __shared__ __align__(8) uint64_t full[W4_MOST_STAGES], empty[W4_MOST_STAGES];
    w4_many_ring r;
    r.x = shared_address(unaligned) + (-shared_address(unaligned) & (ATOM - 1));
    r.x_bytes = W4_HALVES * N * PIECE_BYTES;
    r.w_bytes = W4_TILES * a.block_bytes;
    r.w_room = w4_w_room(1, W4_TILES, a.block_bytes);
    r.n_stages = a.n_stages;
    r.w = r.x + a.n_stages * r.x_bytes;
    r.full = shared_address(full), r.empty = shared_address(empty);
    int warp = (int)of_warp(threadIdx.x / 32), lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int i = 0; i < a.n_stages; i++) {
            barrier_init(r.full + 8 * i, 1);
            barrier_init(r.empty + 8 * i, W4_MANY_WARPS * (WARP_ARRIVALS > 1 ? 32 : SHARERS));
        }
        barrier_init_done();
        fence_bulk();
    }
    __syncthreads(); // barriers are ready
    if (SHARERS > 1)
        cluster_sync(); // those of the other, too
    if (warp >= W4_MANY_WARPS) {
        if constexpr (N > 128)
            registers_fewer<40>();
        if (warp == W4_MANY_WARPS && lane == 0)
            w4_many_fill<N>(a, r, &w_map, &x_map);
        __syncwarp();
    } else {
        if constexpr (N > 128)
            registers_more<232>();
        w4_many_compute<KIND, GROUP, N>(a, r, warp, lane);
        __syncwarp();
    }
    if (SHARERS > 1)
        cluster_sync(); // the other copies to this block, and tells it that it is done, to the end
}

// ---- the launcher ---------------------------------------------------------------------------------------------------

using w4_many_kernel = void (*)(CUtensorMap, CUtensorMap, w4_many_args);

template <quad_kind KIND, int GROUP> static w4_many_kernel w4_many_for(int tokens) {
    switch (tokens) {
    case 32: return gemm_w4_many<KIND, GROUP, 32>;
    case 64: return gemm_w4_many<KIND, GROUP, 64>;
    case 128: return gemm_w4_many<KIND, GROUP, 128>;
    case 192: return gemm_w4_many<KIND, GROUP, 192>;
    case 240: return gemm_w4_many<KIND, GROUP, 240>;
    default: return gemm_w4_many<KIND, GROUP, 256>;
    }
}
static w4_many_kernel w4_many_of(struct dquads q, int tokens) {
    switch (q.kind) {
    case QUADS_NVFP4: return w4_many_for<QUADS_NVFP4, 16>(tokens);
    case QUADS_MXFP4: return w4_many_for<QUADS_MXFP4, 32>(tokens);
    case QUADS_Q8_0: return w4_many_for<QUADS_Q8_0, 32>(tokens);
    case QUADS_Q4_K: return w4_many_for<QUADS_Q4_K, 32>(tokens);
    case QUADS_Q6_K: return w4_many_for<QUADS_Q6_K, 16>(tokens);
    default: break;
    }
    switch (q.group) {
    case 32: return w4_many_for<QUADS_INT4, 32>(tokens);
    case 64: return w4_many_for<QUADS_INT4, 64>(tokens);
    default: return w4_many_for<QUADS_INT4, 128>(tokens);
    }
}

/* Tiles of a cluster. */
static int w4_many_items(const struct dweight *w, int n_rows, int tokens) {
    return w4_up_to(quads_tiles(w->quads, w->out), W4_TILES * w4_many_sharers(tokens)) * w4_up_to(n_rows, tokens);
}
static int w4_many_blocks(struct dquads q, int tokens, int shared) { // that run at once
    if (w4_many_together(tokens) > 1)
        return n_multiprocessors() * w4_many_together(tokens);
    return blocks_at_once(w4_many_of(q, tokens), w4_many_sharers(tokens), w4_many_threads(tokens), shared);
}

/* In clocks, as an H200 has them (docs/lab/cuda_four_bits.md): waves of tiles, each of which multiplies, and ends; of
 * few tokens blocks of a multiprocessor wait for their weights at the same time. */
static int64_t w4_many_cost(const struct dweight *w, int n_rows, int tokens) {
    int64_t items = w4_many_items(w, n_rows, tokens), pieces = quads_blocks(w->in);
    int blocks = w4_many_blocks(w->quads, tokens, w4_many_shared(tokens)), together = w4_many_together(tokens),
        beside = w4_up_to(items, n_multiprocessors());
    int64_t piece = 700 + 650 * (beside < together ? beside : together), end = 3000;
    if (together == 1)
        piece = tokens * 98 / 10, end = 11000;
    return w4_up_to(items, blocks / w4_many_sharers(tokens)) * (pieces * piece + end) + 3000;
}
struct gemm_w4_many_cut gemm_w4_many_cut_by(const struct dweight *w, int n_rows, int tokens) {
    int most = w4_many_blocks(w->quads, tokens, w4_many_shared(tokens)),
        wanted = w4_many_items(w, n_rows, tokens) * w4_many_sharers(tokens);
    return {tokens, wanted < most ? wanted : most};
}
static int w4_many_tokens(const struct dweight *w, int n_rows) {
    static const int sizes[] = {64, 128, 192, 240, 256};
    int best = 32;
    int64_t least = INT64_MAX;
    for (int tokens : sizes) {
        int64_t cost = n_rows > 32 ? w4_many_cost(w, n_rows, tokens) : INT64_MAX;
        if (cost < least)
            best = tokens, least = cost;
    }
    return best;
}
struct gemm_w4_many_cut gemm_w4_many_cut_of(const struct dweight *w, int n_rows) {
    return gemm_w4_many_cut_by(w, n_rows, w4_many_tokens(w, n_rows));
}

/* And what gemm_w4.cu takes for every 32 rows: Qwen2.5-7B's four products 8.6, 6.8, 29.3 and 19.3 us. Once is its own,
 * as its kernels were measured there: these clocks are none of small products. */
bool gemm_w4_many_pays(const struct dweight *w, int n_rows) {
    if (n_rows <= GEMM_W4_SLAB)
        return false;
    int64_t pieces = quads_blocks(w->in), tiles = quads_tiles(w->quads, w->out);
    int64_t few = w4_up_to(n_rows, GEMM_W4_SLAB) * (tiles * pieces * 100 / n_multiprocessors() + 8000);
    return w4_many_cost(w, n_rows, w4_many_tokens(w, n_rows)) < few;
}

cudaError_t launch_gemm_w4_many_cut(cudaStream_t stream, int n_rows, const struct dgemm_w4 *a, struct dmat x,
                                    struct dmat y, const struct gemm_w4_many_cut *cut) {
    CUtensorMap w_map, x_map;
    const struct dweight *w = &a->w;
    int tokens = cut->tokens, sharers = w4_many_sharers(tokens);
    if (!w4_map_weight(&w_map, w, 1, W4_TILES) || !w4_map_tokens(&x_map, x, w->in, n_rows, tokens, W4_HALVES / sharers))
        return cudaErrorInvalidValue;
    w4_many_args args = {};
    static_cast<gemm_w4_args &>(args) = w4_args_of(n_rows, a, y);
    int stage = W4_HALVES * tokens * PIECE_BYTES + w4_w_room(1, W4_TILES, args.block_bytes);
    int shared = w4_many_shared(tokens), n_stages = (shared - ATOM) / stage;
    args.n_stages = n_stages < W4_MOST_STAGES ? n_stages : W4_MOST_STAGES;
    args.n_items = w4_many_items(w, n_rows, tokens);
    args.abreast = w4_up_to(n_rows, tokens);
    w4_many_kernel k = w4_many_of(w->quads, tokens);
    allow_shared(k, shared);
    return launch_cluster(k, dim3((unsigned)cut->n_blocks), sharers, dim3((unsigned)w4_many_threads(tokens)),
                          (size_t)shared, stream, w_map, x_map, args);
}

cudaError_t launch_gemm_w4_many(cudaStream_t stream, int n_rows, const struct dgemm_w4 *a, struct dmat x,
                                struct dmat y) {
    struct gemm_w4_many_cut cut = gemm_w4_many_cut_of(&a->w, n_rows);
    return launch_gemm_w4_many_cut(stream, n_rows, a, x, y, &cut);
}
