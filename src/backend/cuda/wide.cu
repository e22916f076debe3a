/* wide.cu - LINEAR of many rows from e4m3 values with GATED_ACT behind it: see core/ops.def.
 *
 *     y [M, F] = act(x Wg^T + bg) * (x Wu^T + bu),  W = [Wg; Wu] of 2F rows        x and W e4m3 with a scale a row
 *
 * Mathematics by wgmma with tokens as the first operand: m64nNk32, 64 tokens by N rows of W, both from shared memory, sums in float32
 * registers. N is any multiple of 16, so the width of a tile can be what makes all multiprocessors end at once.
 *
 *     tile    128 tokens by 8 * octets columns of y: as many rows of Wg, then those of Wu. A lane holds a gate and its up.
 *     block   a warpgroup, one thread of which copies, and two that multiply and have every other tile: while one ends its tile the other
 *             keeps the tensor core busy. A ring of stages, 128 bytes of each row of the tile and of its tokens, is filled by bulk copies
 *             of tensor maps, in the 128-byte swizzle that wgmma reads. A block takes tile after tile; the ring runs on.
 *             Of up to 128 tokens, where memory is what bounds it, both warpgroups multiply every tile, 64 tokens each (together): the ring
 *             fills while a tile ends, the last end takes half as long, and with sums of half a tile there are registers for a block of the
 *             node before, so that weights are on their way while that runs.
 *     cluster two blocks that share W: the same rows and each other tokens, where tokens make an even number of tiles. One copies the gates
 *             and the other the ups, to both (multicast), so that a stage of W leaves the L2 once for both.
 *
 * Beside y it may write y's e4m3 twin by a scale known beforehand, of the 16 bits as they leave (dmat.static_scale): then nothing but a look at the
 * rows' largest sizes stands between it and the product behind.
 *
 * Results do not depend on timing. Weights are never written, so a block alone has the ring full of them before the wait for the node before;
 * tokens follow into the same stages.
 *
 * What bounds it: a stage of 144 rows of W takes the tensor core 576 cycles and brings 34,816 bytes, 60 a cycle, of which a multiprocessor gets
 * some 45 from the L2; shared, 45 suffice. The thread that copies has those 576 cycles too: with divisions in its loop, 1,090 a stage. In a
 * step power sets the clock, 1.3 to 1.6 GHz from 256 rows on. On an H200 gate_up of 37,888 x 3,584 takes 36.5, 57 and 114 us there at 128, 256
 * and 512 rows, act included; the library's product alone 40, 57 and 107 (docs/benchmarks.md).
 *
 * The end of a tile: sums times both scales, bias, activation; then by way of shared memory, 64 bytes of a token at a time, so that
 * what is written are whole sectors. The last end is 4,000 cycles that nothing hides; together, SiLU without biases has a shorter one, worth 1 per
 * cent of a step of 128 rows. By turns that one is no faster (docs/benchmarks.md, with what else was tried). */
#include "backend/cuda/launching.cuh"
#include "backend/cuda/wide_tile.cuh"

