/* gemm_w4_many.cu - LINEAR of many rows by weights of four bits, with GATED_ACT behind it or alone: see core/ops.def
 * and weights/quads.h.
 *
 * Mathematics by wgmma with W as the first operand, from registers: m64nNk16, 64 rows of W by N tokens, sums in
 * float32. A warp's share of such an operand is laid out as that of m16n8k16 is, so the same blocks that gemm_w4.cu
 * streams are decoded on their way into the tensor core, by every warp its tile; that is a tenth of what the product
 * takes.
 *
 *     tile    128 rows of W, 64 to each of two warpgroups, by N tokens
 *     block   one tile; one thread fills a ring of stages, 128 columns of W's rows and of the tokens, by a copy of a
 *             tensor map each. The fragment of a step is made while the step before is multiplied
 *
 * Neighbouring blocks have the same tokens. Bytes of a stage: 9 KB of W, 256 N of x, from the L2. */
#include "backend/cuda/linear/w4/gemm_w4_ends.cuh"
#include "backend/cuda/linear/w4/gemm_w4_many.h"
#include "backend/cuda/linear/w4/gemm_w4_maps.cuh"
#include "backend/cuda/linear/w4/gemm_w4_product.cuh"
#include "backend/cuda/linear/w4/quads_gguf.cuh"

enum { W4_TILES = 8, W4_GROUPS = 2, W4_MANY_THREADS = W4_GROUPS * WARPGROUP + 32 };

/* Of few tokens a block waits for its weights most of the time: so several are on a multiprocessor. */
static __host__ __device__ constexpr int w4_many_together(int tokens) {
    return tokens <= 32 ? 3 : tokens <= 64 ? 2 : 1;
}
static constexpr int w4_many_shared(int tokens) {
    return ((226 << 10) / w4_many_together(tokens) - 3072) / 1024 * 1024;
}

/* Where it lies in shared memory. */
struct w4_many_ring {
    uint32_t x, w, full, empty;
    int x_bytes, w_bytes, w_room, n_stages;
    __device__ uint32_t x_stage(int slot) const { return x + slot * x_bytes; }
    __device__ uint32_t w_stage(int slot) const { return w + slot * w_room; }
};

static __device__ void w4_many_fill(const gemm_w4_args &a, const w4_many_ring &r, const CUtensorMap *w_map,
                                    const CUtensorMap *x_map, int first_tile, int first_token) {
    uint64_t again = policy_read_again(), often = policy_read_often();
    int n_early = min(a.n_pieces, r.n_stages);
    auto put_w = [&](int piece, int slot) {
        barrier_expect(r.full + 8 * slot, r.w_bytes + r.x_bytes);
        bulk_copy_box(r.w_stage(slot), w_map, 0, piece * a.block_runs, first_tile, 0, r.full + 8 * slot, again);
    };
    auto put_x = [&](int piece, int slot) {
        bulk_copy_box(r.x_stage(slot), x_map, 0, first_token, piece * W4_HALVES, 0, r.full + 8 * slot, often);
    };
    for (int i = 0; i < n_early; i++)
        put_w(i, i);
    wait_for_previous();
    for (int i = 0; i < n_early; i++)
        put_x(i, i);
    ring_place at = {0, r.n_stages, 0};
    for (int i = n_early; i < a.n_pieces; i++) {
        barrier_wait(r.empty + 8 * at.slot, at.parity);
        put_w(i, at.slot);
        put_x(i, at.slot);
        at.step();
    }
}

/* A warpgroup's sums: of its 64 rows of W by the tokens. */
template <quad_kind KIND, int GROUP, int N>
static __device__ __forceinline__ void w4_many_multiply(const gemm_w4_args &a, const w4_many_ring &r, int warp,
                                                        int lane, float (&d)[N / 2]) {
    uint32_t f[2][4] = {};
    ring_place at = {0, r.n_stages, 0};
    int last = -1;
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
            if (step == 0 && last >= 0)
                barrier_arrive_warp(r.empty + 8 * last, lane);
        }
        last = at.slot;
        at.step();
    }
    products_wait<0>();
    registers_settle(d);
}

