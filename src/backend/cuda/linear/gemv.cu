/* gemv.cu - LINEAR of a few rows, with what stands behind it: see core/ops.def.
 *
 *     y [M, units] = ending(x [M, in] W^T + b)          1 <= M <= 8, bound by reading W once
 *
 * gemv_kernel.cuh is the kernel; here is how it works, is cut and launched. Of one row, where it fits: gemv_once.cu.
 *
 * Mathematics on the tensor core with W as the first operand: m16n8k16, 16 rows of W by 8 tokens. The order of a sum's
 * terms is free as long as both operands agree, so a lane takes whatever 16 bytes of a row suit it:
 *
 *     chunk: 64 bytes of each of 16 * M_TILES rows. Lane 4r + q holds bytes 16q .. 16q+15 of rows r and r + 8 of every
 *     tile, a half-warp load being 64 bytes of each of 4 rows; of e4m3 these are 16 elements, 4 steps of the tensor
 *     core; of 16 bits 8, 2. The same elements of token r are 32 (16) bytes of x in shared memory, which is stored with
 *     a pitch that keeps banks apart.
 *
 * e4m3 becomes half on the way into the tensor core, two elements an instruction: exact. (mma.sync of e4m3 does the
 * same on Hopper, and would want x in e4m3.)
 *
 * Who does what. The rows of W go to groups of thread blocks in equal shares, whatever their number; a group (a
 * cluster) shares the columns among its blocks, so that as little as possible of x has to be copied to each
 * multiprocessor; a block's warps share the block's rows and columns further (row_warps, column_warps). A warp walks
 * its rows in passes of 16 * M_TILES rows, each over all its chunks. At a pass's end the warps leave their sums in
 * shared memory, and go on; the sums over column warps and blocks are added, in that order, at the next pass's end, so
 * nobody waits for anybody while loads are under way. What a row of y is does not depend on the other tokens, and is
 * the same every time.
 *
 * Loads. Each lane copies what it will itself read into a queue in shared memory (cp.async, DEPTH chunks), so a warp
 * needs no barrier to take it out. The queue is filled before the wait for the node before: W is never written. 8 warps
 * x 12 KB on each of 132 multiprocessors keep 12.7 MB under way; 4.6 TB/s at a microsecond need 4.6 MB.
 *
 * Bytes: W once, x once a block. */
#include "backend/cuda/linear/ending.h"
#include "backend/cuda/linear/gemv.h"
#include "backend/cuda/linear/gemv_kernel.cuh"
#include "backend/cuda/ptx/launching.cuh"
#include "backend/cuda/value.h"

// ---- how it is cut --------------------------------------------------------------------------------------------------

enum { X_ROOM = 80 << 10, WARPS = 8, SMALL_WEIGHT = 40 << 20 };

static gemv_end end_of(const struct dgemv *a) { return a->ending.kind == ENDING_GATED ? END_GATED : END_PLAIN; }
static bool in_pairs(const struct dgemv *a) { return in_pairs(end_of(a)); }
static int units_of(const struct dgemv *a) { return (int)(in_pairs(a) ? a->w.out / 2 : a->w.out); }

static int up_to(int n, int of) { return (n + of - 1) / of; }
static int chunk_of(enum element e) { return e == ELEMENT_E4M3 ? CHUNK_BYTES : CHUNK_BYTES / 2; }

/* How a block takes x. */
struct x_parts {
    int n_parts, steps, n_slots, pitch;
    bool by_threads;
    int bytes;
};

static struct x_parts x_parts_of(const struct dgemv *a, int n_rows, const struct gemv_cut *c) {
    int x_bytes = chunk_of(a->w.element) * 2,
        steps = up_to(up_to(up_to((int)a->w.in, chunk_of(a->w.element)), c->cluster), c->column_warps);
    int a_step = c->column_warps * x_bytes, n_threads = c->row_warps * c->column_warps * 32;
    int aside = a->w.element == ELEMENT_E4M3 ? e4m3_weights::X_ASIDE : plain_weights<__half>::X_ASIDE;
    struct x_parts p = {.n_parts = 1, .steps = steps, .n_slots = 1};
    p.by_threads = n_rows == 1 && steps * a_step <= X_BY_THREADS * PIECE * n_threads;
    if (!p.by_threads) {
        int most = X_ROOM / X_SLOTS / n_rows / a_step;
        p.steps = up_to(steps, X_SLOTS);
        p.steps = p.steps < most ? p.steps : most < 1 ? 1 : most;
        p.n_parts = up_to(steps, p.steps);
        p.n_slots = p.n_parts < X_SLOTS ? p.n_parts : X_SLOTS;
    }
    p.pitch = up_to(p.steps * a_step, 128) * 128 + aside;
    p.bytes = p.n_slots * n_rows * p.pitch;
    return p;
}

