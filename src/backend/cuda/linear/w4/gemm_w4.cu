/* gemm_w4.cu - LINEAR by weights of four bits, with GATED_ACT behind it or alone: see core/ops.def and weights/quads.h.
 *
 *     y [M, units] = ending(x [M, in] W^T + b)          x float16; up to 32 rows of x to each reading of W
 *
 * gemm_w4_kernel.cuh is the kernel; here is how it works, is cut and launched.
 *
 * Mathematics by wgmma with W as the first operand, from registers: m64nNk16, 64 rows of W by N tokens, float32 sums.
 * Nibbles become float16 in registers (quads.cuh): they lie in memory in the order of fragments, which wgmma wants of
 * each warp as m16n8k16 does, so a lane loads 16 bytes for four steps, and 9 to 13 instructions make the fragment of a
 * step of 256 weights. x is multiplied as it is, from shared memory: nothing is quantised. With m16n8k16 in its place
 * each warp loaded the tokens for itself, which at 32 rows took as long as all else.
 *
 *     tile    16 rows of W, or 8 gates and their 8 ups, which are a warp's
 *     piece   a tile's 128 columns: a block of quads.h
 *     block   one thread that fills a ring of stages by bulk copies, and row_warps x column_warps warps that multiply,
 *             four of which are a warpgroup. A stage is column_warps pieces of each of the block's row_warps tiles, and
 *             the same columns of x. Of few tiles to a block column warps share their pieces
 *     cluster `split` blocks that share the columns, where there are fewer tiles than multiprocessors like
 *
 * A warp makes the fragments of half a piece while the half before is multiplied. Sums of column warps and blocks meet
 * in the shared memory of one of them and are added in the order of columns. How a matrix is cut does not depend on the
 * rows of x, and a sum has its terms in the same order for any: a row of y is the same, to the bit, whatever stands
 * beside its x. Weights are never written, so the first stages' are asked for before the wait for the node before; x
 * follows into the same stages, ahead of the other weights.
 *
 * More rows than 32 read W again, from the L2 as far as it is there; of many gemm_w4_many.cu is faster.
 *
 * Bytes: W once for 32 rows; x once a block, from the L2. */
#include "backend/cuda/linear/w4/gemm_w4.h"
#include "backend/cuda/linear/w4/gemm_w4_kernel.cuh"
#include "backend/cuda/linear/w4/gemm_w4_maps.cuh"

enum { W4_SHARED_MOST = 224 << 10, W4_MOST_SPLIT = 8 };

static int w4_eights(int n_rows) { return n_rows <= 8 ? 1 : n_rows <= 16 ? 2 : 4; }

using w4_kernel = void (*)(CUtensorMap, CUtensorMap, gemm_w4_args);

template <quad_kind KIND, int GROUP> static w4_kernel w4_kernel_for(int eights) {
    switch (eights) {
    case 1: return gemm_w4<KIND, GROUP, 1>;
    case 2: return gemm_w4<KIND, GROUP, 2>;
    default: return gemm_w4<KIND, GROUP, 4>;
    }
}
static w4_kernel w4_kernel_of(struct dquads q, int eights) {
    switch (q.kind) {
    case QUADS_NVFP4: return w4_kernel_for<QUADS_NVFP4, 16>(eights);
    case QUADS_MXFP4: return w4_kernel_for<QUADS_MXFP4, 32>(eights);
    case QUADS_Q8_0: return w4_kernel_for<QUADS_Q8_0, 32>(eights);
    case QUADS_Q4_K: return w4_kernel_for<QUADS_Q4_K, 32>(eights);
    case QUADS_Q6_K: return w4_kernel_for<QUADS_Q6_K, 16>(eights);
    default: break;
    }
    switch (q.group) {
    case 32: return w4_kernel_for<QUADS_INT4, 32>(eights);
    case 64: return w4_kernel_for<QUADS_INT4, 64>(eights);
    default: return w4_kernel_for<QUADS_INT4, 128>(eights);
    }
}

// ---- how it is cut --------------------------------------------------------------------------------------------------

/* Of shared memory, in bytes. */
struct w4_rooms {
    int scales; // floats
    int received, stage, n_stages;
    size_t bytes;
};

/* Hardly more than half of a multiprocessor's: clusters would get two of their blocks on some and leave others free. */
enum { W4_SHARED_ALONE = 115840 };

