/* tiles.cu - LINEAR of some tens of rows from e4m3 values, and LINEAR with GATED_ACT behind it: see core/ops.def.
 *
 *     y [M, out] = x [M, in] W^T + b          9 <= M <= 128, x and W e4m3 with a scale a row
 *     y [M, F]   = act(x Wg^T + bg) * (x Wu^T + bu),  W = [Wg; Wu] of 2F rows
 *
 * Mathematics by wgmma with W as the first operand: m64nNk32, 64 rows of W by N >= M tokens, both from shared memory, sums in
 * float32 registers. Reading W once is what it costs at these sizes, so everything serves the reading:
 *
 *     tile    8 * octets columns of y, as many as make the last wave of blocks as full as the others; not a power of two. Of a
 *             gated product 8 rows of Wg and their 8 of Wu take turns, so that a lane holds a gate and its up. The tensor core
 *             computes whole 64 rows of it; what it finds behind the tile's last is computed and not read.
 *     block   one producer thread, and a warpgroup for each 64 rows of a tile. A ring of stages, 128 bytes of each row of the tile
 *             and of x, is filled by bulk copies of tensor maps, in the 128-byte swizzle that wgmma reads.
 *     cluster `split` blocks that share a tile's terms, when there are fewer tiles than multiprocessors, times `share` tiles that
 *             have x copied once for all (multicast, each fetching some tokens), since with many tokens x is what the L2 cannot keep
 *             up with. Each of the blocks that split a tile finishes some tokens: the others' sums come into its shared memory (where
 *             the ring was), and are added in the order of the blocks. Thus results are the same every time.
 *
 * Weights are never written, so the ring is full of them before the wait for the node before; x follows into the same stages.
 *
 * Bytes: W once; x once for each `share` tiles, from the L2. */
#include "backend/cuda/device.cuh"

#include <cuda.h>
#include <cudaTypedefs.h>

enum { STAGE_BYTES_OF_ROW = 128, MAX_STAGES = 16, WARPGROUP = 128, M_ROWS = 64, K_STEP = 32, ATOM = 1024 };

struct tiles_args {
    const float *w_scale, *bias, *x_scale;
    void *y;
    int64_t y_stride;
    int width;  // columns of y
    int up_row; // from a gate's row of W to its up row; 0: not gated
    int n_tokens, n_pieces, octets, n_tiles, n_stages, split, share, act;
    float limit;
    element y_element;
};

// ---- one instruction each -------------------------------------------------------------------------------------------

static __device__ uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

static __device__ void barrier_init(uint64_t *b, int n) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(n) : "memory");
}
static __device__ void barrier_expect(uint64_t *b, int n_bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(n_bytes) : "memory");
}
/* At the same barrier of the block with that rank in the cluster. Only what the tensor core has read is told, which needs no order of
 * memory beyond the block: a fence for the cluster costs half a microsecond. */
static __device__ void barrier_arrive_at(uint64_t *b, int rank) {
    asm volatile("{.reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; mbarrier.arrive.shared::cluster.b64 _, [there];}" ::"r"(
                     shared_address(b)),
                 "r"(rank)
                 : "memory");
}
static __device__ bool barrier_passed(uint64_t *b, int parity) {
    uint32_t passed;
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                 : "=r"(passed)
                 : "r"(shared_address(b)), "r"(parity)
                 : "memory");
    return passed;
}
/* Tests build with a limit: what waits for ever becomes a fault. */
static __device__ void barrier_wait(uint64_t *b, int parity) {
#ifdef TILES_SPIN_LIMIT
    for (int64_t i = 0; !barrier_passed(b, parity); i++)
        if (i == TILES_SPIN_LIMIT)
            __trap();
#else
    while (!barrier_passed(b, parity))
        ;
#endif
}