/* How deep queues are: all that a block of a small weight reads has a place. */
static constexpr int deep_queue(int m_tiles) { return m_tiles == 1 ? 12 : 8; }
static int depth_of(const struct gemv_cut *c) { return c->deep && c->cluster == 1 ? deep_queue(c->m_tiles) : 6; }

/* What a block keeps in shared memory beside queues and x: floats. No multiprocessor has two blocks, as the next launch
 * would put them on one that is free early, and each would take twice as long. */
struct rooms {
    int scale, bias, warp_sums, block_sums;
    size_t bytes;
};

static struct rooms rooms_of(const struct dgemv *a, int n_rows, const struct gemv_cut *c) {
    struct dweight w = a->w;
    int units = units_of(a), n_warps = c->row_warps * c->column_warps, rows = 16 * c->m_tiles;
    int of_group = up_to(units, c->n_blocks / c->cluster) * (in_pairs(a) ? 2 : 1);
    int n_passes = up_to(up_to(up_to(units, c->n_blocks / c->cluster), c->row_warps), in_pairs(a) ? rows / 2 : rows),
        buffers = n_passes > 1 ? 2 : 1;
    struct rooms r = {.scale = w.element == ELEMENT_E4M3 ? of_group : 0, .bias = a->bias ? of_group : 0};
    r.warp_sums = c->column_warps == 1 && c->cluster > 1 ? 0 : buffers * n_warps * n_rows * (rows + 4);
    r.block_sums = c->cluster > 1 ? buffers * n_rows * (c->row_warps * rows + 4) : 0;
    r.bytes = (size_t)n_warps * depth_of(c) * c->m_tiles * 32 * 2 * PIECE + (size_t)x_parts_of(a, n_rows, c).bytes +
              sizeof(float) * ((size_t)r.scale + r.bias + r.warp_sums + r.block_sums);
    r.bytes = r.bytes > GEMV_SHARED_LEAST ? r.bytes : GEMV_SHARED_LEAST;
    return r;
}

template <gemv_end E> using kernel = void (*)(gemv_args<E>);

template <class W, int M_TILES, gemv_end E> static kernel<E> kernel_for_cut(const struct gemv_cut *c) {
    if (c->cluster > 1)
        return gemv<W, M_TILES, 6, E, true>;
    return c->deep ? gemv<W, M_TILES, deep_queue(M_TILES), E, false> : gemv<W, M_TILES, 6, E, false>;
}

template <class W, gemv_end E> static kernel<E> kernel_for(const struct gemv_cut *c) {
    switch (c->m_tiles) {
    case 1: return kernel_for_cut<W, 1, E>(c);
    case 2: return kernel_for_cut<W, 2, E>(c);
    default: return kernel_for_cut<W, 3, E>(c);
    }
}

template <gemv_end E> static kernel<E> kernel_of(enum element w, const struct gemv_cut *c) {
    if (w == ELEMENT_F16)
        return kernel_for<plain_weights<__half>, E>(c);
    if (w == ELEMENT_BF16)
        return kernel_for<plain_weights<__nv_bfloat16>, E>(c);
    return kernel_for<e4m3_weights, E>(c);
}

int gemv_blocks(int cluster) {
    const struct gemv_cut c = {1, 1, 1, cluster, cluster, false};
    return blocks_at_once(kernel_of<END_PLAIN>(ELEMENT_E4M3, &c), cluster, WARPS * 32, GEMV_SHARED_MOST);
}

/* About how long a block takes, in clocks of a multiprocessor: what its warps issue, two to a quarter, or what it
 * reads. Figures are those that order the cuts of bench/cuda/linear.cu as an H200 does. */