static struct w4_rooms w4_rooms_of(const struct dweight *w, bool biased, int eights, const struct gemm_w4_cut *c) {
    struct w4_rooms r = {};
    int tiles = c->row_warps, n_ranks = c->split * c->column_warps;
    int n_passes = w4_up_to(quads_tiles(w->quads, w->out), (int64_t)tiles * (c->n_blocks / c->split));
    r.scales = n_passes * tiles * 16;
    r.received = n_ranks > 1 ? w4_up_to(tiles * eights, c->split) * n_ranks * 512 : 0;
    r.stage = w4_w_room(c->column_warps, tiles, quads_block_bytes(w->quads)) + w4_x_bytes(c->column_warps, eights);
    size_t beside = (size_t)r.scales * (biased ? 2 : 1) * sizeof(float) + r.received + ATOM;
    int most = beside < W4_SHARED_MOST ? (int)((W4_SHARED_MOST - beside) / r.stage) : 0;
    r.n_stages = most < c->most_stages ? most : c->most_stages;
    r.bytes = beside + (size_t)r.n_stages * r.stage;
    if (c->split > 1 && r.bytes < W4_SHARED_ALONE)
        r.bytes = W4_SHARED_ALONE;
    return r;
}

bool gemm_w4_takes_cut(const struct dweight *w, int n_rows, const struct gemm_w4_cut *c) {
    int n_ranks = c->split * c->column_warps;
    bool counts = c->row_warps >= 4 && c->row_warps % 4 == 0 && c->column_warps >= 1 &&
                  c->row_warps * c->column_warps <= GEMM_W4_MOST_WARPS && c->split >= 1 && c->n_blocks >= c->split &&
                  c->n_blocks % c->split == 0 && c->most_stages <= W4_MOST_STAGES;
    if (!counts || (n_ranks > 1 && (int64_t)c->row_warps * (c->n_blocks / c->split) < quads_tiles(w->quads, w->out)))
        return false;
    return w4_rooms_of(w, true, w4_eights(n_rows), c).n_stages >= 2;
}

static int w4_blocks(int split) {
    return blocks_at_once(gemm_w4<QUADS_NVFP4, 16, 4>, split, (GEMM_W4_MOST_WARPS + 1) * 32, W4_SHARED_MOST);
}

/* Whether a multiprocessor may get two of a node's blocks where others have none. Clusters ask for too much memory for
 * that; others are alone by their registers. */
static bool w4_doubles_up(const struct gemm_w4_cut *c) {
    const int alone = 14; // warps
    return c->split == 1 && c->n_blocks < n_multiprocessors() && c->row_warps * c->column_warps < alone;
}

/* About how long a block takes, in clocks: a turn is what its warps issue, what memory and the L2 bring a
 * multiprocessor, or the latencies of one warp. */
static int64_t w4_cost(const struct dweight *w, int eights, const struct gemm_w4_cut *c) {
    int64_t pieces = w4_up_to(quads_blocks(w->in), c->split),
            n_passes = w4_up_to(quads_tiles(w->quads, w->out), (int64_t)c->row_warps * (c->n_blocks / c->split)),
            n_turns = n_passes * w4_up_to(pieces, c->column_warps), n_blocks = (int64_t)c->row_warps * c->column_warps;
    int64_t read =
                n_blocks * quads_block_bytes(w->quads) / 22 + (int64_t)c->column_warps * W4_HALVES * eights * ATOM / 40,
            issue = n_blocks * (36 + 2 * eights), turn = issue > read ? issue : read;
    int64_t cost = n_turns * (turn > 500 ? turn : 500) + (c->column_warps > 1 ? 300 + 100 * c->column_warps : 0) +
                   (c->split > 1 ? 2000 + 700 * c->split : 0);
    return w4_doubles_up(c) ? 2 * cost : cost;
}

/* Stages whose W is asked for before the wait. x of the first comes behind that, and with it the first product: in a
 * step of 8 rows (Qwen2.5-7B AWQ) 4,870 tokens/s with 44 KB, 4,746 with all of the ring. */
static int w4_early(const struct dweight *w, const struct gemm_w4_cut *c, int n_stages) {
    int n = (44 << 10) / w4_w_bytes(c->column_warps, c->row_warps, quads_block_bytes(w->quads));
    return n < 1 ? 1 : n < n_stages ? n : n_stages;
}

/* Of the ring: in all shapes and at 8 and 32 rows four or five were faster than fewer and than all that there is room
 * for. */
static int w4_stages(const struct dweight *w, int column_warps, int row_warps, int eights) {
    int stage = w4_w_room(column_warps, row_warps, quads_block_bytes(w->quads)) + w4_x_bytes(column_warps, eights),
        n = (135 << 10) / stage, least = (64 << 10) / stage;
    n = n < 5 ? n : least < 5 ? 5 : least; // in flight they are to be enough, where they are small
    return n < 3 ? 3 : n > W4_MOST_STAGES ? W4_MOST_STAGES : n;
}

