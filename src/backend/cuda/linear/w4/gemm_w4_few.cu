/* gemm_w4_few.cu - LINEAR of a few rows by weights of four bits, with GATED_ACT behind it or alone: see core/ops.def
 * and weights/quads.h.
 *
 *     y [M, units] = ending(x [M, in] W^T + b)          1 <= M <= 8, bound by reading W once
 *
 * A node of a step of few rows is as long as what happens behind the wait for the node before: so weights are on their
 * way by then, as many as their queues have room for, which of a small matrix is all of them; nothing is done twice
 * that can be done once; and warps meet twice.
 *
 * Mathematics by m16n8k16 with W as the first operand, 16 rows of W by 8 tokens. A lane's 16 bytes of a block's codes
 * are its words of four steps (weights/quads.h). INT4 is multiplied as the integers that codes are, as subnormal
 * halves: a pair of codes is one instruction from its word, where taking a zero point off and a scale on each would be
 * three. Of a group of columns sum(q x) - z sum(x) goes to the row's sums times the group's scale, in float32. Other
 * kinds are as quads.cuh has them.
 *
 *     segment  the sums of a tile over 1 / segments of its columns, by one warp. Where it is computed does not matter:
 *              sums of segments are added in the order of columns, so a row of y is the same, to the bit, whatever
 *              stands beside its x and however blocks and warps are cut
 *     queue    of a warp: copies of some blocks each, of its segments one after another, which lie so in memory
 *     block    as many tiles as others, give or take one; its warps share their segments. x of all its columns is
 *              there before the first product
 *     cluster  `split` blocks that share tiles' columns, where x of all of them is too long
 *
 * Of one row blocks take half of a multiprocessor's memory and registers, where x and two copies a warp have room in
 * that, so that the small nodes of a layer, and what comes behind those, start beside them: of Qwen2.5-7B (AWQ) 606
 * tokens/s where blocks of 180 KB gave 558.
 *
 * Bytes: W once; x once a block, from the L2. */
#include "backend/cuda/linear/w4/gemm_w4_few.h"
#include "backend/cuda/linear/w4/gemm_w4_few_sums.cuh"
#include "backend/cuda/linear/w4/gemm_w4_maps.cuh"

/* Of 64 registers: with what it has of shared memory small nodes find a place beside it. */
template <quad_kind KIND, int GROUP>
static __global__ void __launch_bounds__(W4_FEW_WARPS * 32, 2) gemm_w4_few(const __grid_constant__ w4_few_args a) {
    using products = w4_few_products<KIND, GROUP>;
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ __align__(8) uint64_t full[W4_FEW_WARPS * W4_FEW_COPIES], all_sums;
    const w4_few_place p(a, shared);
    w4_few_queue queue(a, p, full);
    let_next_start();
    const uint32_t all = shared_address(&all_sums);
    if (a.log2_split > 0) {
        if (threadIdx.x == 0) {
            barrier_init(all, 1);
            barrier_init_done();
            barrier_expect(all, (p.n_owned(a) << a.log2_segments) * p.sum_bytes(a));
        }
        cluster_is_here();
    }
    w4_few_bring_scales(a, p);
    const w4_few_x x(a, p, products::APART);
    wait_for_previous();
    x.bring();
    __syncthreads(); // x is there, and scales
    if (a.log2_split > 0)
        cluster_wait(); // all have begun
#pragma unroll 1
    for (int task = p.task; task < p.end_task; task++) {
        products sums;
        sums.begin();
        int piece = p.first_of(a, task) - p.first_piece, end = p.end_of(a, task) - p.first_piece;
#pragma unroll 1
        while (piece < end) {
            uint32_t block = queue.take();
#pragma unroll 1
            for (int until = min(piece + a.a_copy, end); piece < until; piece++, block += a.block_bytes)
                sums.add(a, x, block, p.lane, piece);
            queue.leave();
        }
        w4_few_leave(a, p, task, all, sums.sums());
    }
    if (a.log2_split > 0)
        barrier_wait(all, 0);
    else
        __syncthreads(); // sums of all segments are there
    w4_few_finish(a, p);
}

using w4_few_kernel = void (*)(w4_few_args);

static w4_few_kernel w4_few_kernel_of(struct dquads q) {
    switch (q.kind) {
    case QUADS_NVFP4: return gemm_w4_few<QUADS_NVFP4, 16>;
    case QUADS_MXFP4: return gemm_w4_few<QUADS_MXFP4, 32>;
    case QUADS_Q8_0: return gemm_w4_few<QUADS_Q8_0, 32>;
    case QUADS_Q4_K: return gemm_w4_few<QUADS_Q4_K, 32>;
    case QUADS_Q6_K: return gemm_w4_few<QUADS_Q6_K, 16>;
    default: break;
    }
    switch (q.group) {
    case 32: return gemm_w4_few<QUADS_INT4, 32>;
    case 64: return gemm_w4_few<QUADS_INT4, 64>;
    default: return gemm_w4_few<QUADS_INT4, 128>;
    }
}