static int64_t cost_of(const struct dgemv *a, int n_rows, const struct gemv_cut *c) {
    bool narrow = a->w.element == ELEMENT_E4M3;
    int units = up_to(units_of(a), c->n_blocks / c->cluster);
    int64_t n_passes = up_to(up_to(units, c->row_warps), c->m_tiles * (in_pairs(a) ? 8 : 16));
    int64_t chunks = up_to(up_to((int)a->w.in, chunk_of(a->w.element)), c->cluster),
            n_steps = up_to((int)chunks, c->column_warps);
    int64_t step = 40 + c->m_tiles * (narrow ? 71 : 33);
    int64_t end = 300 + (c->column_warps > 1 ? 200 * c->column_warps : 0) + (c->cluster > 1 ? 1200 : 0);
    struct x_parts x = x_parts_of(a, n_rows, c);
    int64_t bytes = chunks * (units * (in_pairs(a) ? 2 : 1) * CHUNK_BYTES +
                              n_rows * chunk_of(a->w.element) * 2 * (x.n_parts > x.n_slots ? n_passes : 1));
    int64_t issued = 2 * n_passes * (n_steps * step + end), read = bytes / 26;
    read += read * (WARPS / c->column_warps - 1) / 120; // memory likes long pieces of a row
    read += !narrow && c->m_tiles == 3 ? read / 25 : 0;
    return (issued > read ? issued + read / 4 : read + issued / 4) + (c->cluster > 1 ? 2500 : 0);
}

bool gemv_takes_cut(const struct dgemv *a, int n_rows, const struct gemv_cut *cut) {
    return rooms_of(a, n_rows, cut).bytes <= GEMV_SHARED_MOST;
}

/* Whether a warp reads much more than a queue: else a longer one only takes longer to fill, by a few per cent of a
 * node; or hardly more, so that a longer one has all of it when the node before ends. */
static bool reads_long(const struct dgemv *a, const struct gemv_cut *c) {
    int units = up_to(up_to(units_of(a), c->n_blocks / c->cluster), c->row_warps);
    int steps = up_to(up_to(up_to((int)a->w.in, chunk_of(a->w.element)), c->cluster), c->column_warps);
    return steps * up_to(units, c->m_tiles * (in_pairs(a) ? 8 : 16)) > (c->m_tiles == 1 ? 6 : 16);
}

int gemv_blocks_for(const struct dgemv *a, int cluster) {
    int n = gemv_blocks(cluster);
    return a->held > n / 16 && a->held <= n / 4 ? (n - a->held) / cluster * cluster : n;
}

/* Three tiles' queues leave no room beside a block of moe_down_join.cuh, so that a small weight is late with them. Of
 * large weights, and without experts, more bytes under way count for more (docs/lab/cuda_between_products.md). */
static int most_tiles(const struct dgemv *a, int n_rows) {
    bool small = a->w.element == ELEMENT_E4M3 && a->w.out * a->w.in < SMALL_WEIGHT;
    return n_rows == 1 && small && a->among_experts ? 2 : GEMV_MAX_M_TILES;
}

struct gemv_cut gemv_cut_of(const struct dgemv *a, int n_rows) {
    struct gemv_cut best = {}; // none
    int64_t least = INT64_MAX;
    for (int cluster = 1; cluster <= MAX_CLUSTER; cluster *= 2)
        for (int row_warps = 1; row_warps <= WARPS; row_warps *= 2)
            for (int m_tiles = 1; m_tiles <= most_tiles(a, n_rows); m_tiles++) {
                struct gemv_cut c = {m_tiles, row_warps, WARPS / row_warps, cluster, gemv_blocks_for(a, cluster), true};
                if (c.n_blocks == 0) // fewer are free than a cluster has
                    continue;
                c.deep = reads_long(a, &c) && gemv_takes_cut(a, n_rows, &c);
                if (gemv_takes_cut(a, n_rows, &c) && cost_of(a, n_rows, &c) < least) {
                    best = c;
                    least = cost_of(a, n_rows, &c);
                }
            }
    if (best.n_blocks == 0 && a->held > 0) { // shares of fewer blocks are longer
        struct dgemv all = *a;
        all.held = 0;
        return gemv_cut_of(&all, n_rows);
    }
    return best;
}

