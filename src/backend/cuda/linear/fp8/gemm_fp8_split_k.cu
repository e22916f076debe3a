/* gemm_fp8_split_k.cu - unscaled products (value.h) of 65 and more rows of e4m3, whose terms the blocks of a cluster
 * share.
 *
 *     y [M, out] = x [M, in] W^T          x and W e4m3, y in half precision
 *
 * Mathematics: wgmma m64nNk32 with tokens as the first operand, 64 tokens by N rows of W from shared memory, sums in
 * pairs of halves, which elements of e4m3 are small enough for (value.h): less energy than float32, half of the
 * registers, and half of the bytes where blocks join them.
 *
 *     tile    up to 128 tokens by N rows of W; tokens are spread evenly over their tiles.
 *     cluster SPLIT blocks with the same tile, each with a part of its terms, so that there is work for all
 *             multiprocessors though tiles are large: a block takes in (tokens + N) * in / SPLIT bytes, and what a
 *             multiprocessor takes in, 50 to 60 bytes a cycle, is what bounds these products, not memory. And that for
 *             each of SHARERS tiles of tokens, 1 or 2: those share W, which both take from the L2 in turn for one
 *             another (multicast). Loads alone of down at 256 rows take 33 us where two blocks read each row of W, 23
 *             where one does.
 *     block   two warpgroups, each with 64 of the tokens, and a thread that copies. A ring of stages of W and one of x,
 *             128 bytes of each row, are filled by bulk copies of tensor maps; as many stages of x as W leaves room
 *             for, as x is what is waited for.
 *
 * Weights are never written: BEGUN stages of W are on their way before the wait for the node before; sharers meet
 * first. That is what the library's kernels cannot do, and where most of the gain comes from. What else the rings hold
 * is asked for behind the wait, W and x in turn, as x of the first stages must not stand behind W of all. The block
 * takes less than half of a multiprocessor's registers, so that small nodes before and behind it run beside it; those
 * behind start when all before this one has ended, so that they may read before they wait what that left.
 *
 * Where W is there once more on both sides of the L2, in tiles of N rows (l2_copy.h), a block takes its stages from its
 * own side, if one cluster reads each row. Of 448 and 512 rows two do, which may be of other sides, so that the row
 * would come from memory twice; clusters that claim their tiles so that both are of one side gained nothing there
 * (70,161 to 70,282 tokens/s for 70,070 to 70,299).
 *
 * x may have been written by a static scale, which rows of other sizes must not keep (launch_requantise): then blocks
 * look at the rows' largest sizes while the first of x is copied, and make the rows that it does not fit (requant.cuh);
 * then that is copied again.
 *
 * The end: each block finishes some columns. It gets the others' sums into memory that is for nothing else (nobody
 * waits until rings are free), adds them in the order of the blocks, so that results are the same every time, and
 * writes by way of shared memory, 64 bytes of a token at a time. All is unrolled: with loops and divisions it took 2.4
 * us in place of 1.
 *
 * On an H200, in a step of Qwen2.5-7B of 128 rows: qkv 5.8 us, o 5.2, down 23.4 where the library takes 8.0, 7.7 and
 * 24.7 (docs/lab/cuda_linear_many_rows.md).
 * Tried and lost: sums of each part to memory, added by the node behind (writing them takes 1.7 us); at 128 rows
 * clusters that also share x or W; tiles of 256 tokens, whose ends take 2 to 5 us; four blocks for qkv and o (only 30
 * such clusters have a place at once). */
#include "backend/cuda/linear/fp8/gemm_fp8_split_k.h"
#include "backend/cuda/linear/fp8/gemm_fp8_split_k_tile.cuh"
#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/ptx/launching.cuh"
#include "backend/cuda/qact/quantise.h"
#include "backend/cuda/value.h"

