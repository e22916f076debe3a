/* gemm_fp8_small_m.cu - LINEAR of some tens of rows from e4m3 values, alone or with GATED_ACT behind it: see
 * core/ops.def and struct dending.
 *
 *     y [M, out] = x [M, in] W^T + b          M <= 64, x and W e4m3 with a scale a row
 *
 * Mathematics by wgmma with W as the first operand: m64nNk32, 64 rows of W by N >= M tokens, both from shared memory,
 * sums in float32 registers. Reading W once is what it costs at these sizes, so everything serves the reading:
 *
 *     unit    a row of W, or a gate's and its up's, which end together.
 *     tile    8 * octets units, as many as make the last wave of blocks as full as the others; not a power of two. Of
 *             pairs, 8 rows and their 8 partners take turns, so that a lane holds both sums
 *             (gemm_fp8_small_m_ending.cuh). The tensor core computes whole 64 rows of it; what it finds behind the
 *             tile's last is computed and not read.
 *     block   one producer thread, and a warpgroup for each 64 rows of a tile. A ring of stages, 128 bytes of each row
 *             of the tile and of x, is filled by bulk copies of tensor maps, in the 128-byte swizzle that wgmma reads.
 *     cluster `split` blocks that share a tile's terms, when there are fewer tiles than multiprocessors. Each of them
 *             finishes some tokens: the others' sums come into its shared memory, and are added in the order of the
 *             blocks. Thus results are the same every time.
 *
 * Weights are never written, so the ring is full of them before the wait for the node before; x follows into the same
 * stages.
 *
 * Beside y, of pairs, it may write y's e4m3 qact by a scale known beforehand (dmat.static_scale).
 *
 * Bytes: W once; x once a tile, from the L2. What was tried and lost, on an H200: x copied once for several tiles
 * (multicast; x is not what limits), two blocks of consecutive nodes on a multiprocessor (a ring under 100 KB loses
 * more than an early start gains, and blocks double up), asking the L2 for the next weight when the own is on its way
 * (bulk prefetches of pieces of rows take 20 ns each, and what they gain the next product, this one loses). */
#include "backend/cuda/linear/ending.h"
#include "backend/cuda/linear/fp8/gemm_fp8_small_m.h"
#include "backend/cuda/linear/fp8/gemm_fp8_small_m_ending.cuh"
#include "backend/cuda/ptx/launching.cuh"
#include "backend/cuda/ptx/ring.cuh"
#include "backend/cuda/ptx/wgmma_e4m3.cuh"
#include "backend/cuda/value.h"

enum { MAX_STAGES = 16, M_ROWS = 64 };

// ---- the kernel -----------------------------------------------------------------------------------------------------

enum { MOST_GROUPS = 3 }; // warpgroups of a block, so that their sums fit those registers

/* What the ring is, and which tiles and pieces of their rows are the block's. */
struct share_of_block {
    int w_bytes, x_bytes, rank;
    int first_tile, tile_step, n_passes, piece_begin, piece_end;
    uint32_t w, x, full, empty, all_sums; // in shared memory: stages of W, of x; barriers
    __device__ uint32_t w_stage(int slot) const { return w + slot * w_bytes; }
    __device__ uint32_t x_stage(int slot) const { return x + slot * x_bytes; }
};

/* One thread's: brings W and x into the ring. */
struct filler {
    const small_m_args &a;
    const share_of_block &s;
    const CUtensorMap *w_map, *x_map;
    uint64_t once, often;
    int n, n_early; // stages in all; that there is room for at first
    int tile, piece, x_piece;

    __device__ filler(const small_m_args &a, const share_of_block &s, const CUtensorMap *w_map,
                      const CUtensorMap *x_map)
        : a(a), s(s), w_map(w_map), x_map(x_map), once(policy_read_once()), often(policy_read_often()),
          n(s.n_passes * (s.piece_end - s.piece_begin)), n_early(min(n, a.n_stages)), tile(s.first_tile),
          piece(s.piece_begin), x_piece(s.piece_begin) {}

