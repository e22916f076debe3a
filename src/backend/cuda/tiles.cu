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
 *     cluster `split` blocks that share a tile's terms, when there are fewer tiles than multiprocessors. Each of them finishes
 *             some tokens: the others' sums come into its shared memory (where the ring was), and are added in the order of the
 *             blocks. Thus results are the same every time.
 *
 * Weights are never written, so the ring is full of them before the wait for the node before; x follows into the same stages.
 *
 * Bytes: W once; x once a tile, from the L2. (Copying x once for several tiles, by multicast, was slower: x is not what limits.) */
#include "backend/cuda/device.cuh"
#include "backend/cuda/wgmma_e4m3.cuh"

#include <cudaTypedefs.h>

enum { STAGE_BYTES_OF_ROW = 128, MAX_STAGES = 16, WARPGROUP = 128, M_ROWS = 64, ATOM = 1024 };

struct tiles_args {
    const float *w_scale, *bias, *x_scale;
    void *y;
    int64_t y_stride;
    int width;  // columns of y
    int up_row; // from a gate's row of W to its up row; 0: not gated
    int n_tokens, n_pieces, octets, n_tiles, n_stages, split, act;
    float limit;
    element y_element;
};

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
    uint32_t ring_at = shared_address(ring), full_at = shared_address(full), empty_at = shared_address(empty),
             sums_at = shared_address(&all_sums);
    int n_consumers = blockDim.x - 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int rank = cluster_rank();
    int w_bytes = a.octets * (a.up_row ? 2 : 1) * ATOM, stage_bytes = w_bytes + N * STAGE_BYTES_OF_ROW;
    int first_tile = blockIdx.x / a.split, tile_step = gridDim.x / a.split;
    int n_passes = first_tile < a.n_tiles ? (a.n_tiles - first_tile + tile_step - 1) / tile_step : 0;
    int piece_begin = a.n_pieces * rank / a.split, piece_end = a.n_pieces * (rank + 1) / a.split;

    if (threadIdx.x == 0) {
        for (int i = 0; i < a.n_stages; i++) {
            barrier_init(full_at + 8 * i, 1);
            barrier_init(empty_at + 8 * i, n_consumers / 32);
        }
        barrier_init(sums_at, 1);
        barrier_init_done();
        int eights = N / 8 * (rank + 1) / a.split - N / 8 * rank / a.split; // of tokens, that this block finishes
        barrier_expect(sums_at, a.split * eights * n_consumers * (int)sizeof(float4));
    }
    __syncthreads(); // the barriers are ready
    let_next_start();

    if (warp == n_consumers / 32) {
        uint64_t once = policy_read_once(), often = policy_read_often();
        int n_mine = n_passes * (piece_end - piece_begin), n_early = min(n_mine, a.n_stages);
        int tile = first_tile, piece = piece_begin, x_piece = piece_begin;
        auto put_w = [&](int slot) {
            barrier_expect(full_at + 8 * slot, stage_bytes);
            bulk_copy_box(ring_at + slot * stage_bytes, &w_map, piece * STAGE_BYTES_OF_ROW, 0, 0, tile * a.octets, full_at + 8 * slot,
                          once);
            if (++piece == piece_end) {
                piece = piece_begin;
                tile += tile_step;
            }
        };
        auto put_x = [&](int slot) {
            bulk_copy_box(ring_at + slot * stage_bytes + w_bytes, &x_map, x_piece * STAGE_BYTES_OF_ROW, 0, full_at + 8 * slot, often);
            if (++x_piece == piece_end)
                x_piece = piece_begin;
        };
        if (lane == 0) {
            for (int i = 0; i < n_early; i++)
                put_w(i);
            wait_for_previous();
            for (int i = 0; i < n_early; i++)
                put_x(i);
            ring_place at = {0, a.n_stages, 0};
            for (int i = n_early; i < n_mine; i++) {
                barrier_wait(empty_at + 8 * at.slot, at.parity);
                put_w(at.slot);
                put_x(at.slot);
                at.step();
            }
        }
        __syncwarp();
        if (a.split > 1)
            cluster_sync(); // as the consumers do, below
        return;
    }

    int group = threadIdx.x / WARPGROUP;
    wait_for_previous();
    for (int i = threadIdx.x; i < N; i += n_consumers)
        x_scale[i] = i < a.n_tokens ? a.x_scale[i] : 0;
    threads_sync(1, n_consumers); // it is there

    ring_place at = {0, a.n_stages, 0};
    float sums[N / 2];
    auto release = [&](int slot) {
        if (lane == 0)
            barrier_arrive(empty_at + 8 * slot);
    };
    for (int pass = 0; pass < n_passes; pass++) {
        row_pair rows = rows_of_lane(a, first_tile + pass * tile_step, warp);
        int last = -1;
        for (int piece = piece_begin; piece < piece_end; piece++) {
            barrier_wait(full_at + 8 * at.slot, at.parity);
            uint32_t stage = ring_at + at.slot * stage_bytes;
            uint64_t w = operand_rows(stage + group * M_ROWS * STAGE_BYTES_OF_ROW), x = operand_rows(stage + w_bytes);
            products_begin();
#pragma unroll
            for (int k = 0; k < STAGE_BYTES_OF_ROW / E4M3_K; k++)
                e4m3_product<N>::multiply(sums, w + k * E4M3_K_STEP, x + k * E4M3_K_STEP, piece > piece_begin || k > 0);
            products_commit();
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
        threads_sync(1, n_consumers);
        cluster_sync(); // nobody reads a ring any more
        float4 *left = reinterpret_cast<float4 *>(ring) + threadIdx.x;
        int most = (N / 8 + a.split - 1) / a.split; // of a block
        for (int to = 0, j0 = 0; to < a.split; to++) {
            int j1 = N / 8 * (to + 1) / a.split;
#pragma unroll
            for (int j = 0; j < N / 8; j++)
                if (j >= j0 && j < j1)
                    store_at_rank(address_at_rank(shared_address(left + (rank * most + j - j0) * n_consumers), to),
                                  make_float4(sums[4 * j], sums[4 * j + 1], sums[4 * j + 2], sums[4 * j + 3]),
                                  address_at_rank(sums_at, to));
            j0 = j1;
        }
        barrier_wait(sums_at, 0);
        int j0 = N / 8 * rank / a.split, j1 = N / 8 * (rank + 1) / a.split;
        for (int j = j0; j < j1; j++) {
            float4 sum = make_float4(0, 0, 0, 0);
            for (int k = 0; k < a.split; k++) {
                float4 v = left[(k * most + j - j0) * n_consumers];
                sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
            }
            finish(a, rows, x_scale, j * 8 + lane % 4 * 2, sum);
        }
    } // one pass where tiles are split
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
    c.n_blocks = blocks_at_once(c.split);
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

static bool map_tokens(CUtensorMap *map, struct dmat x, int n_rows) {
    cuuint64_t size[2] = {(cuuint64_t)x.width, (cuuint64_t)n_rows}, strides[1] = {(cuuint64_t)x.stride};
    cuuint32_t box[2] = {STAGE_BYTES_OF_ROW, (cuuint32_t)tokens_of(n_rows)};
    return encode(map, x.at, 2, size, strides, box, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
}

cudaError_t launch_tiles_linear_cut(cudaStream_t stream, int n_rows, const struct dtiles *a, struct dmat x, struct dmat y,
                                    const struct tiles_cut *cut) {
    CUtensorMap w_map, x_map;
    if (!map_weight(&w_map, a, cut->octets) || !map_tokens(&x_map, x, n_rows))
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
    attributes[1].val.clusterDim.x = cut->split;
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    int n_threads = groups_of(a->gated, cut->octets) * WARPGROUP + 32;
    int wanted = args.n_tiles * cut->split, n_blocks = cut->n_blocks < wanted ? cut->n_blocks : wanted;
    cudaLaunchConfig_t config = {dim3(n_blocks), dim3(n_threads), shared, stream, attributes, 2};
    return cudaLaunchKernelEx(&config, k, w_map, x_map, args);
}

cudaError_t launch_tiles_linear(cudaStream_t stream, int n_rows, const struct dtiles *a, struct dmat x, struct dmat y) {
    struct tiles_cut cut = tiles_cut_of(a, n_rows);
    return launch_tiles_linear_cut(stream, n_rows, a, x, y, &cut);
}