// ---- how it is cut --------------------------------------------------------------------------------------------------

enum {
    W4_FEW_SHARED_MOST = 224 << 10,
    W4_FEW_SHARED_HALF = 113 << 10,    // with what the device takes, half of a multiprocessor's
    W4_FEW_SHARED_ALONE = 114 << 10,   // hardly more: two do not fit, and others have as much as can be
    W4_FEW_SHARED_SEVERAL = 180 << 10, // of more rows than one
    W4_FEW_MOST_SPLIT = 8,
    W4_FEW_MOST_SEGMENTS = 16,
    W4_FEW_X_ROOM = 88 << 10,   // of a block's columns of x
    W4_FEW_SUMS_ROOM = 80 << 10 // of segments' sums of eight rows
};

static int w4_few_blocks(int split) {
    return blocks_at_once(gemm_w4_few<QUADS_NVFP4, 16>, split, W4_FEW_WARPS * 32, W4_FEW_SHARED_MOST);
}

static int w4_few_pairs(int n_rows) { return n_rows <= 2 ? 0 : n_rows <= 4 ? 1 : 2; } // log2
static int w4_few_tiles(const struct dweight *w, const struct gemm_w4_few_cut *c) {   // of a block, and of its cluster
    return w4_up_to(quads_tiles(w->quads, w->out), c->n_blocks / c->split);
}
static int w4_few_columns(const struct dweight *w, const struct gemm_w4_few_cut *c) { // blocks of a tile's
    int mine = c->segments / c->split, most = 0;
    int64_t n = quads_blocks(w->in);
    for (int rank = 0; rank < c->split; rank++) {
        int columns = (int)(n * mine * (rank + 1) / c->segments - n * mine * rank / c->segments);
        most = columns > most ? columns : most;
    }
    return most;
}

/* Of shared memory, in bytes; queue: of all warps. */
struct w4_few_rooms {
    int x, queue;
    size_t bytes;
};
static struct w4_few_rooms w4_few_rooms_of(const struct dweight *w, int n_rows, const struct gemm_w4_few_cut *c) {
    struct w4_few_rooms r = {};
    int columns = w4_few_columns(w, c), owned = w4_up_to(w4_few_tiles(w, c), c->split);
    r.x = w4_up_to((int64_t)n_rows * (columns * W4_FEW_PIECE_BYTES + W4_FEW_ASIDE), 128) * 128;
    r.queue = c->warps * c->n_copies * c->a_copy * quads_block_bytes(w->quads);
    r.bytes = (size_t)r.queue + r.x +
              (size_t)owned * (c->segments * (128 << w4_few_pairs(n_rows)) + QUADS_ROWS * 2 * sizeof(float));
    if (c->alone && r.bytes <= W4_FEW_SHARED_HALF)
        r.bytes = W4_FEW_SHARED_ALONE;
    return r;
}

static bool w4_few_is_power(int n) { return n >= 1 && (n & (n - 1)) == 0; }

bool gemm_w4_few_takes_cut(const struct dweight *w, int n_rows, const struct gemm_w4_few_cut *c) {
    bool powers = w4_few_is_power(c->segments) && w4_few_is_power(c->warps) && w4_few_is_power(c->split);
    bool counts = c->warps >= W4_FEW_LEAST_WARPS && c->warps <= W4_FEW_WARPS && c->split <= c->segments &&
                  c->segments <= quads_blocks(w->in) && c->n_blocks >= c->split && c->a_copy >= 1 && c->n_copies >= 1 &&
                  c->n_copies <= W4_FEW_COPIES;
    return n_rows <= W4_FEW_MAX_ROWS && powers && counts && c->n_blocks % c->split == 0 &&
           c->n_blocks / c->split <= quads_tiles(w->quads, w->out) &&
           w4_few_rooms_of(w, n_rows, c).bytes <= W4_FEW_SHARED_MOST;
}

/* About how many pieces a warp computes one after another, of a block with so many tiles. */
static double w4_few_turns(int64_t tiles, int64_t pieces, int segments) {
    return w4_up_to(tiles * segments, W4_FEW_WARPS) * ((double)pieces / segments + 0.3);
}
/* As if blocks had all columns: for those with most tiles, and half as much for those with one less, as these leave
 * them more of the memory's time. */
static int w4_few_segments(const struct dweight *w) {
    int64_t tiles = w4_up_to(quads_tiles(w->quads, w->out), n_multiprocessors()), pieces = quads_blocks(w->in);
    int best = 1;
    double least = INFINITY;
    for (int s = 1; s <= W4_FEW_MOST_SEGMENTS && s <= pieces; s *= 2) {
        double cost = w4_few_turns(tiles, pieces, s) + w4_few_turns(tiles - 1, pieces, s) / 2;
        if (cost < least && (s == 1 || tiles * s * 512 <= W4_FEW_SUMS_ROOM))
            best = s, least = cost;
    }
    return best;
}