    __device__ void put_w(int slot) {
        barrier_expect(s.full + 8 * slot, s.w_bytes + s.x_bytes);
        bulk_copy_box(s.w_stage(slot), w_map, piece * PIECE_BYTES, 0, 0, tile * a.octets, s.full + 8 * slot, once);
        if (++piece == s.piece_end) {
            piece = s.piece_begin;
            tile += s.tile_step;
        }
    }
    __device__ void put_x(int slot) {
        bulk_copy_box(s.x_stage(slot), x_map, x_piece * PIECE_BYTES, 0, s.full + 8 * slot, often);
        if (++x_piece == s.piece_end)
            x_piece = s.piece_begin;
    }
    __device__ void begin() {
        for (int i = 0; i < n_early; i++)
            put_w(i);
    }
    __device__ void fill() {
        for (int i = 0; i < n_early; i++)
            put_x(i);
        ring_place at = {0, a.n_stages, 0};
        for (int i = n_early; i < n; i++) {
            barrier_wait(s.empty + 8 * at.slot, at.parity);
            put_w(at.slot);
            put_x(at.slot);
            at.step();
        }
    }
};

/* A warpgroup's 64 rows of a tile by the tokens, over the block's pieces. */
template <int N> static __device__ void multiply(const share_of_block &s, ring_place &at, float (&sums)[N / 2]) {
    int last = -1, group = threadIdx.x / WARPGROUP, n_slots = at.n_slots, slot = at.slot, parity = at.parity;
    const uint64_t first_w = operand_rows(s.w + group * M_ROWS * PIECE_BYTES), first_x = operand_rows(s.x);
    const uint64_t high = first_w & 0xffffffff00000000u;
    const uint32_t w0 = kept((uint32_t)first_w), x0 = kept((uint32_t)first_x), w_step = s.w_bytes >> 4,
                   x_step = s.x_bytes >> 4;
    auto release = [&](int slot) {
        if (WARP_ARRIVALS > 1 || threadIdx.x % 32 == 0)
            barrier_arrive(s.empty + 8 * slot);
    };
    for (int piece = s.piece_begin; piece < s.piece_end; piece++) {
        uint32_t w = of_warp(w0 + slot * w_step), x = of_warp(x0 + slot * x_step);
        barrier_wait(s.full + 8 * slot, parity);
        products_begin();
#pragma unroll
        for (int k = 0; k < PIECE_BYTES / E4M3_K; k++)
            e4m3_product<N>::multiply(sums, high | (w + k * E4M3_K_STEP), high | (x + k * E4M3_K_STEP),
                                      piece > s.piece_begin || k > 0);
        products_commit();
        products_wait<1>(); // of the stage before
        if (last >= 0)
            release(last);
        last = slot;
        if (++slot == n_slots)
            slot = 0, parity ^= 1;
    }
    products_wait<0>();
    if (last >= 0)
        release(last);
    at = {slot, n_slots, parity};
}

/* Sums through shared memory, from where `done` gets the first token of each eight that this block finishes, and its
 * sums. Eights of tokens are shared out among the blocks of a cluster, which send their sums to the owner: the k-th
 * block's lie behind those of the blocks before, and are added in this order. No block ends before all that is sent to
 * it has come, so nobody waits for the others otherwise. Of a block alone a thread reads what it wrote: that is for
 * endings whose code would be long if it were there for every eight. */