namespace {

// ---- the kernel -----------------------------------------------------------------------------------------------------

static __device__ void prepare_barriers(const wide_args &a, const shared_places &m, int n_arrivals) {
    for (int i = 0; i < a.n_stages; i++) {
        barrier_init(m.full + i * 8, 1);
        barrier_init(m.empty + i * 8, a.sharers * n_arrivals);
    }
    barrier_init_done();
    fence_bulk();
}

static __device__ shared_places places_of(const wide_args &a, unsigned char *unaligned, uint64_t *barriers, int w_bytes) {
    shared_places m;
    m.ring = kept((shared_address(unaligned) + ATOM - 1) & ~(uint32_t)(ATOM - 1));
    m.staging = m.ring + a.n_stages * (w_bytes + X_BYTES);
    m.scales = m.staging + WARPS * STAGING;
    m.full = kept(shared_address(barriers));
    m.empty = m.full + MAX_STAGES * 8;
    return m;
}

static __device__ bool copies() { return threadIdx.x == CONSUMERS; } // the first thread behind the consumers

/* Of all threads: behind it barriers are ready, those of blocks that share copies too. */
static __device__ void begin_together(const wide_args &a, const CUtensorMap *w_map, const CUtensorMap *x_map, const shared_places &m,
                                      int n_arrivals) {
    if (copies()) {
        bulk_map_prefetch(w_map);
        bulk_map_prefetch(x_map);
        prepare_barriers(a, m, n_arrivals);
    }
    __syncthreads();
    if (a.sharers > 1)
        cluster_sync();
    let_next_start();
}

/* Of a warp behind the consumers'. */
static __device__ void copy_all(const wide_args &a, const CUtensorMap *w_map, const CUtensorMap *x_map, const shared_places &m, int rank,
                                int w_bytes) {
    if (copies()) {
        producer by(a, w_map, x_map, m, rank, w_bytes);
        by.begin();
        by.run();
    }
    __syncwarp();
}

template <int N, bool TOGETHER, bool PLAIN>
static __device__ void multiply_all(const wide_args &a, const shared_places &m, int rank, int w_bytes, int warp) {
    consumer<N, TOGETHER, PLAIN> c = {a, m, rank, w_bytes + X_BYTES, warp / 4, warp % 4, (int)threadIdx.x % 32, 0, {}, {}};
    c.run();
    __syncwarp();
}

/* Registers that the copying warpgroup leaves go to the others' sums (setmaxnreg). */
template <int N>
__global__ void __launch_bounds__(THREADS, 1)
    wide_by_turns(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap x_map,
                  const __grid_constant__ wide_args a) {
    extern __shared__ unsigned char unaligned[];
    __shared__ uint64_t barriers[2 * MAX_STAGES];
    int w_bytes = a.octets * 2 * ATOM, warp = (int)of_warp(threadIdx.x / 32), rank = a.sharers > 1 ? cluster_rank() : 0;
    shared_places m = places_of(a, unaligned, barriers, w_bytes);
    begin_together(a, &w_map, &x_map, m, 1);
    if (warp >= WARPS) {
        registers_fewer<40>();
        copy_all(a, &w_map, &x_map, m, rank, w_bytes);
    } else {
        registers_more<232>();
        multiply_all<N, false, false>(a, m, rank, w_bytes, warp);
    }
    if (a.sharers > 1)
        cluster_sync(); // others tell this block that they are done, to the end
}

/* 104 registers for 9 warps leave room for 14 of 48: a block of it and one of the ADD_NORM before it are on a multiprocessor at the same time. */
template <int N, bool PLAIN>
__global__ void __maxnreg__(104) wide_together(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap x_map,
                                               const __grid_constant__ wide_args a) {
    extern __shared__ unsigned char unaligned[];
    __shared__ uint64_t barriers[2 * MAX_STAGES];
    int w_bytes = a.octets * 2 * ATOM, warp = (int)of_warp(threadIdx.x / 32), rank = a.sharers > 1 ? cluster_rank() : 0;
    shared_places m = places_of(a, unaligned, barriers, w_bytes);
    begin_together(a, &w_map, &x_map, m, GROUPS);
    if (warp >= WARPS)
        copy_all(a, &w_map, &x_map, m, rank, w_bytes);
    else
        multiply_all<N, true, PLAIN>(a, m, rank, w_bytes, warp);
    if (a.sharers > 1)
        cluster_sync();
}

// ---- how it is cut --------------------------------------------------------------------------------------------------

enum { SHARED_MOST = 227 << 10, MAX_SHARERS = 2 };

int up_to(int n, int of) { return (n + of - 1) / of; }
int columns_of(const struct dwide *a) { return (int)a->w.out / 2; }

using kernel = void (*)(CUtensorMap, CUtensorMap, wide_args);
struct instance {
    int octets; // of columns
    kernel by_turns, together, together_plain;
};
const instance INSTANCES[] = {{7, wide_by_turns<112>, wide_together<112, false>, wide_together<112, true>},
                              {9, wide_by_turns<144>, wide_together<144, false>, wide_together<144, true>},
                              {11, wide_by_turns<176>, nullptr, nullptr}};

const instance *instance_of(int octets) {
    for (const instance &i : INSTANCES)
        if (i.octets == octets)
            return &i;
    return nullptr;
}

int shared_bytes(const struct wide_cut *c) {
    int scales = GROUPS * 2 * c->octets * 2 * 32;
    return ATOM + c->n_stages * (c->octets * 2 * ATOM + X_BYTES) + WARPS * STAGING + scales;
}

/* [gate, up][octet][row of 8][column] */
bool map_weight(CUtensorMap *map, const struct dwide *a, const struct wide_cut *c) {
    cuuint64_t row = (cuuint64_t)a->w.in, apart = columns_of(a);
    cuuint64_t size[4] = {row, 8, apart / 8, 2}, strides[3] = {row, row * 8, row * apart};
    cuuint32_t box[4] = {PIECE_BYTES, 8, (cuuint32_t)c->octets, 2u / c->sharers};
    return encode_rows(map, a->w.at, 4, size, strides, box, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
}

bool map_tokens(CUtensorMap *map, struct dmat x, int n_rows) {
    cuuint64_t size[2] = {(cuuint64_t)x.width, (cuuint64_t)n_rows}, strides[1] = {(cuuint64_t)x.stride};
    cuuint32_t box[2] = {PIECE_BYTES, TOKENS};
    return encode_rows(map, x.at, 2, size, strides, box, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
}

} // namespace

int wide_blocks(int sharers) {
    static int found[MAX_SHARERS + 1];
    if (found[sharers] == 0)
        found[sharers] = blocks_at_once(wide_by_turns<144>, sharers, THREADS, SHARED_MOST - ATOM);
    return found[sharers];
}

int wide_stages(int octets) {
    struct wide_cut c = {octets, 0, MAX_STAGES, 1, false};
    while (c.n_stages > 0 && shared_bytes(&c) > SHARED_MOST - ATOM)
        c.n_stages--;
    return c.n_stages;
}

bool wide_takes_cut(int n_rows, const struct wide_cut *c) {
    return instance_of(c->octets) && (!c->together || instance_of(c->octets)->together) && c->sharers >= 1 && c->sharers <= MAX_SHARERS &&
           c->n_blocks >= c->sharers && c->n_blocks % c->sharers == 0 && c->n_stages >= 2 && c->n_stages <= wide_stages(c->octets) &&
           up_to(n_rows, TOKENS) % c->sharers == 0;
}

/* That a cluster computes, each of as many tiles as it has blocks. */
static int cluster_tiles(const struct dwide *a, int n_rows, const struct wide_cut *c) {
    return up_to(n_rows, TOKENS) / c->sharers * up_to(up_to(columns_of(a), 8), c->octets);
}

/* About how many cycles it takes, as measured on an H200 at the clock of a step: what a stage needs of the tensor core, of the L2 and of
 * memory; the last tile's end; and what is the same for all. */
static double cycles_of(const struct dwide *a, int n_rows, const struct wide_cut *c) {
    double rows = c->octets * 16, token_tiles = up_to(n_rows, TOKENS), stages = up_to((int)a->w.in, PIECE_BYTES);
    double passes = up_to(cluster_tiles(a, n_rows, c) * c->sharers, c->n_blocks);
    double l2 = (rows / c->sharers + TOKENS) * PIECE_BYTES / 45, memory = rows * PIECE_BYTES * c->n_blocks / token_tiles / 2700;
    return 8000 + passes * stages * fmax(4 * rows, fmax(l2, memory)) + 220 * c->octets;
}

struct wide_cut wide_cut_of(const struct dwide *a, int n_rows) {
    struct wide_cut best = {};
    double least = INFINITY;
    for (int sharers = 1; sharers <= 2; sharers++)
        for (const instance &i : INSTANCES) {
            struct wide_cut c = {i.octets, wide_blocks(sharers), wide_stages(i.octets), sharers, n_rows <= TOKENS};
            if (wide_takes_cut(n_rows, &c) && cycles_of(a, n_rows, &c) < least) {
                best = c;
                least = cycles_of(a, n_rows, &c);
            }
        }
    return best;
}

bool wide_takes(const struct dwide *a, struct dmat x, struct dmat y, int n_rows) {
    struct dweight w = a->w;
    bool in_place = w.in % 16 == 0 && x.stride % 16 == 0 && (uintptr_t)w.at % 16 == 0 && (uintptr_t)x.at % 16 == 0 &&
                    (uintptr_t)y.at % 16 == 0 && y.stride % 8 == 0;
    return w.element == ELEMENT_E4M3 && x.element == ELEMENT_E4M3 && x.scale && w.scale && in_place && n_rows >= 1 &&
           w.out <= INT32_MAX / 4 && w.in <= INT32_MAX / 4 && w.out % 16 == 0 && a->act <= 1 &&
           (y.element == ELEMENT_F16 || y.element == ELEMENT_BF16);
}

cudaError_t launch_wide_linear_cut(cudaStream_t stream, int n_rows, const struct dwide *a, struct dmat x, struct dmat y,
                                   const struct wide_cut *cut) {
    const float LOG2_E = 1.4426950408889634f, GELU = 2 * 0.7978845608028654f * LOG2_E;
    CUtensorMap w_map, x_map;
    if ((a->twin.at && !is_static_twin(a->twin)) || !map_weight(&w_map, a, cut) || !map_tokens(&x_map, x, n_rows))
        return cudaErrorInvalidValue;
    wide_args args = {};
    args.w_scale = a->w.scale;
    args.bias = a->bias;
    args.x_scale = x.scale;
    args.y = y.at;
    args.most = y.most;
    args.y_stride = y.stride;
    args.n_columns = columns_of(a);
    args.n_tokens = n_rows;
    args.n_pieces = up_to((int)a->w.in, PIECE_BYTES);
    args.octets = cut->octets;
    args.token_tiles = up_to(n_rows, TOKENS);
    args.n_tiles = cluster_tiles(a, n_rows, cut);
    args.n_stages = cut->n_stages;
    args.sharers = cut->sharers;
    args.bend = a->act == 0 ? LOG2_E : GELU;
    args.twist = a->act == 0 ? 0 : GELU * 0.044715f;
    args.y_element = y.element;
    args.twin = static_cast<uint8_t *>(a->twin.at);
    args.twin_stride = a->twin.stride;
    args.twin_factor = 1 / a->twin.static_scale;
    const instance *i = instance_of(cut->octets);
    kernel together = a->act == 0 && !a->bias ? i->together_plain : i->together, run = cut->together ? together : i->by_turns;
    int shared = shared_bytes(cut), wanted = args.n_tiles * cut->sharers, n_blocks = cut->n_blocks < wanted ? cut->n_blocks : wanted;
    cudaFuncSetAttribute(run, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    int n_threads = cut->together ? CONSUMERS + 32 : THREADS;
    return launch_cluster(run, dim3(n_blocks), cut->sharers, dim3(n_threads), shared, stream, w_map, x_map, args);
}

cudaError_t launch_wide_linear(cudaStream_t stream, int n_rows, const struct dwide *a, struct dmat x, struct dmat y) {
    struct wide_cut cut = wide_cut_of(a, n_rows);
    return launch_wide_linear_cut(stream, n_rows, a, x, y, &cut);
}