bool gemv_takes(const struct dgemv *a, struct dmat x, struct dmat y, int n_rows) {
    struct dweight w = a->w;
    enum element product = w.element == ELEMENT_E4M3 ? ELEMENT_F16 : w.element;
    bool elements = (product == ELEMENT_F16 || product == ELEMENT_BF16) && x.element == product &&
                    (y.element == ELEMENT_F32 || y.element == ELEMENT_F16 || y.element == ELEMENT_BF16);
    bool lies_well = (w.element == ELEMENT_E4M3 ? w.in % 16 == 0 : w.in % 8 == 0) && (uintptr_t)w.at % 16 == 0 &&
                     (uintptr_t)x.at % 16 == 0 && x.stride % 8 == 0;
    bool counts = w.in < 1 << 24 && w.out < 1 << 24 && w.out * w.in * (w.element == ELEMENT_E4M3 ? 1 : 2) <= UINT32_MAX;
    if (!elements || !lies_well || !counts || n_rows < 1 || n_rows > GEMV_MAX_ROWS || (in_pairs(a) && w.out % 2))
        return false;
    return gemv_cut_of(a, n_rows).n_blocks > 0;
}

// ---- the launcher ---------------------------------------------------------------------------------------------------

static void fill_end(const struct dgemv *a, end_args<END_PLAIN> *e) {
    (void)a;
    (void)e;
}
static void fill_end(const struct dgemv *a, end_args<END_GATED> *e) { *e = {a->ending.act, a->ending.limit}; }
template <gemv_end E>
static void launch(const struct launch *l, int n_rows, const struct dgemv *a, struct dmat x, struct dmat y,
                   const struct gemv_cut *cut) {
    struct rooms rooms = rooms_of(a, n_rows, cut);
    struct x_parts parts = x_parts_of(a, n_rows, cut);
    int units = units_of(a), n_groups = cut->n_blocks / cut->cluster,
        chunks = up_to((int)a->w.in, chunk_of(a->w.element));
    gemv_args<E> args = {};
    args.w = static_cast<const unsigned char *>(a->w.at);
    args.x = static_cast<const unsigned char *>(x.at);
    args.x_pitch = x.stride * 2;
    args.in = (int)a->w.in;
    args.out_units = units;
    args.n_tokens = n_rows;
    args.row_warps = cut->row_warps;
    args.log2_column_warps = __builtin_ctz(cut->column_warps);
    args.group_units = units / n_groups;
    args.longer_groups = units % n_groups;
    args.rank_chunks = chunks / cut->cluster;
    args.longer_ranks = chunks % cut->cluster;
    args.sub_units = up_to(up_to(units, n_groups), cut->row_warps);
    args.n_passes = up_to(args.sub_units, cut->m_tiles * (in_pairs(E) ? 8 : 16));
    args.pass_units = up_to(args.sub_units, args.n_passes);
    args.part_steps = parts.steps;
    args.n_parts = parts.n_parts;
    args.n_slots = parts.n_slots;
    args.x_pitch_there = parts.pitch;
    args.x_by_threads = parts.by_threads;
    args.scale_room = rooms.scale;
    args.bias_room = rooms.bias;
    args.warp_sums_room = rooms.warp_sums;
    args.scale = a->w.scale;
    args.bias = a->bias;
    args.y = y.at;
    args.y_stride = y.stride;
    args.y_element = y.element;
    fill_end(a, &args.end);
    auto k = kernel_of<E>(a->w.element, cut);
    cudaFuncSetAttribute(k, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)rooms.bytes);
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = nodes_start_early();
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = cut->cluster;
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    int n_warps = cut->row_warps * cut->column_warps;
    cudaLaunchConfig_t config = {dim3(cut->n_blocks), dim3(n_warps * 32), rooms.bytes, l->stream, attributes, 2};
    cudaLaunchKernelEx(&config, k, args);
}

void launch_gemv_cut(const struct launch *l, int n_rows, const struct dgemv *a, struct dmat x, struct dmat y,
                     const struct gemv_cut *cut) {
    switch (end_of(a)) {
    case END_PLAIN: launch<END_PLAIN>(l, n_rows, a, x, y, cut); break;
    case END_GATED: launch<END_GATED>(l, n_rows, a, x, y, cut); break;
    }
}

void launch_gemv(const struct launch *l, int n_rows, const struct dgemv *a, struct dmat x, struct dmat y) {
    struct gemv_cut cut = gemv_cut_of(a, n_rows);
    launch_gemv_cut(l, n_rows, a, x, y, &cut);
}