template <int N, class F>
static __device__ void finish_from_shared(const small_m_args &a, const share_of_block &s, float4 *received,
                                          int n_consumers, const float (&sums)[N / 2], const F &done) {
    constexpr int EIGHTS = N / 8;
    float4 *mine = received + threadIdx.x;
    int most = (EIGHTS + a.split - 1) / a.split; // of a block
    if (a.split > 1)
        cluster_wait(); // all have begun
    for (int to = 0, j0 = 0; to < a.split; to++) {
        int j1 = EIGHTS * (to + 1) / a.split;
        float4 *at = mine + s.rank * most * n_consumers;
        uint32_t there = address_at_rank(shared_address(at), to), counted = address_at_rank(s.all_sums, to);
#pragma unroll
        for (int j = 0; j < EIGHTS; j++) {
            float4 v = make_float4(sums[4 * j], sums[4 * j + 1], sums[4 * j + 2], sums[4 * j + 3]);
            if (a.split == 1)
                at[j * n_consumers] = v;
            else if (j >= j0 && j < j1)
                store_at_rank(there + (j - j0) * n_consumers * (int)sizeof(float4), v, counted);
        }
        j0 = j1;
    }
    if (a.split > 1)
        barrier_wait(s.all_sums, 0);
    int j0 = EIGHTS * s.rank / a.split, j1 = EIGHTS * (s.rank + 1) / a.split;
#pragma unroll 1
    for (int j = j0; j < j1; j++) {
        float4 sum = make_float4(0, 0, 0, 0);
        for (int k = 0; k < a.split; k++) {
            float4 v = mine[(k * most + j - j0) * n_consumers];
            sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
        }
        done(j, sum);
    }
}

/* One thread's. */
template <int N>
static __device__ void prepare_barriers(const small_m_args &a, const share_of_block &s, int n_consumers) {
    for (int i = 0; i < a.n_stages; i++) {
        barrier_init(s.full + 8 * i, 1);
        barrier_init(s.empty + 8 * i, n_consumers / 32 * WARP_ARRIVALS);
    }
    barrier_init(s.all_sums, 1);
    barrier_init_done();
    int eights = N / 8 * (s.rank + 1) / a.split - N / 8 * s.rank / a.split; // of tokens, that this block finishes
    barrier_expect(s.all_sums, a.split * eights * n_consumers * (int)sizeof(float4));
}

/* The warp of the thread that copies. */
template <variant E> static __device__ void produce(const small_m_args &a, filler &ring_filler, int n_consumers) {
    if (threadIdx.x % 32 == 0)
        ring_filler.begin();
    __syncwarp();
    wait_for_previous();
    if (E == PLAIN && a.requant.value.at &&
        look_at_rows(a.requant, 0, a.n_tokens, threadIdx.x % 32, blockIdx.x == 0).any())
        copies_may_begin(n_consumers);
    if (threadIdx.x % 32 == 0)
        ring_filler.fill();
    __syncwarp();
    if (a.split > 1)
        cluster_wait(); // as the consumers do, in finish_from_shared
}

/* Blocks of 32 threads, and WARPGROUP for each 64 rows of a tile. In half of a multiprocessor's registers, though there
 * is one block on it: what it leaves, the small nodes behind it start in before it ends (1 to 3 us of a layer). */