static __device__ void copy_x(void *to, const CUtensorMap *map, int col, int token, uint64_t *b, uint64_t policy) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3}], "
                 "[%4], %5;" ::"r"(shared_address(to)),
                 "l"(map), "r"(col), "r"(token), "r"(shared_address(b)), "l"(policy)
                 : "memory");
}
/* To the same place of all blocks in the mask, with bytes counted at the same barrier. */
static __device__ void copy_x_to_all(void *to, const CUtensorMap *map, int col, int token, uint64_t *b, uint64_t policy, uint16_t mask) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint [%0], "
                 "[%1, {%2, %3}], [%4], %5, %6;" ::"r"(shared_address(to)),
                 "l"(map), "r"(col), "r"(token), "r"(shared_address(b)), "h"(mask), "l"(policy)
                 : "memory");
}
static __device__ void copy_w(void *to, const CUtensorMap *map, int col, int octet, uint64_t *b, uint64_t policy) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3, %3, "
                 "%4}], [%5], %6;" ::"r"(shared_address(to)),
                 "l"(map), "r"(col), "r"(0), "r"(octet), "r"(shared_address(b)), "l"(policy)
                 : "memory");
}
static __device__ uint64_t read_once() {
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
static __device__ uint64_t read_often() {
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

/* All blocks of the cluster are here. */
static __device__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
static __device__ int cluster_rank() {
    int r;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}
/* Into the same place of the block with that rank, counted at its barrier: no fence is needed on either side. */
static __device__ void store_at(void *to, int rank, float4 v, uint64_t *b) {
    asm volatile(
        "{.reg .b32 to, at; mapa.shared::cluster.u32 to, %0, %2; mapa.shared::cluster.u32 at, %1, %2; "
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [to], {%3, %4, %5, %6}, [at];}" ::"r"(shared_address(to)),
        "r"(shared_address(b)), "r"(rank), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
        : "memory");
}

/* Warpgroups only: the producer's warp has other business. */
static __device__ void consumers_sync(int n_threads) { asm volatile("bar.sync 1, %0;" ::"r"(n_threads) : "memory"); }

// ---- the tensor core ------------------------------------------------------------------------------------------------

static __device__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
static __device__ void products_close() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> static __device__ void products_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory"); }

/* Rows of 128 bytes in the 128-byte swizzle, 8 rows after another being 1024 bytes apart. */
static __device__ uint64_t operand(const void *at) {
    return (uint64_t)(shared_address(at) >> 4 & 0x3fff) | (uint64_t)1 << 16 | (uint64_t)(ATOM >> 4) << 32 | (uint64_t)1 << 62;
}

/* sums (+)= 64 rows of W by N tokens over 32 columns. */
template <int N> struct product;

#define SUMS_0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define SUMS_8 SUMS_0 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define SUMS_16 SUMS_8 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define SUMS_24 SUMS_16 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define SUMS_32 SUMS_24 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define SUMS_40 SUMS_32 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define SUMS_48 SUMS_40 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define SUMS_56 SUMS_48 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define SUM_8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])

#define PRODUCT(N, SUMS, A, B, ADD, ...)                                                                                             \
    template <> struct product<N> {                                                                                                  \
        static __device__ void add(float (&d)[N / 2], uint64_t a, uint64_t b, int to_sums) {                                         \
            asm volatile("{.reg .pred p; setp.ne.b32 p, " ADD ", 0; wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3 {" SUMS \
                         "}, " A ", " B ", p, 1, 1;}"                                                                                \
                         : __VA_ARGS__                                                                                               \
                         : "l"(a), "l"(b), "r"(to_sums));                                                                            \
        }                                                                                                                            \
    }

PRODUCT(16, SUMS_0, "%8", "%9", "%10", SUM_8(0));
PRODUCT(32, SUMS_8, "%16", "%17", "%18", SUM_8(0), SUM_8(8));
PRODUCT(48, SUMS_16, "%24", "%25", "%26", SUM_8(0), SUM_8(8), SUM_8(16));
PRODUCT(64, SUMS_24, "%32", "%33", "%34", SUM_8(0), SUM_8(8), SUM_8(16), SUM_8(24));
PRODUCT(80, SUMS_32, "%40", "%41", "%42", SUM_8(0), SUM_8(8), SUM_8(16), SUM_8(24), SUM_8(32));
PRODUCT(96, SUMS_40, "%48", "%49", "%50", SUM_8(0), SUM_8(8), SUM_8(16), SUM_8(24), SUM_8(32), SUM_8(40));
PRODUCT(112, SUMS_48, "%56", "%57", "%58", SUM_8(0), SUM_8(8), SUM_8(16), SUM_8(24), SUM_8(32), SUM_8(40), SUM_8(48));
PRODUCT(128, SUMS_56, "%64", "%65", "%66", SUM_8(0), SUM_8(8), SUM_8(16), SUM_8(24), SUM_8(32), SUM_8(40), SUM_8(48), SUM_8(56));

// ---- the kernel -----------------------------------------------------------------------------------------------------

/* Warpgroups of a block that have registers for their sums. */
static __host__ __device__ constexpr int most_groups(int n_tokens) { return n_tokens <= 96 ? 5 : 4; }

/* A place in the ring and which time round it is. */
struct ring_place {
    int slot, n_slots, parity;
    __device__ void step() {
        if (++slot == n_slots) {
            slot = 0;
            parity ^= 1;
        }
    }
};

/* What a lane needs of its two rows of W (8 apart in the tile) to finish sums. */
struct row_pair {
    int column[2]; // of y; -1: none
    float scale[2], bias[2];
};

static __device__ row_pair rows_of_lane(const tiles_args &a, int tile, int warp) {
    int lane_row = threadIdx.x % 32 / 4, first = tile * a.octets;
    row_pair r;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int octet = a.up_row ? warp : warp * 2 + half; // of the tile
        int column = (first + octet) * 8 + lane_row, row = a.up_row && half ? column + a.up_row : column;
        bool there = octet < a.octets && column < a.width;
        r.column[half] = there ? column : -1;
        r.scale[half] = there ? a.w_scale[row] : 0;
        r.bias[half] = there && a.bias ? a.bias[row] : 0;
    }
    return r;
}