namespace {

/* No block ends before all that is sent to it has come: sums, W, and that others are done with W. */
template <int N, int SPLIT, int SHARERS>
__global__ void __launch_bounds__(THREADS, 1)
    split_k_product(const __grid_constant__ w_maps maps, const __grid_constant__ CUtensorMap x_map,
                    const __grid_constant__ split_k_args a) {
    extern __shared__ unsigned char unaligned[];
    __shared__ uint64_t barriers[2 * shape<N, SPLIT>::W_STAGES + 1];
    block<N, SPLIT, SHARERS> b(a, kept((shared_address(unaligned) + ATOM - 1) & ~(uint32_t)(ATOM - 1)),
                               kept(shared_address(barriers)));
    int warp = (int)of_warp(threadIdx.x / 32), lane = threadIdx.x % 32;
    bool copies = warp == CONSUMERS / 32;
    if (copies)
        b.start(maps, lane);
    __syncthreads(); // barriers are ready
    cluster_is_here();
    b.meet_early(maps, copies && lane == 0);
    // In this order: who starts behind this node may rely on all before it being done (norm.cu).
    wait_for_previous(); // for x, and for those who read y
    let_next_start();
    if (copies)
        b.copy(maps, &x_map, lane);
    else
        b.compute(warp, lane);
}

// ---- how it is cut --------------------------------------------------------------------------------------------------

int up_to(int n, int of) { return (n + of - 1) / of; }

using kernel = void (*)(w_maps, CUtensorMap, split_k_args);
struct instance {
    struct split_k_cut cut;
    int shared;
    kernel run;
};
#define INSTANCE(N, SPLIT, SHARERS) \
    { {N, SPLIT, SHARERS}, shape<N, SPLIT>::SHARED, split_k_product<N, SPLIT, SHARERS> }
/* Those that share W first, then narrow ones. */
const instance INSTANCES[SPLIT_K_CUTS] = {
    INSTANCE(120, 2, 2), INSTANCE(160, 2, 2), INSTANCE(112, 1, 2), INSTANCE(128, 1, 2), INSTANCE(144, 1, 2),
    INSTANCE(168, 1, 2), INSTANCE(192, 1, 2), INSTANCE(56, 2, 1),  INSTANCE(64, 2, 1),  INSTANCE(72, 2, 1),
    INSTANCE(88, 2, 1),  INSTANCE(96, 2, 1),  INSTANCE(112, 2, 1), INSTANCE(128, 2, 1), INSTANCE(144, 2, 1),
    INSTANCE(168, 2, 1), INSTANCE(120, 4, 1), INSTANCE(144, 4, 1), INSTANCE(184, 4, 1)};

int blocks_of(const instance *i) { return blocks_at_once(i->run, i->cut.split * i->cut.sharers, THREADS, i->shared); }

/* Tiles of tokens of so many rows. */
int token_tiles(const instance *i, int n_rows) { return up_to(n_rows, TOKENS * i->cut.sharers) * i->cut.sharers; }

/* In how many parts. By four blocks where terms are many: joining four takes longer, and x is half as much for each. */
enum { MANY_TERMS = 12288 };
int parts_of(struct dweight w, int tiles) { return tiles > 2 ? 1 : tiles == 1 && w.in >= MANY_TERMS ? 4 : 2; }

/* Per cent: of the blocks that run at once, and of tiles that are tokens, where there are two, two that share W, and
 * more of those. */
enum { WORST_FILL = 85, WORST_TOKENS = 75, WORST_TOKENS_SHARED = 62, WORST_TOKENS_OF_MANY = 87 };
bool suits(const instance *i, struct dweight w, int n_rows) {
    int tiles = token_tiles(i, n_rows), blocks = up_to((int)w.out, i->cut.rows) * tiles * i->cut.split;
    bool shared = i->cut.sharers > 1 ? n_rows > TOKENS : tiles <= 2;
    int worst = tiles > 2 ? WORST_TOKENS_OF_MANY : i->cut.sharers > 1 ? WORST_TOKENS_SHARED : WORST_TOKENS;
    bool full = tiles == 1 || n_rows * 100 >= tiles * TOKENS * worst;
    return shared && full && i->cut.split == parts_of(w, tiles) && blocks <= blocks_of(i) &&
           blocks * 100 >= blocks_of(i) * WORST_FILL;
}

} // namespace

/* One cluster reads each row of W: two of other sides would have the same rows come from memory twice. */
static bool reads_once(const instance *i, int n_rows) { return token_tiles(i, n_rows) == i->cut.sharers; }

int split_k_l2_copy_rows(struct dweight w, int i) {
    int of_few = split_k_cut_of(w, TOKENS), cut = i == 0 ? of_few : split_k_cut_of(w, 2 * TOKENS);
    bool same = i > 0 && cut >= 0 && of_few >= 0 && INSTANCES[cut].cut.rows == INSTANCES[of_few].cut.rows;
    return i > 1 || cut < 0 || same || !reads_once(&INSTANCES[cut], (i + 1) * TOKENS) ? 0 : INSTANCES[cut].cut.rows;
}