template <int N, variant E, class Y>
static __global__ void __launch_bounds__(MOST_GROUPS *WARPGROUP + 32, 2)
    small_m_linear(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap x_map,
                   const __grid_constant__ small_m_args a) {
    let_next_start();
    extern __shared__ unsigned char unaligned[];
    __shared__ uint64_t full[MAX_STAGES], empty[MAX_STAGES], all_sums;
    __shared__ float x_scale[N];
    __shared__ uint32_t most_of_block[N];
    unsigned char *ring = unaligned + (-shared_address(unaligned) & (ATOM - 1));
    int n_consumers = blockDim.x - 32, warp = threadIdx.x / 32;
    share_of_block s;
    s.w_bytes = a.octets * (E == PLAIN ? 1 : 2) * ATOM;
    s.x_bytes = N * PIECE_BYTES;
    s.rank = blockIdx.x % a.split; // in the cluster
    s.first_tile = blockIdx.x / a.split;
    s.tile_step = gridDim.x / a.split;
    s.n_passes = s.first_tile < a.n_tiles ? (a.n_tiles - s.first_tile + s.tile_step - 1) / s.tile_step : 0;
    s.piece_begin = a.n_pieces * s.rank / a.split;
    s.piece_end = a.n_pieces * (s.rank + 1) / a.split;
    s.w = shared_address(ring);
    s.x = s.w + a.n_stages * s.w_bytes;
    s.full = kept(shared_address(full));
    s.empty = kept(shared_address(empty));
    s.all_sums = kept(shared_address(&all_sums));

    filler ring_filler(a, s, &w_map, &x_map);
    if ((int)threadIdx.x == n_consumers)
        prepare_barriers<N>(a, s, n_consumers);
    if (threadIdx.x < N)
        most_of_block[threadIdx.x] = 0;
    __syncthreads(); // the barriers are ready
    if (a.split > 1)
        cluster_arrive();
    if (warp == n_consumers / 32) {
        produce<E>(a, ring_filler, n_consumers);
        return;
    }

    wait_for_previous();
    float mine = 0; // comes while products are made
    if (threadIdx.x < a.n_tokens)
        mine = E == PLAIN && a.requant.value.at ? scale_of_row(a.requant, threadIdx.x) : a.x_scale[threadIdx.x];
    if (E == PLAIN && a.requant.value.at) {
        requant_list list = look_at_rows(a.requant, 0, a.n_tokens, threadIdx.x % 32, false);
        if (list.any())
            requant_rows(a.requant, list, 0, s.x + warp * SMALL_M_MAX_ROWS * 4, n_consumers,
                         {a.requant.of_tokens, (int)blockIdx.x, (int)gridDim.x});
    }
    ring_place at = {0, a.n_stages, 0};
    float sums[N / 2], most[N / 8] = {};
    for (int pass = 0; pass < s.n_passes; pass++) {
        row_pair rows = rows_of_lane<E>(a, s.first_tile + pass * s.tile_step, warp);
        multiply<N>(s, at, sums);
        if (pass == 0) {
            if (threadIdx.x < N)
                x_scale[threadIdx.x] = mine;
            threads_sync(1, n_consumers); // they are there
        }
        if (a.split > 1 || is_long(E)) {
            finish_from_shared<N>(a, s, reinterpret_cast<float4 *>(ring + a.ring_bytes), n_consumers, sums,
                                  [&](int j, float4 sum) {
                                      float m = 0;
                                      finish<E, Y>(a, rows, x_scale, j * 8, sum, m);
#pragma unroll
                                      for (int i = 0; i < N / 8; i++)
                                          most[i] = i == j ? larger(most[i], m) : most[i];
                                  });
            continue; // the last pass, if tiles are split
        }
        if constexpr (!is_long(E))
#pragma unroll
            for (int j = 0; j < N / 8; j++)
                finish<E, Y>(a, rows, x_scale, j * 8,
                             make_float4(sums[4 * j], sums[4 * j + 1], sums[4 * j + 2], sums[4 * j + 3]), most[j]);
    }
    if (is_gated(E) && a.y.absmax)
        gather_most<N>(a, most, most_of_block, n_consumers);
}

// ---- how it is cut --------------------------------------------------------------------------------------------------

enum { SHARED_MOST = 224 << 10, MAX_CLUSTER = 8 };

static variant variant_of(const struct dending *e) {
    if (e->kind != ENDING_GATED)
        return PLAIN;
    return e->act == 0 ? GATED_SILU : e->act == 1 ? GATED_GELU_TANH : GATED_OTHER;
}
static int up_to(int n, int of) { return (n + of - 1) / of; }
static int tokens_of(int n_rows) { return up_to(n_rows, 16) * 16; }
static bool in_pairs(const struct dsmall_m *a) { return a->ending.kind != ENDING_PLAIN; }
static int units_of(const struct dsmall_m *a) { return (int)(in_pairs(a) ? a->w.out / 2 : a->w.out); }
static int most_octets(bool pairs) { return MOST_GROUPS * M_ROWS / (pairs ? 16 : 8); }
static int groups_of(bool pairs, int octets) { return up_to(octets * (pairs ? 16 : 8), M_ROWS); }
static int stage_bytes_of(bool pairs, int octets, int n_rows) {
    return octets * (pairs ? 2 : 1) * ATOM + tokens_of(n_rows) * PIECE_BYTES;
}