/* Sums of two tokens by two rows into y. x_scale is in shared memory. */
static __device__ void finish(const tiles_args &a, const row_pair &r, const float *x_scale, int token, float4 sums) {
    float v[4] = {sums.x, sums.y, sums.z, sums.w};
#pragma unroll
    for (int t = 0; t < 2; t++) {
        if (token + t >= a.n_tokens)
            continue;
        float scale = x_scale[token + t];
        float low = v[t] * (r.scale[0] * scale) + r.bias[0], high = v[2 + t] * (r.scale[1] * scale) + r.bias[1];
        int64_t at = (token + t) * a.y_stride;
        if (a.up_row) {
            if (r.column[0] >= 0)
                store(a.y, at + r.column[0], a.y_element, activate(a.act, a.limit, low, high));
            continue;
        }
        if (r.column[0] >= 0)
            store(a.y, at + r.column[0], a.y_element, low);
        if (r.column[1] >= 0)
            store(a.y, at + r.column[1], a.y_element, high);
    }
}

/* Blocks of 32 threads, and WARPGROUP for each 64 rows of a tile. */
template <int N>
static __global__ void __launch_bounds__(most_groups(N) * WARPGROUP + 32, 1)
    tiles_linear(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap x_map, const tiles_args a) {
    extern __shared__ unsigned char unaligned[];
    __shared__ uint64_t full[MAX_STAGES], empty[MAX_STAGES], all_sums;
    __shared__ float x_scale[N];
    unsigned char *ring = unaligned + (-shared_address(unaligned) & (ATOM - 1));
    int n_consumers = blockDim.x - 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int split_rank = cluster_rank() % a.split, share_rank = cluster_rank() / a.split; // a block's tile is the share_rank-th
    int w_bytes = a.octets * (a.up_row ? 2 : 1) * ATOM, stage_bytes = w_bytes + N * STAGE_BYTES_OF_ROW;
    int first_tile = blockIdx.x / (a.split * a.share) * a.share, tile_step = gridDim.x / a.split; // of the cluster
    int n_passes = first_tile < a.n_tiles ? (a.n_tiles - first_tile + tile_step - 1) / tile_step : 0;
    int piece_begin = a.n_pieces * split_rank / a.split, piece_end = a.n_pieces * (split_rank + 1) / a.split;

    if (threadIdx.x == 0) {
        for (int i = 0; i < a.n_stages; i++) {
            barrier_init(&full[i], 1);
            barrier_init(&empty[i], n_consumers / 32 * a.share);
        }
        barrier_init(&all_sums, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        int eights = N / 8 * (split_rank + 1) / a.split - N / 8 * split_rank / a.split; // of tokens, that this block finishes
        barrier_expect(&all_sums, a.split * eights * n_consumers * (int)sizeof(float4));
    }
    __syncthreads(); // the barriers are ready
    let_next_start();

    if (warp == n_consumers / 32) {
        uint64_t once = read_once(), often = read_often();
        int n_mine = n_passes * (piece_end - piece_begin), n_early = min(n_mine, a.n_stages);
        int tile = first_tile + share_rank, piece = piece_begin, x_piece = piece_begin;
        auto put_w = [&](int slot) {
            barrier_expect(&full[slot], stage_bytes);
            copy_w(ring + slot * stage_bytes, &w_map, piece * STAGE_BYTES_OF_ROW, tile * a.octets, &full[slot], once);
            if (++piece == piece_end) {
                piece = piece_begin;
                tile += tile_step;
            }
        };
        int tokens = N / a.share, first_token = share_rank * tokens;
        uint16_t mask = 0;
        for (int i = 0; i < a.share; i++)
            mask |= 1 << (split_rank + i * a.split);
        auto put_x = [&](int slot) {
            unsigned char *to = ring + slot * stage_bytes + w_bytes + first_token * STAGE_BYTES_OF_ROW;
            if (a.share == 1)
                copy_x(to, &x_map, x_piece * STAGE_BYTES_OF_ROW, 0, &full[slot], often);
            else
                copy_x_to_all(to, &x_map, x_piece * STAGE_BYTES_OF_ROW, first_token, &full[slot], often, mask);
            if (++x_piece == piece_end)
                x_piece = piece_begin;
        };
        if (lane == 0)
            for (int i = 0; i < n_early; i++)
                put_w(i);
        __syncwarp();
        if (a.share > 1)
            cluster_sync(); // the barriers of all blocks are ready
        if (lane == 0) {
            wait_for_previous();
            for (int i = 0; i < n_early; i++)
                put_x(i);
            ring_place at = {0, a.n_stages, 0};
            for (int i = n_early; i < n_mine; i++) {
                barrier_wait(&empty[at.slot], at.parity);
                put_w(at.slot);
                put_x(at.slot);
                at.step();
            }
        }
        __syncwarp();
        if (a.split > 1)
            cluster_sync(); // as the consumers do, below
        if (a.share > 1)
            cluster_sync();
        return;
    }

    if (a.share > 1)
        cluster_sync();
    int group = threadIdx.x / WARPGROUP;
    wait_for_previous();
    for (int i = threadIdx.x; i < N; i += n_consumers)
        x_scale[i] = i < a.n_tokens ? a.x_scale[i] : 0;
    consumers_sync(n_consumers); // it is there

    ring_place at = {0, a.n_stages, 0};
    float sums[N / 2];
    auto release = [&](int slot) { // to all who copy into it
        if (lane < a.share)
            barrier_arrive_at(&empty[slot], split_rank + lane * a.split);
    };
    for (int pass = 0; pass < n_passes; pass++) {
        row_pair rows = rows_of_lane(a, first_tile + share_rank + pass * tile_step, warp);
        int last = -1;
        for (int piece = piece_begin; piece < piece_end; piece++) {
            barrier_wait(&full[at.slot], at.parity);
            const unsigned char *stage = ring + at.slot * stage_bytes;
            uint64_t w = operand(stage + group * M_ROWS * STAGE_BYTES_OF_ROW), x = operand(stage + w_bytes);
            products_begin();
#pragma unroll
            for (int k = 0; k < STAGE_BYTES_OF_ROW / K_STEP; k++)
                product<N>::add(sums, w + k * (K_STEP >> 4), x + k * (K_STEP >> 4), piece > piece_begin || k > 0);
            products_close();
            products_wait<1>(); // of the stage before
            if (last >= 0)
                release(last);
            last = at.slot;
            at.step();
        }
        products_wait<0>();
        if (last >= 0)
            release(last);

        if (a.split == 1) {
#pragma unroll
            for (int j = 0; j < N / 8; j++)
                finish(a, rows, x_scale, j * 8 + lane % 4 * 2, make_float4(sums[4 * j], sums[4 * j + 1], sums[4 * j + 2], sums[4 * j + 3]));
            continue;
        }
        // Eights of tokens are shared out among the blocks. The sums of the k-th block lie in the owner's ring, one block's after another's.
        consumers_sync(n_consumers);
        cluster_sync(); // nobody reads a ring any more
        float4 *left = reinterpret_cast<float4 *>(ring) + threadIdx.x;
        int most = (N / 8 + a.split - 1) / a.split; // of a block
        for (int to = 0, j0 = 0; to < a.split; to++) {
            int j1 = N / 8 * (to + 1) / a.split;
#pragma unroll
            for (int j = 0; j < N / 8; j++)
                if (j >= j0 && j < j1)
                    store_at(left + (split_rank * most + j - j0) * n_consumers, share_rank * a.split + to,
                             make_float4(sums[4 * j], sums[4 * j + 1], sums[4 * j + 2], sums[4 * j + 3]), &all_sums);
            j0 = j1;
        }
        barrier_wait(&all_sums, 0);
        int j0 = N / 8 * split_rank / a.split, j1 = N / 8 * (split_rank + 1) / a.split;
        for (int j = j0; j < j1; j++) {
            float4 sum = make_float4(0, 0, 0, 0);
            for (int k = 0; k < a.split; k++) {
                float4 v = left[(k * most + j - j0) * n_consumers];
                sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
            }
            finish(a, rows, x_scale, j * 8 + lane % 4 * 2, sum);
        }
    } // one pass where tiles are split
    if (a.share > 1)
        cluster_sync(); // nobody is told anything any more
}

// ---- how it is cut --------------------------------------------------------------------------------------------------

enum { SHARED_MOST = 224 << 10, OVERRUN = 8 * ATOM, MAX_CLUSTER = 8 };

static int up_to(int n, int of) { return (n + of - 1) / of; }
static int tokens_of(int n_rows) { return up_to(n_rows, 16) * 16; }
static int columns_of(const struct dtiles *a) { return (int)(a->gated ? a->w.out / 2 : a->w.out); }
static int groups_of(bool gated, int octets) { return up_to(octets * (gated ? 16 : 8), M_ROWS); }
static int stage_bytes_of(bool gated, int octets, int n_rows) {
    return octets * (gated ? 2 : 1) * ATOM + tokens_of(n_rows) * STAGE_BYTES_OF_ROW;
}

static size_t shared_bytes(bool gated, int n_rows, const struct tiles_cut *c) {
    size_t ring = (size_t)c->n_stages * stage_bytes_of(gated, c->octets, n_rows) + OVERRUN;
    size_t eights = c->split > 1 ? (size_t)c->split * up_to(tokens_of(n_rows) / 8, c->split) : 0; // of tokens, whose sums come from others
    size_t left = eights * groups_of(gated, c->octets) * WARPGROUP * sizeof(float4);
    return (ring > left ? ring : left) + ATOM;
}

using kernel = void (*)(CUtensorMap, CUtensorMap, tiles_args);

static kernel kernel_of(int n_rows) {
    switch (tokens_of(n_rows)) {
    case 16: return tiles_linear<16>;
    case 32: return tiles_linear<32>;
    case 48: return tiles_linear<48>;
    case 64: return tiles_linear<64>;
    case 80: return tiles_linear<80>;
    case 96: return tiles_linear<96>;
    case 112: return tiles_linear<112>;
    default: return tiles_linear<128>;
    }
}

/* How many blocks of one a multiprocessor run at once: with clusters not all multiprocessors have a place. */
static int blocks_at_once(int cluster) {
    static int found[MAX_CLUSTER + 1];
    if (found[cluster] == 0) {
        int device = 0, n = 0;
        cudaGetDevice(&device);
        cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device);
        cudaLaunchAttribute attribute = {};
        attribute.id = cudaLaunchAttributeClusterDimension;
        attribute.val.clusterDim.x = cluster;
        attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
        cudaLaunchConfig_t config = {dim3(n / cluster * cluster), dim3(WARPGROUP + 32), SHARED_MOST, nullptr, &attribute, 1};
        kernel k = kernel_of(16);
        cudaFuncSetAttribute(k, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_MOST);
        int n_clusters = 0;
        if (cudaOccupancyMaxActiveClusters(&n_clusters, k, &config) != cudaSuccess || n_clusters == 0)
            n_clusters = 1; // the launch says why
        found[cluster] = (n_clusters < n / cluster ? n_clusters : n / cluster) * cluster;
    }
    return found[cluster];
}