/* The copy that a product reads, not one whose tiles have gates beside ups; NULL: none. */
static const dl2_copy *l2_copy_for(const dl2_copy *const *l2_copy, const instance *i, int n_rows) {
    for (int k = 0; l2_copy && k < L2_COPY_SHAPES; k++)
        if (l2_copy[k] && l2_copy[k]->shape.halves == 1 && l2_copy[k]->shape.rows == i->cut.rows &&
            reads_once(i, n_rows))
            return l2_copy[k];
    return nullptr;
}

struct split_k_cut split_k_cut_at(int i) {
    return INSTANCES[i].cut;
}

int split_k_cut_of(struct dweight w, int n_rows) {
    for (int i = 0; i < SPLIT_K_CUTS; i++)
        if (suits(&INSTANCES[i], w, n_rows))
            return i;
    return -1;
}

bool split_k_requantises(struct dweight w, int n_rows) {
    return split_k_cut_of(w, n_rows) >= 0 && n_rows <= REQUANT_MEETINGS * TOKENS;
}

bool split_k_takes(struct dweight w, struct dmat x, struct dmat y, int n_rows) {
    bool in_place = w.in % 16 == 0 && x.stride % 16 == 0 && (uintptr_t)w.at % 16 == 0 && (uintptr_t)x.at % 16 == 0 &&
                    (uintptr_t)y.at % 16 == 0 && y.stride % 8 == 0;
    return w.element == ELEMENT_E4M3 && x.element == ELEMENT_E4M3 && y.element == ELEMENT_F16 && in_place &&
           n_rows >= 1 && w.out % 8 == 0 && w.out <= INT32_MAX / 4 && w.in <= HALF_SUMS_IN;
}

cudaError_t launch_gemm_split_k_cut(cudaStream_t stream, int n_rows, struct dweight w,
                                    const struct dl2_copy *const *l2_copy, struct dmat x, struct dmat y,
                                    const struct drequant *requant, int cut) {
    const instance *i = &INSTANCES[cut];
    int tiles = token_tiles(i, n_rows), tile_tokens = up_to(up_to(n_rows, tiles), 8) * 8;
    w_maps maps = {};
    CUtensorMap x_map;
    cuuint64_t w_size[2] = {(cuuint64_t)w.in, (cuuint64_t)w.out}, w_stride[1] = {(cuuint64_t)w.in};
    cuuint64_t x_size[2] = {(cuuint64_t)x.width, (cuuint64_t)n_rows}, x_stride[1] = {(cuuint64_t)x.stride};
    cuuint32_t w_box[2] = {PIECE_BYTES, (cuuint32_t)i->cut.rows}, x_box[2] = {PIECE_BYTES, (cuuint32_t)tile_tokens};
    if (!encode_rows(&maps.w, w.at, 2, w_size, w_stride, w_box, CU_TENSOR_MAP_L2_PROMOTION_L2_128B) ||
        !encode_rows(&x_map, x.at, 2, x_size, x_stride, x_box, CU_TENSOR_MAP_L2_PROMOTION_L2_128B))
        return cudaErrorInvalidValue;
    split_k_args args = {y.at, y.stride, (int)w.out, n_rows, up_to((int)w.in, PIECE_BYTES), tile_tokens, {}, {}};
    const dl2_copy *read = l2_copy_for(l2_copy, i, n_rows);
    if (read)
        args.l2_copy = *read;
    if (read && !l2_copy_maps_of(read, &maps.l2_copy))
        return cudaErrorInvalidValue;
    if (requant && requant->value.at)
        args.requant = {requant->value, x, requant->of_tokens, requant->others};
    cudaFuncSetAttribute(i->run, cudaFuncAttributeMaxDynamicSharedMemorySize, i->shared);
    int cluster = i->cut.split * i->cut.sharers;
    dim3 grid(up_to((int)w.out, i->cut.rows) * cluster, tiles / i->cut.sharers);
    return launch_cluster(i->run, grid, cluster, dim3(THREADS), i->shared, stream, maps, x_map, args);
}

cudaError_t launch_gemm_split_k(cudaStream_t stream, int n_rows, struct dweight w,
                                const struct dl2_copy *const *l2_copy, struct dmat x, struct dmat y,
                                const struct drequant *requant) {
    int cut = split_k_cut_of(w, n_rows);
    return launch_gemm_split_k_cut(stream, n_rows, w, l2_copy, x, y, requant, cut < 0 ? 0 : cut);
}