/* The tensor core reads whole 64 rows of a tile: behind the last stage of W that is x, and where x is little, more. */
static size_t ring_bytes(bool pairs, int n_rows, const struct small_m_cut *c) {
    size_t w_bytes = (size_t)c->octets * (pairs ? 2 : 1) * ATOM,
           ring = (size_t)c->n_stages * stage_bytes_of(pairs, c->octets, n_rows);
    size_t read = (c->n_stages - 1) * w_bytes + (size_t)groups_of(pairs, c->octets) * M_ROWS * PIECE_BYTES;
    return ring > read ? ring : read;
}

static size_t shared_bytes(const struct dending *e, int n_rows, const struct small_m_cut *c) {
    bool pairs = e->kind != ENDING_PLAIN, through = c->split > 1 || is_long(variant_of(e));
    size_t eights =
        through ? (size_t)c->split * up_to(tokens_of(n_rows) / 8, c->split) : 0; // of tokens, whose sums go through it
    return ring_bytes(pairs, n_rows, c) + eights * groups_of(pairs, c->octets) * WARPGROUP * sizeof(float4) + ATOM;
}

using kernel = void (*)(CUtensorMap, CUtensorMap, small_m_args);

template <variant E, class Y> static kernel kernel_for(int n_rows) {
    switch (tokens_of(n_rows)) {
    case 16: return small_m_linear<16, E, Y>;
    case 32: return small_m_linear<32, E, Y>;
    case 48: return small_m_linear<48, E, Y>;
    default: return small_m_linear<64, E, Y>;
    }
}

template <class Y> static kernel kernel_for(variant v, int n_rows) {
    switch (v) {
    case PLAIN: return kernel_for<PLAIN, Y>(n_rows);
    case GATED_SILU: return kernel_for<GATED_SILU, Y>(n_rows);
    case GATED_GELU_TANH: return kernel_for<GATED_GELU_TANH, Y>(n_rows);
    default: return kernel_for<GATED_OTHER, Y>(n_rows);
    }
}

static kernel kernel_of(const struct dsmall_m *a, element y, int n_rows) {
    switch (y) {
    case ELEMENT_F32: return kernel_for<PLAIN, float>(n_rows);
    case ELEMENT_F16: return kernel_for<__half>(variant_of(&a->ending), n_rows);
    default: return kernel_for<__nv_bfloat16>(variant_of(&a->ending), n_rows);
    }
}

static int small_m_blocks(int cluster) {
    return blocks_at_once(kernel_for<PLAIN, float>(16), cluster, WARPGROUP + 32, SHARED_MOST);
}

static small_m_cut cut_in(const struct dsmall_m *a, int n_rows, int split, size_t room) {
    int octets = up_to(units_of(a), 8);
    struct small_m_cut c = {};
    c.split = split;
    c.n_blocks = small_m_blocks(split);
    int at_once = c.n_blocks / split;
    c.octets = up_to(octets, at_once * up_to(octets, at_once * most_octets(in_pairs(a))));
    for (c.n_stages = 2; c.n_stages < MAX_STAGES; c.n_stages++) {
        struct small_m_cut more = c;
        more.n_stages++;
        if (shared_bytes(&a->ending, n_rows, &more) > room)
            break;
    }
    return c;
}

struct small_m_cut small_m_cut_of(const struct dsmall_m *a, int n_rows) {
    int octets = up_to(units_of(a), 8), split = 4, pieces = up_to((int)a->w.in, PIECE_BYTES);
    // Of short rows a tile for one warpgroup leaves x small, and nothing has to be joined.
    if (pieces <= 64 && up_to(octets, small_m_blocks(1)) <= M_ROWS / (in_pairs(a) ? 16 : 8))
        return cut_in(a, n_rows, 1, SHARED_MOST);
    while (split > 1 && (octets > small_m_blocks(split) / split * (in_pairs(a) ? 8 : 16) || pieces < 4 * split))
        split /= 2;
    return cut_in(a, n_rows, split, SHARED_MOST);
}