struct tiles_cut tiles_cut_of(const struct dtiles *a, int n_rows) {
    int octets = up_to(columns_of(a), 8), most = most_groups(tokens_of(n_rows)) * M_ROWS / (a->gated ? 16 : 8);
    struct tiles_cut c = {};
    for (c.split = 4; c.split > 1; c.split /= 2)
        if (octets <= blocks_at_once(c.split) / c.split * (a->gated ? 8 : 16) && up_to((int)a->w.in, STAGE_BYTES_OF_ROW) >= 4 * c.split)
            break;
    c.share = 1;
    c.n_blocks = blocks_at_once(c.split * c.share) / (c.split * c.share) * c.split * c.share;
    int at_once = c.n_blocks / c.split, passes = up_to(octets, at_once * most);
    c.octets = up_to(octets, at_once * passes);
    int stage = stage_bytes_of(a->gated, c.octets, n_rows);
    c.n_stages = (SHARED_MOST - OVERRUN - ATOM) / stage;
    c.n_stages = c.n_stages > MAX_STAGES ? MAX_STAGES : c.n_stages;
    return c;
}

bool tiles_take(const struct dtiles *a, struct dmat x, struct dmat y, int n_rows) {
    struct dweight w = a->w;
    return w.element == ELEMENT_E4M3 && x.element == ELEMENT_E4M3 && x.scale && w.scale && w.in % 16 == 0 && x.stride % 16 == 0 &&
           (uintptr_t)w.at % 16 == 0 && (uintptr_t)x.at % 16 == 0 && (!a->gated || w.out % 16 == 0) && w.out % 8 == 0 && n_rows >= 1 &&
           n_rows <= TILES_MAX_ROWS && w.out <= INT32_MAX / 4 && w.in <= INT32_MAX / 4 &&
           (y.element == ELEMENT_F32 || y.element == ELEMENT_F16 || y.element == ELEMENT_BF16);
}

