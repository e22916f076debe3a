/* gemm_fp8_gated.cu - LINEAR of many rows from e4m3 values with GATED_ACT behind it: see core/ops.def.
 *
 *     y [M, F] = act(x Wg^T + bg) * (x Wu^T + bu),  W = [Wg; Wu] of 2F rows        x and W e4m3 with a scale a row
 *
 * Mathematics by wgmma with tokens as the first operand: m64nNk32, 64 tokens by N rows of W, sums in half precision,
 * which e4m3 rows are made for (value.h). N is any multiple of 16, so the width of a tile can be what makes all
 * multiprocessors end at once.
 *
 *     tile    64 * parts tokens by 2N rows of W, N of them as many of Wg (8 * octets) as then of Wu, so that a lane
 *             holds a gate and its up. Each of two warpgroups has half of the tokens and all rows: tokens come through
 *             registers, once for two products, and only W is read from shared memory by every product, 44 clocks of
 *             its 72 with N = 144, where with both from there it was 52 (and 17 more for what is copied in). Sums of
 *             128 tokens by 288 rows are 144 registers.
 *     block   two warpgroups that multiply and one whose first thread copies. A ring of stages, 128 bytes of each row
 *             of the tile and of its tokens, is filled by bulk copies of tensor maps, in the 128-byte swizzle that
 *             wgmma reads. A block takes tile after tile; the ring runs on, but for the end of a tile. Of up to 128
 *             tokens, where memory is what bounds it, a block begins with so few registers that one of the node before
 *             has room beside it, and weights are on their way while that runs.
 *     cluster two blocks that share W: the same rows and each other tokens; or that share tokens. Each copies a half of
 *             what is shared, to both (multicast), so that it leaves the L2 once for both.
 *
 * Beside y it may write y's e4m3 qact by a scale known beforehand, of the 16 bits as they leave (dmat.static_scale):
 * then nothing but a look at the rows' largest sizes stands between it and the product behind. Where nobody else reads
 * y, octets of it that the qact tells are left out (untold_only): a byte that is written goes to memory in the end.
 *
 * Results do not depend on timing. Weights are never written, so a block asks for some before the wait for the node
 * before; tokens follow into the same stages.
 *
 * Of a weight that is there once more by the sides of the L2 (l2_copy.h; tiles of its copy are the N rows of a
 * warpgroup) each block copies what is near it, a box or two of other maps in place of one. In steps of Qwen2.5-7B this
 * is 2 to 3 % at 128 rows, 2 % at 256 and 1 % at 512.
 *
 * What bounds it: power sets the clock in a step of 128 rows and more, and a byte from the L2 to shared memory takes as
 * much as 40 products. So tiles are large: a product brings 1/2N + 1/tokens bytes, of what is shared half of that. Of
 * 256 rows of Qwen2.5-7B the tensor core has all 64,500 clocks of the products. The thread that copies has few cycles
 * for a stage: no divisions in its loop.
 *
 * The end of a tile stands open, and its instructions come from far, so they are few: all sums go to the ring at once,
 * and come back in a loop, an octet of two tokens a lane, which have the columns' scales in common: times both scales,
 * bias, activation; whole sectors are written, by predicates, as the loop has no branch. Two rounds of it go together,
 * as with two warps on a quarter of a multiprocessor little else hides what one waits for
 * (docs/lab/cuda_linear_many_rows.md, "The end of a tile"). */
#include "backend/cuda/linear/fp8/gemm_fp8_gated.h"
#include "backend/cuda/linear/fp8/gemm_fp8_gated_tile.cuh"
#include "backend/cuda/ptx/launching.cuh"
#include "backend/cuda/value.h"