/* The best number of row warps with this split and these column warps; false: there is none. */
static bool w4_best_rows(const struct dweight *w, int n_rows, struct gemm_w4_cut *c, int64_t *cost) {
    int64_t n_tiles = quads_tiles(w->quads, w->out);
    int at_once = w4_blocks(c->split) / c->split;
    struct gemm_w4_cut best = *c;
    *cost = INT64_MAX;
    for (int rows = 4; rows * c->column_warps <= GEMM_W4_MOST_WARPS; rows += 4) {
        int wanted = w4_up_to(n_tiles, rows);
        struct gemm_w4_cut tried = *c;
        tried.row_warps = rows;
        tried.n_blocks = (wanted < at_once ? wanted : at_once) * c->split;
        tried.most_stages = w4_stages(w, c->column_warps, rows, w4_eights(n_rows));
        if ((c->split * c->column_warps > 1 && wanted > at_once) || !gemm_w4_takes_cut(w, n_rows, &tried))
            continue;
        int64_t is = w4_cost(w, w4_eights(n_rows), &tried);
        if (is < *cost)
            best = tried, *cost = is;
    }
    *c = best;
    return *cost < INT64_MAX;
}

/* Split and column warps are the same for all numbers of rows, as they suit 8 and 32. */
struct gemm_w4_cut gemm_w4_cut_of(const struct dweight *w, int n_rows) {
    struct gemm_w4_cut best = {};
    int64_t least = INT64_MAX, cost, n_pieces = quads_blocks(w->in);
    for (int split = 1; split <= W4_MOST_SPLIT; split *= 2)
        for (int columns = 1; columns <= GEMM_W4_MOST_WARPS / 4; columns++) {
            struct gemm_w4_cut few = {0, columns, split, 0, 0}, many = few;
            int64_t of_few, of_many;
            if (columns * split > n_pieces || !w4_best_rows(w, 8, &few, &of_few) ||
                !w4_best_rows(w, GEMM_W4_SLAB, &many, &of_many) || of_few + of_many / 2 >= least)
                continue;
            least = of_few + of_many / 2;
            best = few;
        }
    if (least < INT64_MAX)
        w4_best_rows(w, n_rows, &best, &cost);
    return best;
}

bool gemm_w4_takes(const struct dgemm_w4 *a, struct dmat x, struct dmat y, int n_rows) {
    const struct dweight *w = &a->w;
    bool in_place = (uintptr_t)w->at % 16 == 0 && (uintptr_t)x.at % 16 == 0 && x.stride % 8 == 0 && w->in % 64 == 0;
    bool elements = w->element == ELEMENT_QUADS && x.element == ELEMENT_F16 &&
                    (y.element == ELEMENT_F32 || y.element == ELEMENT_F16 || y.element == ELEMENT_BF16);
    return in_place && elements && n_rows >= 1 && w->out <= INT32_MAX / 4 && w->in <= INT32_MAX / 4 &&
           (a->ending.kind == ENDING_GATED) == w->quads.gated && !(w->quads.gated && w->out % 2) &&
           gemm_w4_cut_of(w, n_rows).n_blocks > 0;
}

// ---- the launcher ---------------------------------------------------------------------------------------------------

cudaError_t launch_gemm_w4_cut(cudaStream_t stream, int n_rows, const struct dgemm_w4 *a, struct dmat x, struct dmat y,
                               const struct gemm_w4_cut *cut) {
    const struct dweight *w = &a->w;
    int eights = w4_eights(n_rows), pieces = cut->column_warps;
    struct w4_rooms rooms = w4_rooms_of(w, a->bias != nullptr, eights, cut);
    CUtensorMap w_map, x_map;
    if (!w4_map_weight(&w_map, w, pieces, cut->row_warps) ||
        !w4_map_tokens(&x_map, x, w->in, n_rows, eights * 8, W4_HALVES * pieces))
        return cudaErrorInvalidValue;
    gemm_w4_args args = w4_args_of(n_rows, a, y);
    args.row_warps = cut->row_warps;
    args.column_warps = cut->column_warps;
    args.split = cut->split;
    args.n_stages = rooms.n_stages;
    args.n_early = w4_early(w, cut, rooms.n_stages);
    args.scale_room = rooms.scales;
    w4_kernel k = w4_kernel_of(w->quads, eights);
    allow_shared(k, W4_SHARED_MOST);
    dim3 grid((unsigned)cut->n_blocks, (unsigned)w4_up_to(n_rows, eights * 8));
    int n_threads = (cut->row_warps * cut->column_warps + 1) * 32;
    return launch_cluster(k, grid, cut->split, dim3(n_threads), rooms.bytes, stream, w_map, x_map, args);
}

cudaError_t launch_gemm_w4(cudaStream_t stream, int n_rows, const struct dgemm_w4 *a, struct dmat x, struct dmat y) {
    struct gemm_w4_cut cut = gemm_w4_cut_of(&a->w, n_rows);
    return launch_gemm_w4_cut(stream, n_rows, a, x, y, &cut);
}