// ---- the launcher ---------------------------------------------------------------------------------------------------

/* Rows of `bytes`, in the swizzle, boxes of 128 bytes of some rows. Beyond the end there is zero. */
static bool encode(CUtensorMap *map, const void *at, int rank, const cuuint64_t *size, const cuuint64_t *strides, const cuuint32_t *box,
                   CUtensorMapL2promotion promotion) {
    static PFN_cuTensorMapEncodeTiled_v12000 encode_tiled = [] {
        void *found = nullptr;
        cudaDriverEntryPointQueryResult result;
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
        return result == cudaDriverEntryPointSuccess ? (PFN_cuTensorMapEncodeTiled_v12000)found : nullptr;
    }();
    static const cuuint32_t ones[4] = {1, 1, 1, 1};
    return encode_tiled && encode_tiled(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, rank, const_cast<void *>(at), size, strides, box, ones,
                                        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, promotion,
                                        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* [octet][half][row of 8][column]: of a gated product half 1 is the up rows. */
static bool map_weight(CUtensorMap *map, const struct dtiles *a, int octets) {
    cuuint64_t row = (cuuint64_t)a->w.in, n_halves = a->gated ? 2 : 1;
    cuuint64_t size[4] = {row, 8, n_halves, (cuuint64_t)columns_of(a) / 8};
    cuuint64_t strides[3] = {row, row * columns_of(a), row * 8};
    cuuint32_t box[4] = {STAGE_BYTES_OF_ROW, 8, (cuuint32_t)n_halves, (cuuint32_t)octets};
    return encode(map, a->w.at, 4, size, strides, box, CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
}

static bool map_tokens(CUtensorMap *map, struct dmat x, int n_rows, int share) {
    cuuint64_t size[2] = {(cuuint64_t)x.width, (cuuint64_t)n_rows}, strides[1] = {(cuuint64_t)x.stride};
    cuuint32_t box[2] = {STAGE_BYTES_OF_ROW, (cuuint32_t)(tokens_of(n_rows) / share)};
    return encode(map, x.at, 2, size, strides, box, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
}

cudaError_t launch_tiles_linear_cut(cudaStream_t stream, int n_rows, const struct dtiles *a, struct dmat x, struct dmat y,
                                    const struct tiles_cut *cut) {
    CUtensorMap w_map, x_map;
    if (!map_weight(&w_map, a, cut->octets) || !map_tokens(&x_map, x, n_rows, cut->share))
        return cudaErrorInvalidValue;
    int columns = columns_of(a);
    tiles_args args = {a->w.scale,
                       a->bias,
                       x.scale,
                       y.at,
                       y.stride,
                       columns,
                       a->gated ? columns : 0,
                       n_rows,
                       up_to((int)a->w.in, STAGE_BYTES_OF_ROW),
                       cut->octets,
                       up_to(up_to(columns, 8), cut->octets),
                       cut->n_stages,
                       cut->split,
                       cut->share,
                       a->act,
                       a->limit,
                       y.element};
    kernel k = kernel_of(n_rows);
    size_t shared = shared_bytes(a->gated, n_rows, cut);
    cudaFuncSetAttribute(k, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = nodes_start_early();
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = cut->split * cut->share;
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    int n_threads = groups_of(a->gated, cut->octets) * WARPGROUP + 32;
    int cluster = cut->split * cut->share, wanted = up_to(args.n_tiles, cut->share) * cluster;
    int n_blocks = cut->n_blocks < wanted ? cut->n_blocks : wanted;
    cudaLaunchConfig_t config = {dim3(n_blocks), dim3(n_threads), shared, stream, attributes, 2};
    return cudaLaunchKernelEx(&config, k, w_map, x_map, args);
}

cudaError_t launch_tiles_linear(cudaStream_t stream, int n_rows, const struct dtiles *a, struct dmat x, struct dmat y) {
    struct tiles_cut cut = tiles_cut_of(a, n_rows);
    return launch_tiles_linear_cut(stream, n_rows, a, x, y, &cut);
}