template <quad_kind KIND, int GROUP, int N>
static __global__ void __launch_bounds__(W4_MANY_THREADS, w4_many_together(N))
    gemm_w4_many(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap x_map,
                 const __grid_constant__ gemm_w4_args a) {
    let_next_start();
    extern __shared__ unsigned char unaligned[];
    __shared__ __align__(8) uint64_t full[W4_MOST_STAGES], empty[W4_MOST_STAGES];
    __shared__ float scales[W4_TILES * 16], biases[W4_TILES * 16];
    w4_many_ring r;
    r.x = shared_address(unaligned) + (-shared_address(unaligned) & (ATOM - 1));
    r.x_bytes = W4_HALVES * N * PIECE_BYTES;
    r.w_bytes = W4_TILES * a.block_bytes;
    r.w_room = w4_w_room(1, W4_TILES, a.block_bytes);
    r.n_stages = a.n_stages;
    r.w = r.x + a.n_stages * r.x_bytes;
    r.full = shared_address(full), r.empty = shared_address(empty);
    w4_place p = {};
    p.warp = threadIdx.x / 32, p.lane = threadIdx.x % 32;
    p.first_tile = blockIdx.x * W4_TILES, p.tiles = W4_TILES, p.n_passes = 1;
    p.first_token = blockIdx.y * N;
    p.n_tokens = min(a.n_tokens - p.first_token, N);
    if (threadIdx.x == 0) {
        for (int i = 0; i < a.n_stages; i++) {
            barrier_init(r.full + 8 * i, 1);
            barrier_init(r.empty + 8 * i, W4_TILES * WARP_ARRIVALS);
        }
        barrier_init_done();
    }
    w4_bring_scales(a, p, scales, biases);
    __syncthreads(); // barriers are ready, and scales there
    if (p.warp == W4_TILES) {
        if (p.lane == 0)
            w4_many_fill(a, r, &w_map, &x_map, p.first_tile, p.first_token);
        return;
    }
    wait_for_previous();
    float d[N / 2]; // set by the first product
    w4_many_multiply<KIND, GROUP, N>(a, r, p.warp, p.lane, d);
#pragma unroll
    for (int j = 0; j < N / 8; j++)
        w4_finish(a, p, p.first_tile + p.warp, j, make_float4(d[4 * j], d[4 * j + 1], d[4 * j + 2], d[4 * j + 3]),
                  scales + p.warp * 16, a.bias ? biases + p.warp * 16 : nullptr);
}

// ---- the launcher ---------------------------------------------------------------------------------------------------

using w4_many_kernel = void (*)(CUtensorMap, CUtensorMap, gemm_w4_args);

template <quad_kind KIND, int GROUP> static w4_many_kernel w4_many_for(int tokens) {
    switch (tokens) {
    case 32: return gemm_w4_many<KIND, GROUP, 32>;
    case 64: return gemm_w4_many<KIND, GROUP, 64>;
    case 128: return gemm_w4_many<KIND, GROUP, 128>;
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

static int w4_many_tokens(int n_rows) { return n_rows <= 32 ? 32 : n_rows <= 64 ? 64 : n_rows <= 128 ? 128 : 256; }

/* In clocks: waves of blocks, each of which multiplies 128 rows of W by its tokens at three quarters of what the tensor
 * core does; and what gemm_w4.cu takes for every 32 rows. */
bool gemm_w4_many_pays(const struct dweight *w, int n_rows) {
    int64_t tokens = w4_many_tokens(n_rows), pieces = quads_blocks(w->in), tiles = quads_tiles(w->quads, w->out);
    int64_t blocks = w4_up_to(tiles, W4_TILES) * w4_up_to(n_rows, tokens);
    int64_t many = w4_up_to(blocks, n_multiprocessors()) * pieces * (tokens > 64 ? tokens * 11 : 1000) + 5000;
    int64_t few = w4_up_to(n_rows, GEMM_W4_SLAB) * (tiles * pieces * 55 / n_multiprocessors() + 5000);
    return many < few;
}

cudaError_t launch_gemm_w4_many(cudaStream_t stream, int n_rows, const struct dgemm_w4 *a, struct dmat x,
                                struct dmat y) {
    CUtensorMap w_map, x_map;
    int tokens = w4_many_tokens(n_rows);
    if (!w4_map_weight(&w_map, &a->w, 1, W4_TILES) || !w4_map_tokens(&x_map, x, a->w.in, n_rows, tokens, 1))
        return cudaErrorInvalidValue;
    gemm_w4_args args = w4_args_of(n_rows, a, y);
    int stage = W4_HALVES * tokens * PIECE_BYTES + w4_w_room(1, W4_TILES, args.block_bytes);
    int shared = w4_many_shared(tokens), n_stages = (shared - ATOM) / stage;
    args.n_stages = n_stages < W4_MOST_STAGES ? n_stages : W4_MOST_STAGES;
    w4_many_kernel k = w4_many_of(a->w.quads, tokens);
    allow_shared(k, shared);
    dim3 grid((unsigned)w4_up_to(args.n_tiles, W4_TILES), (unsigned)w4_up_to(n_rows, tokens));
    return launch_cluster(k, grid, 1, dim3(W4_MANY_THREADS), (size_t)shared, stream, w_map, x_map, args);
}