bool small_m_takes(const struct dsmall_m *a, struct dmat x, struct dmat y, int n_rows) {
    struct dweight w = a->w;
    bool in_place = w.in % 16 == 0 && x.stride % 16 == 0 && (uintptr_t)w.at % 16 == 0 && (uintptr_t)x.at % 16 == 0;
    bool halves =
        (y.element == ELEMENT_F16 || y.element == ELEMENT_BF16) && y.stride % 2 == 0 && (uintptr_t)y.at % 4 == 0;
    return w.element == ELEMENT_E4M3 && x.element == ELEMENT_E4M3 && x.scale && w.scale && in_place &&
           w.out % (in_pairs(a) ? 16 : 8) == 0 && n_rows >= 1 && n_rows <= SMALL_M_MAX_ROWS && w.out <= INT32_MAX / 4 &&
           w.in <= INT32_MAX / 4 && (halves || (y.element == ELEMENT_F32 && !in_pairs(a)));
}

// ---- the launcher ---------------------------------------------------------------------------------------------------

/* [octet][half][row of 8][column]: in pairs, half 1 is the partners. */
static bool map_weight(CUtensorMap *map, const struct dsmall_m *a, int octets) {
    cuuint64_t row = (cuuint64_t)a->w.in, n_halves = in_pairs(a) ? 2 : 1, apart = units_of(a);
    cuuint64_t size[4] = {row, 8, n_halves, (a->w.out - (n_halves - 1) * apart) / 8};
    cuuint64_t strides[3] = {row, row * apart, row * 8};
    cuuint32_t box[4] = {PIECE_BYTES, 8, (cuuint32_t)n_halves, (cuuint32_t)octets};
    return encode_rows(map, a->w.at, 4, size, strides, box, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
}

static bool map_tokens(CUtensorMap *map, struct dmat x, int n_rows) {
    cuuint64_t size[2] = {(cuuint64_t)x.width, (cuuint64_t)n_rows}, strides[1] = {(cuuint64_t)x.stride};
    cuuint32_t box[2] = {PIECE_BYTES, (cuuint32_t)tokens_of(n_rows)};
    return encode_rows(map, x.at, 2, size, strides, box, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
}

cudaError_t launch_gemm_small_m_cut(cudaStream_t stream, int n_rows, const struct dsmall_m *a, struct dmat x,
                                    struct dmat y, const struct small_m_cut *cut) {
    CUtensorMap w_map, x_map;
    bool qacts = !a->qact.at || (in_pairs(a) && is_static_qact(a->qact)), rests = !a->requant.value.at || !in_pairs(a);
    if (!qacts || !rests || !map_weight(&w_map, a, cut->octets) || !map_tokens(&x_map, x, n_rows))
        return cudaErrorInvalidValue;
    int n_units = units_of(a);
    small_m_args args = {a->w.scale,
                         a->bias,
                         x.scale,
                         y,
                         a->ending,
                         n_units,
                         n_rows,
                         up_to((int)a->w.in, PIECE_BYTES),
                         cut->octets,
                         up_to(up_to(n_units, 8), cut->octets),
                         cut->n_stages,
                         cut->split,
                         (int)ring_bytes(in_pairs(a), n_rows, cut),
                         a->qact,
                         1 / a->qact.static_scale,
                         {a->requant.value, x, a->requant.of_tokens, a->requant.others}};
    kernel k = kernel_of(a, y.element, n_rows);
    size_t shared = shared_bytes(&a->ending, n_rows, cut);
    cudaFuncSetAttribute(k, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    int n_threads = groups_of(in_pairs(a), cut->octets) * WARPGROUP + 32;
    int wanted = args.n_tiles * cut->split, n_blocks = cut->n_blocks < wanted ? cut->n_blocks : wanted;
    return launch_cluster(k, dim3(n_blocks), cut->split, dim3(n_threads), shared, stream, w_map, x_map, args);
}

cudaError_t launch_gemm_small_m(cudaStream_t stream, int n_rows, const struct dsmall_m *a, struct dmat x,
                                struct dmat y) {
    struct small_m_cut cut = small_m_cut_of(a, n_rows);
    return launch_gemm_small_m_cut(stream, n_rows, a, x, y, &cut);
}