/* The longest queue that there is room for in `most` bytes; false: none. */
static bool w4_few_fits(const struct dweight *w, int n_rows, struct gemm_w4_few_cut *c, size_t most) {
    struct gemm_w4_few_cut none = *c;
    none.n_copies = 0, none.alone = false;
    size_t beside = w4_few_rooms_of(w, n_rows, &none).bytes,
           copy = (size_t)c->warps * c->a_copy * quads_block_bytes(w->quads);
    int n = beside < most ? (int)((most - beside) / copy) : 0;
    c->n_copies = n < W4_FEW_COPIES ? n : W4_FEW_COPIES;
    return n >= 2 && gemm_w4_few_takes_cut(w, n_rows, c);
}

struct gemm_w4_few_cut gemm_w4_few_cut_of(const struct dweight *w, int n_rows) {
    struct gemm_w4_few_cut c = {.segments = w4_few_segments(w), .warps = W4_FEW_WARPS, .split = 1, .alone = true};
    int64_t tiles = quads_tiles(w->quads, w->out);
    size_t room = n_rows == 1 ? W4_FEW_SHARED_ALONE : W4_FEW_SHARED_SEVERAL;
    for (; c.split <= W4_FEW_MOST_SPLIT && c.split <= c.segments; c.split *= 2) {
        int at_once = w4_few_blocks(c.split) / c.split;
        c.n_blocks = (int)(tiles < at_once ? tiles : at_once) * c.split;
        if ((int64_t)w4_few_columns(w, &c) * W4_FEW_PIECE_BYTES * n_rows > W4_FEW_X_ROOM)
            continue;
        const size_t rooms[] = {room, W4_FEW_SHARED_MOST};
        for (size_t most : rooms)
            for (c.a_copy = 2; c.a_copy >= 1; c.a_copy--)
                if (w4_few_fits(w, n_rows, &c, most))
                    return c;
    }
    return (struct gemm_w4_few_cut){};
}

bool gemm_w4_few_takes(const struct dgemm_w4 *a, struct dmat x, struct dmat y, int n_rows) {
    const struct dweight *w = &a->w;
    bool in_place = (uintptr_t)w->at % 16 == 0 && (uintptr_t)x.at % 16 == 0 && x.stride % 8 == 0 && w->in % 64 == 0;
    bool elements = w->element == ELEMENT_QUADS && x.element == ELEMENT_F16 &&
                    (y.element == ELEMENT_F32 || y.element == ELEMENT_F16 || y.element == ELEMENT_BF16);
    return in_place && elements && n_rows >= 1 && n_rows <= W4_FEW_MAX_ROWS && w->out <= INT32_MAX / 4 &&
           w->in <= INT32_MAX / 1024 && (a->ending.kind == ENDING_GATED) == w->quads.gated &&
           !(w->quads.gated && w->out % 2) && gemm_w4_few_cut_of(w, n_rows).n_blocks > 0;
}

// ---- the launcher ---------------------------------------------------------------------------------------------------

cudaError_t launch_gemm_w4_few_cut(cudaStream_t stream, int n_rows, const struct dgemm_w4 *a, struct dmat x,
                                   struct dmat y, const struct gemm_w4_few_cut *c) {
    const struct dweight *w = &a->w;
    struct w4_few_rooms rooms = w4_few_rooms_of(w, n_rows, c);
    int n_groups = c->n_blocks / c->split, tiles = (int)quads_tiles(w->quads, w->out);
    w4_few_args args = {};
    static_cast<gemm_w4_args &>(args) = w4_args_of(n_rows, a, y);
    args.w = static_cast<const unsigned char *>(w->at);
    args.x = static_cast<const unsigned char *>(x.at);
    args.x_pitch = x.stride * 2;
    args.in = (int)w->in;
    args.log2_segments = __builtin_ctz(c->segments);
    args.log2_split = __builtin_ctz(c->split);
    args.log2_warps = __builtin_ctz(c->warps);
    args.log2_pairs = w4_few_pairs(n_rows);
    args.group_tiles = tiles / n_groups;
    args.longer_groups = tiles % n_groups;
    args.a_copy = c->a_copy;
    args.n_copies = c->n_copies;
    args.x_bytes = rooms.x;
    args.unit = w->quads.kind == QUADS_INT4 ? w4_few_products<QUADS_INT4, 128>::UNIT : 1;
    w4_few_kernel k = w4_few_kernel_of(w->quads);
    allow_shared(k, W4_FEW_SHARED_MOST);
    return launch_cluster(k, dim3((unsigned)c->n_blocks), c->split, dim3((unsigned)c->warps * 32), rooms.bytes, stream,
                          args);
}

cudaError_t launch_gemm_w4_few(cudaStream_t stream, int n_rows, const struct dgemm_w4 *a, struct dmat x,
                               struct dmat y) {
    struct gemm_w4_few_cut cut = gemm_w4_few_cut_of(&a->w, n_rows);
    return launch_gemm_w4_few_cut(stream, n_rows, a, x, y, &cut);
}