namespace {

// ---- the kernel -----------------------------------------------------------------------------------------------------

static __device__ void prepare_barriers(const gated_args &a, const shared_places &m) {
    for (int i = 0; i < a.n_stages; i++) {
        barrier_init(m.full + i * 8, 1);
        barrier_init(m.empty + i * 8, a.sharers() * GROUPS * TELLERS);
    }
    barrier_init_done();
    fence_bulk();
}

static __device__ shared_places places_of(const gated_args &a, unsigned char *unaligned, uint64_t *barriers) {
    shared_places m;
    m.ring = kept((shared_address(unaligned) + ATOM - 1) & ~(uint32_t)(ATOM - 1));
    m.scales = m.ring + a.n_stages * a.stage_bytes();
    m.full = kept(shared_address(barriers));
    m.empty = m.full + MAX_STAGES * 8;
    return m;
}

static __device__ bool copies() { return threadIdx.x == CONSUMERS; } // the first thread behind the consumers

enum { READY = 2 }; // behind that of consumer::meet

/* Of the warps that multiply: barriers are ready behind it, those of blocks that share copies too. */
static __device__ void wait_for_barriers(const gated_args &a) {
    threads_sync(READY, blockDim.x);
    if (a.sharers() > 1)
        cluster_sync();
    let_next_start();
}

/* Of the warps behind the consumers'. Who makes barriers waits for nobody, and W that nobody shares is on its way
 * before other blocks are met. It is asked for in these warps' own code: with the request ahead of what all warps do,
 * the compiler had the ring's place of few tokens in registers of a lane, and each product waited for four of them to
 * become the warp's. */
static __device__ void copy_all(const gated_args &a, const all_maps &maps, const shared_places &m, int rank) {
    if (copies()) {
        bulk_map_prefetch(maps.w);
        bulk_map_prefetch(maps.x);
        prepare_barriers(a, m);
    }
    __syncwarp();
    threads_arrive(READY, blockDim.x);
    if (a.w_sharers > 1)
        cluster_sync();
    producer by(a, maps, m, rank);
    if (copies())
        by.begin();
    __syncwarp();
    if (a.x_sharers > 1)
        cluster_sync();
    let_next_start();
    if (copies())
        by.run();
    __syncwarp();
}

/* Registers of a thread that a block begins with, what copying warps keep of them, and what those that multiply have
 * then (setmaxnreg); three warps are on a quarter of a multiprocessor. For sums of 128 tokens by up to 288 rows 96 will
 * do, which leave room for 14 warps of 56: the ADD_NORM before it. */
template <int N, int PARTS> constexpr bool FEW_SUMS = PARTS == 2 && N <= 144;
template <int N, int PARTS> constexpr int REGISTERS = FEW_SUMS<N, PARTS> ? 96 : 168;
template <int N, int PARTS> constexpr int FEWER = FEW_SUMS<N, PARTS> ? 32 : 40;
template <int N, int PARTS> constexpr int MORE = FEW_SUMS<N, PARTS> ? 128 : 232;
enum { THREADS = CONSUMERS + WARPGROUP };

template <int N, int PARTS, bool PLAIN>
__global__ void __maxnreg__((REGISTERS<N, PARTS>))
    gated_linear(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap x_map,
                 const __grid_constant__ l2_copy_maps l2_copy, const __grid_constant__ gated_args a) {
    extern __shared__ unsigned char unaligned[];
    __shared__ uint64_t barriers[2 * MAX_STAGES];
    int warp = (int)of_warp(threadIdx.x / 32), rank = a.sharers() > 1 ? cluster_rank() : 0;
    shared_places m = places_of(a, unaligned, barriers);
    if (warp >= WARPS) {
        registers_fewer<FEWER<N, PARTS>>();
        copy_all(a, {&w_map, &x_map, &l2_copy}, m, rank);
    } else {
        registers_more<MORE<N, PARTS>>();
        wait_for_barriers(a);
        consumer<N, PARTS, PLAIN> c = {{{a, m, rank, warp / 4, warp % 4, (int)threadIdx.x % 32, 0, {}}}};
        c.run();
        __syncwarp();
    }
    if (a.sharers() > 1)
        cluster_sync(); // others tell this block that they are done, to the end
}

// ---- how it is cut --------------------------------------------------------------------------------------------------

enum { SHARED_MOST = 227 << 10, FEW_ROWS = 128 };

int up_to(int n, int of) { return (n + of - 1) / of; }
int pieces_of(const struct dgated *a) { return up_to((int)a->w.in, PIECE_BYTES); }
int columns_of(const struct dgated *a) { return (int)a->w.out / 2; }

using kernel = void (*)(CUtensorMap, CUtensorMap, l2_copy_maps, gated_args);
struct instance {
    int octets, parts;
    kernel any, plain;
    int bytes, lines; // of shared memory: beside the ring; of the ring, when a tile ends
};
template <int N, int PARTS>
constexpr instance AN_INSTANCE = {N / 16,
                                  PARTS,
                                  gated_linear<N, PARTS, false>,
                                  gated_linear<N, PARTS, true>,
                                  SCALES<N, PARTS>,
                                  WARPS *consumer<N, PARTS, true>::LINES};
const instance INSTANCES[] = {AN_INSTANCE<96, 2>,  AN_INSTANCE<96, 3>,  AN_INSTANCE<96, 4>,  AN_INSTANCE<112, 2>,
                              AN_INSTANCE<112, 3>, AN_INSTANCE<112, 4>, AN_INSTANCE<144, 2>, AN_INSTANCE<144, 3>,
                              AN_INSTANCE<144, 4>, AN_INSTANCE<176, 2>, AN_INSTANCE<176, 3>};

const instance *instance_of(const struct gated_cut *c) {
    for (const instance &i : INSTANCES)
        if (i.octets == c->octets && i.parts == c->parts)
            return &i;
    return nullptr;
}

int w_sharers(const struct gated_cut *c) { return c->shared == GATED_SHARES_W ? 2 : 1; }
int x_sharers(const struct gated_cut *c) { return c->shared == GATED_SHARES_X ? 2 : 1; }
int sharers(const struct gated_cut *c) { return w_sharers(c) * x_sharers(c); }

int tile_tokens(const struct gated_cut *c) { return c->parts * PART_TOKENS; }

int stage_bytes(const instance *i) { return GROUPS * i->octets * 2 * ATOM + i->parts * PART_BYTES; }
int shared_bytes(const instance *i, int n_stages) { return ATOM + n_stages * stage_bytes(i) + i->bytes; }

/* [gate, up][octet][row of 8][column] */
bool map_weight(CUtensorMap *map, const struct dgated *a, int octets) {
    cuuint64_t row = (cuuint64_t)a->w.in, apart = columns_of(a);
    cuuint64_t size[4] = {row, 8, apart / 8, 2}, strides[3] = {row, row * 8, row * apart};
    cuuint32_t box[4] = {PIECE_BYTES, 8, (cuuint32_t)octets, 2};
    return encode_rows(map, a->w.at, 4, size, strides, box, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
}

bool map_tokens(CUtensorMap *map, struct dmat x, int n_rows, int at_once) {
    cuuint64_t size[2] = {(cuuint64_t)x.width, (cuuint64_t)n_rows}, strides[1] = {(cuuint64_t)x.stride};
    cuuint32_t box[2] = {PIECE_BYTES, (cuuint32_t)at_once};
    return encode_rows(map, x.at, 2, size, strides, box, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
}

} // namespace

int gated_blocks(enum gated_sharing shared) {
    return blocks_at_once(gated_linear<144, 4, true>, shared == GATED_SHARES_NOTHING ? 1 : 2, THREADS,
                          SHARED_MOST - ATOM);
}

int gated_stages(int octets, int parts) {
    struct gated_cut c = {octets, parts};
    const instance *i = instance_of(&c);
    int n = i ? MAX_STAGES : 0;
    while (n > 0 && shared_bytes(i, n) > SHARED_MOST - ATOM)
        n--;
    return n;
}

bool gated_takes_cut(const struct dgated *a, int n_rows, const struct gated_cut *c) {
    const instance *i = instance_of(c);
    // All of the ring is the tile's when it ends, so that sums may leave through it.
    return i && c->n_blocks >= sharers(c) && c->n_blocks % sharers(c) == 0 && c->n_stages >= 2 &&
           c->n_stages <= pieces_of(a) && c->n_stages <= gated_stages(c->octets, c->parts) &&
           c->n_stages * stage_bytes(i) >= i->lines && up_to(n_rows, tile_tokens(c)) % w_sharers(c) == 0;
}

static int token_tiles(int n_rows, const struct gated_cut *c) { return up_to(n_rows, tile_tokens(c)); }
/* That a cluster computes, each of as many tiles as it has blocks. */
static int cluster_tiles(const struct dgated *a, int n_rows, const struct gated_cut *c) {
    int row_tiles = up_to(up_to(columns_of(a), 8), GROUPS * c->octets);
    return token_tiles(n_rows, c) / w_sharers(c) * up_to(row_tiles, x_sharers(c));
}

/* About how many cycles it takes, as measured on an H200 at the clock of a step: what a stage needs of the tensor core,
 * of the L2 and of memory; tiles' ends; and what is the same for all. */
static double cycles_of(const struct dgated *a, int n_rows, const struct gated_cut *c) {
    double rows = GROUPS * c->octets * 16, tokens = tile_tokens(c), stages = up_to((int)a->w.in, PIECE_BYTES);
    double passes = up_to(cluster_tiles(a, n_rows, c) * sharers(c), c->n_blocks), abreast = token_tiles(n_rows, c);
    double l2 = (rows / w_sharers(c) + tokens / x_sharers(c)) * PIECE_BYTES / 45,
           memory = rows * PIECE_BYTES * c->n_blocks / abreast / 2700;
    return 8000 +
           passes * (stages * (fmax(rows * tokens / 32, fmax(l2, memory)) + 0.2 * l2) + 150 * c->octets * c->parts);
}

/* Of few rows, where memory bounds the product, tiles beside which there is room for the node before. */
static bool is_usual(int n_rows, const struct gated_cut *c) {
    return n_rows > FEW_ROWS || (c->parts == 2 && c->shared == GATED_SHARES_NOTHING);
}

struct gated_cut gated_cut_of(const struct dgated *a, int n_rows) {
    struct gated_cut best = {};
    double least = INFINITY;
    for (enum gated_sharing shared : {GATED_SHARES_NOTHING, GATED_SHARES_W, GATED_SHARES_X})
        for (const instance &i : INSTANCES) {
            struct gated_cut c = {i.octets, i.parts, gated_blocks(shared), gated_stages(i.octets, i.parts), shared};
            c.n_stages = c.n_stages < pieces_of(a) ? c.n_stages : pieces_of(a);
            if (is_usual(n_rows, &c) && gated_takes_cut(a, n_rows, &c) && cycles_of(a, n_rows, &c) < least) {
                best = c;
                least = cycles_of(a, n_rows, &c);
            }
        }
    return best;
}

bool gated_takes(const struct dgated *a, struct dmat x, struct dmat y, int n_rows) {
    struct dweight w = a->w;
    bool in_place = w.in % 16 == 0 && x.stride % 16 == 0 && (uintptr_t)w.at % 16 == 0 && (uintptr_t)x.at % 16 == 0 &&
                    (uintptr_t)y.at % 16 == 0 && y.stride % 8 == 0;
    return w.element == ELEMENT_E4M3 && x.element == ELEMENT_E4M3 && x.scale && w.scale && in_place && n_rows >= 1 &&
           w.in > PIECE_BYTES && w.out <= INT32_MAX / 4 && y.stride <= INT32_MAX / 64 && w.in <= HALF_SUMS_IN &&
           w.out % 16 == 0 && a->act <= 1 && (y.element == ELEMENT_F16 || y.element == ELEMENT_BF16);
}

static bool reads_near(const struct dgated *a, const struct gated_cut *c) {
    return a->l2_copy && a->l2_copy->shape.halves == 2 && a->l2_copy->shape.rows == c->octets * 16;
}

cudaError_t launch_gemm_gated_cut(cudaStream_t stream, int n_rows, const struct dgated *a, struct dmat x, struct dmat y,
                                  const struct gated_cut *cut) {
    CUtensorMap w_map, x_map;
    if ((a->qact.at && (!is_static_qact(a->qact) || a->qact.stride > INT32_MAX / 64)) ||
        !map_weight(&w_map, a, cut->octets) || !map_tokens(&x_map, x, n_rows, tile_tokens(cut) / x_sharers(cut)))
        return cudaErrorInvalidValue;
    gated_args args = {};
    args.w_scale = a->w.scale;
    args.bias = a->bias;
    args.x_scale = x.scale;
    args.y = y.at;
    args.absmax = y.absmax;
    args.y_stride = y.stride;
    args.n_columns = columns_of(a);
    args.n_tokens = n_rows;
    args.n_pieces = pieces_of(a);
    args.n_stages = cut->n_stages;
    // The first tokens must not stand behind all of the ring's W: as measured (docs/lab/cuda_linear_many_rows.md).
    args.n_begun = token_tiles(n_rows, cut) == 1 ? 2 : 1;
    args.octets = cut->octets;
    args.parts = cut->parts;
    args.w_sharers = w_sharers(cut);
    args.x_sharers = x_sharers(cut);
    args.token_tiles = token_tiles(n_rows, cut);
    args.n_cluster_tiles = cluster_tiles(a, n_rows, cut);
    args.bend = a->act == 0 ? 0.5f : GELU_BEND;
    args.twist = a->act == 0 ? 0 : GELU_TWIST;
    args.y_element = y.element;
    args.qact = static_cast<uint8_t *>(a->qact.at);
    args.qact_stride = a->qact.stride;
    args.qact_factor = 1 / a->qact.static_scale;
    args.untold_only = y.untold_only && a->qact.at;
    l2_copy_maps l2_copy = {};
    if (reads_near(a, cut)) {
        args.l2_copy = *a->l2_copy;
        if (!l2_copy_maps_of(a->l2_copy, &l2_copy))
            return cudaErrorInvalidValue;
    }
    const instance *i = instance_of(cut);
    kernel run = a->act == 0 && !a->bias ? i->plain : i->any;
    int shared = shared_bytes(i, cut->n_stages), wanted = args.n_cluster_tiles * sharers(cut);
    int n_blocks = cut->n_blocks < wanted ? cut->n_blocks : wanted;
    cudaFuncSetAttribute(run, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    return launch_cluster(run, dim3(n_blocks), sharers(cut), dim3(THREADS), shared, stream, w_map, x_map, l2_copy,
                          args);
}

cudaError_t launch_gemm_gated(cudaStream_t stream, int n_rows, const struct dgated *a, struct dmat x, struct dmat y) {
    struct gated_cut cut = gated_cut_of(a, n_rows);
    return launch_gemm_gated_cut(stream, n_rows, a, x, y, &cut);
}
