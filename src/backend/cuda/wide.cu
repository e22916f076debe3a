/* wide.cu - LINEAR of many rows from e4m3 values, and LINEAR with GATED_ACT behind it: see core/ops.def.
 *
 *     y [M, out] = x [M, in] W^T + b          x and W e4m3 with a scale a row
 *     y [M, F]   = act(x Wg^T + bg) * (x Wu^T + bu),  W = [Wg; Wu] of 2F rows
 *
 * Mathematics by wgmma with tokens as the first operand: m64nNk32, 64 tokens by N rows of W, both from shared memory, sums in float32
 * registers. N is any multiple of 8, so the width of a tile can be what makes all multiprocessors end at once.
 *
 *     tile    128 tokens by 8 * octets columns of y. Of a gated product 8 rows of Wg and their 8 of Wu take turns, so that a lane
 *             holds a gate and its up.
 *     block   a producer, one thread of which copies, and two warpgroups of 64 tokens each, every one with all rows of W in
 *             the tile. A ring of stages, 128 bytes of each row of the tile and of its tokens, is filled by bulk copies of tensor
 *             maps, in the 128-byte swizzle that wgmma reads. A block takes tile after tile; the ring runs on.
 *     cluster `split` blocks that share a tile's terms, where there are fewer tiles than multiprocessors. Each finishes some of the
 *             columns: the others' sums come into its shared memory, where the ring was, and are added in the order of the blocks.
 *
 * Results do not depend on timing. Weights are never written, so the ring is full of them before the wait for the node before; tokens
 * follow into the same stages.
 *
 * What bounds it with many rows is shared memory, which moves 128 bytes a cycle: m64nNk32 takes N / 2 cycles and reads 32 N bytes of
 * W in them, 64 bytes a cycle whatever N, and 2,048 of tokens; a stage of n rows of W is written, 128 (128 + n) bytes, in the 4 n cycles
 * that it is multiplied. Wide tiles pay for that. One wider than 256 rows is two instructions, for which the tokens come through
 * registers so that they are read once. Copying what tiles have in common once for a cluster (multicast) was slower in every case: the
 * network between multiprocessors brings less than the L2 does.
 *
 * The end of a tile: sums times both scales, bias, activation; then by way of shared memory, 64 bytes of a token at a time, so that
 * what is written are whole sectors. */
#include "backend/cuda/launching.cuh"
#include "backend/cuda/wide_tile.cuh"

namespace {

// ---- the kernel -----------------------------------------------------------------------------------------------------

__host__ __device__ constexpr int scale_bytes(int n_eights) { return GROUPS * 2 * n_eights * 32; }

template <int N, int PARTS, variant V>
__global__ void __launch_bounds__(threads_of(N, PARTS), 1)
    wide_linear(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap x_map, const __grid_constant__ wide_args a) {
    extern __shared__ unsigned char unaligned[];
    __shared__ uint64_t barriers[2 * MAX_STAGES + 2];
    constexpr int HALVES = halves_of(V);
    int w_bytes = a.octets * HALVES * ATOM, warp = (int)of_warp(threadIdx.x / 32);
    shared_places m;
    m.ring = kept((shared_address(unaligned) + ATOM - 1) & ~(uint32_t)(ATOM - 1));
    m.staging = m.ring + a.ring_bytes;
    m.scales = m.staging + WARPS * STAGING;
    m.full = kept(shared_address(barriers));
    m.empty = m.full + MAX_STAGES * 8;
    m.all_read = m.empty + MAX_STAGES * 8;
    m.all_sums = m.all_read + 8;
    int rank = a.split > 1 ? cluster_rank() : 0;
    int piece_begin = a.n_pieces * rank / a.split, piece_end = a.n_pieces * (rank + 1) / a.split;
    producer<V> by(a, &w_map, &x_map, m, w_bytes, piece_begin, piece_end);

    if (threadIdx.x == CONSUMERS) {
        bulk_map_prefetch(&w_map);
        bulk_map_prefetch(&x_map);
        for (int i = 0; i < a.n_stages; i++) {
            barrier_init(m.full + i * 8, 1);
            barrier_init(m.empty + i * 8, WARPS);
        }
        barrier_init(m.all_read, WARPS * a.split);
        barrier_init(m.all_sums, 1);
        barrier_init_done();
        fence_bulk();
        int mine = a.octets * (rank + 1) / a.split - a.octets * rank / a.split;
        barrier_expect(m.all_sums, (a.split - 1) * mine * HALVES * CONSUMERS * 16);
        by.begin();
    }
    __syncthreads(); // the barriers are ready
    if (a.split > 1)
        cluster_is_here();
    let_next_start();

    if (warp >= WARPS) {
        if constexpr (is_large(N, PARTS))
            asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == CONSUMERS)
            by.run();
        __syncwarp();
        if (a.split > 1)
            cluster_are_here();
    } else {
        if constexpr (is_large(N, PARTS))
            asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        consumer<N, PARTS, V> c = {a, m, rank, w_bytes + X_BYTES, warp / 4, warp % 4, (int)threadIdx.x % 32, {}, {}, {}};
        c.run(piece_end - piece_begin);
    }
}

// ---- how it is cut --------------------------------------------------------------------------------------------------

enum { SHARED_MOST = 227 << 10, MAX_CLUSTER = 8 };

int up_to(int n, int of) { return (n + of - 1) / of; }
variant variant_of(const struct dwide *a) { return a->heads ? HEADS : a->gated ? GATED : PLAIN; }
int rows_together(const struct dwide *a) { return halves_of(variant_of(a)); }
int units_of(const struct dwide *a) { return (int)a->w.out / rows_together(a); }

using kernel = void (*)(CUtensorMap, CUtensorMap, wide_args);
struct instance { // what a kernel computes: up to n * parts rows of W a tile
    int n, parts;
    kernel by_variant[3]; // NULL: the next wider will do
    int eights() const { return n / 8 * parts; }
    int threads() const { return threads_of(n, parts); }
};
template <int N, variant... V> constexpr instance one() {
    instance i = {N, 1, {}};
    ((i.by_variant[V] = wide_linear<N, 1, V>), ...);
    return i;
}
const instance INSTANCES[] = {
#ifdef WIDE_INSTANCES
    WIDE_INSTANCES
#else
    one<56, PLAIN>(),         // o of 3,584 columns at 128 rows
    one<80, PLAIN, HEADS>(),  // qkv of 4,608 there
    one<112, PLAIN, GATED>(), // o at 512
    one<128, PLAIN>(),
    one<144, PLAIN, GATED, HEADS>(), // qkv at 512; gate_up at 128, twice
    one<192, PLAIN, GATED, HEADS>(),
    one<224, PLAIN, GATED>(), // down and o at 512; gate_up of 28,672
    one<256, PLAIN, HEADS>(),
    {144, 2, {wide_linear<144, 2, PLAIN>, wide_linear<144, 2, GATED>, nullptr}}, // gate_up of 37,888
#endif
};

/* The narrowest that has as many rows of W. */
const instance *instance_of(const struct dwide *a, int octets) {
    for (const instance &i : INSTANCES)
        if (i.eights() >= octets * rows_together(a) && i.by_variant[variant_of(a)])
            return &i;
    return nullptr;
}

size_t shared_bytes(const struct dwide *a, const struct wide_cut *c) {
    const instance *i = instance_of(a, c->octets);
    if (!i)
        return SIZE_MAX;
    // What the tensor core reads behind the rows of the last stage, if the kernel has more, lies within what follows.
    size_t halves = rows_together(a), ring = c->n_stages * (c->octets * halves * ATOM + X_BYTES);
    size_t received = (c->split - 1) * up_to(c->octets, c->split) * halves * CONSUMERS * 16;
    return ATOM + (ring > received ? ring : received) + WARPS * STAGING + scale_bytes(i->eights());
}

/* [octet][half][row of 8][column]: half 1 is the partners. Of heads an octet is any eight rows; they are asked for one by one. */
bool map_weight(CUtensorMap *map, const struct dwide *a, int octets) {
    cuuint64_t row = (cuuint64_t)a->w.in, n_halves = rows_together(a), apart = a->heads ? a->heads->head_dim / 2 : units_of(a);
    cuuint64_t size[4] = {row, 8, n_halves, (a->w.out - (n_halves - 1) * apart) / 8};
    cuuint64_t strides[3] = {row, row * apart, row * 8};
    cuuint32_t box[4] = {PIECE_BYTES, 8, (cuuint32_t)n_halves, a->heads ? 1 : (cuuint32_t)octets};
    return encode_rows(map, a->w.at, 4, size, strides, box, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
}

bool map_tokens(CUtensorMap *map, struct dmat x, int n_rows) {
    cuuint64_t size[2] = {(cuuint64_t)x.width, (cuuint64_t)n_rows}, strides[1] = {(cuuint64_t)x.stride};
    cuuint32_t box[2] = {PIECE_BYTES, TOKENS};
    return encode_rows(map, x.at, 2, size, strides, box, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
}

} // namespace

int wide_blocks(int cluster) {
    static int found[MAX_CLUSTER + 1];
    if (found[cluster] == 0)
        found[cluster] = blocks_at_once(wide_linear<144, 2, GATED>, cluster, CONSUMERS + WARPGROUP, SHARED_MOST - ATOM);
    return found[cluster];
}

int wide_stages(const struct dwide *a, const struct wide_cut *cut) {
    struct wide_cut c = *cut;
    for (c.n_stages = MAX_STAGES; c.n_stages > 0 && shared_bytes(a, &c) > SHARED_MOST - ATOM; c.n_stages--)
        ;
    return c.n_stages;
}

bool wide_takes_cut(const struct dwide *a, int n_rows, const struct wide_cut *c) {
    if (c->octets < 1 || !instance_of(a, c->octets) || c->split < 1 || c->split > MAX_CLUSTER || c->n_blocks < c->split ||
        c->n_blocks % c->split || c->n_stages < 2 || c->n_stages > wide_stages(a, c))
        return false;
    int n_tiles = up_to(n_rows, TOKENS) * up_to(up_to(units_of(a), 8), c->octets);
    return c->split == 1 ||
           (instance_of(a, c->octets)->parts == 1 && n_tiles <= c->n_blocks / c->split && up_to((int)a->w.in, PIECE_BYTES) >= c->split);
}

/* About how long it takes, fitted to what was measured on an H200: what a stage needs of the L2, of memory and of shared memory; the exchange
 * of sums between multiprocessors; a tile's end; and what is the same for all. */
static double microseconds_of(const struct dwide *a, int n_rows, const struct wide_cut *c) {
    double rows = c->octets * 8 * rows_together(a);
    int token_tiles = up_to(n_rows, TOKENS), n_tiles = token_tiles * up_to(up_to(units_of(a), 8), c->octets);
    double passes = up_to(n_tiles * c->split, c->n_blocks), stages = (double)up_to((int)a->w.in, PIECE_BYTES) / c->split;
    double l2 = (rows + TOKENS + rows / token_tiles) * PIECE_BYTES / 100e3; // what memory brings passes twice
    double memory = (rows + 16) * PIECE_BYTES * c->n_blocks / token_tiles / 4.3e6;
    double shared = fmax(4 * rows, 3 * rows + 256) / 1750, exchange = rows * 512 * (c->split - 1) / c->split / 15e3;
    return 5 + passes * (stages * fmax(l2, fmax(memory, shared)) + 0.8) + exchange;
}

struct wide_cut wide_cut_of(const struct dwide *a, int n_rows) {
    int octets = up_to(units_of(a), 8), token_tiles = up_to(n_rows, TOKENS), most = (a->heads ? 32 : 36) / rows_together(a);
    struct wide_cut best = {};
    double best_us = INFINITY;
    for (int split = 1; split <= MAX_CLUSTER; split++)
        for (int passes = 1, more = 1; more; passes++) {
            struct wide_cut c = {0, split, wide_blocks(split), 2};
            int row_tiles = c.n_blocks / split * passes / token_tiles;
            c.octets = up_to(octets, row_tiles > 0 ? row_tiles : 1);
            more = split == 1 && c.octets > most / 4;
            if (c.octets > most || row_tiles == 0)
                continue;
            c.n_stages = wide_stages(a, &c);
            double us = microseconds_of(a, n_rows, &c);
            if (wide_takes_cut(a, n_rows, &c) && us < best_us) {
                best = c;
                best_us = us;
            }
        }
    return best;
}

/* Whole heads turn, the halves of each by one another, and leave in 16 bits or e4m3. */
static bool takes_heads(const struct dheads *h, int64_t out) {
    element e = h->cache.element;
    return h->head_dim % 16 == 0 && h->rope_dim == h->head_dim && h->pairing == 0 &&
           out == (int64_t)(h->n_heads + 2 * h->n_kv_heads) * h->head_dim && (e == ELEMENT_F16 || e == ELEMENT_BF16 || e == ELEMENT_E4M3);
}

bool wide_takes(const struct dwide *a, struct dmat x, struct dmat y, int n_rows) {
    struct dweight w = a->w;
    int size = y.element == ELEMENT_F32 ? 4 : 2;
    bool in_place = w.in % 16 == 0 && x.stride % 16 == 0 && (uintptr_t)w.at % 16 == 0 && (uintptr_t)x.at % 16 == 0 &&
                    (uintptr_t)y.at % 16 == 0 && y.stride * size % 16 == 0;
    return w.element == ELEMENT_E4M3 && x.element == ELEMENT_E4M3 && x.scale && w.scale && in_place && n_rows >= 1 &&
           w.out <= INT32_MAX / 4 && w.in <= INT32_MAX / 4 && w.out % (8 * rows_together(a)) == 0 && (!a->gated || a->act <= 1) &&
           ((y.element == ELEMENT_F32 && variant_of(a) == PLAIN) || y.element == ELEMENT_F16 || y.element == ELEMENT_BF16) &&
           (!a->heads || (!a->gated && !y.most && takes_heads(a->heads, w.out)));
}

cudaError_t launch_wide_linear_cut(cudaStream_t stream, int n_rows, const struct dwide *a, struct dmat x, struct dmat y,
                                   const struct wide_cut *cut) {
    const float LOG2_E = 1.4426950408889634f, GELU = 2 * 0.7978845608028654f * LOG2_E;
    const instance *instance = instance_of(a, cut->octets);
    CUtensorMap w_map, x_map;
    if (!map_weight(&w_map, a, cut->octets) || !map_tokens(&x_map, x, n_rows))
        return cudaErrorInvalidValue;
    wide_args args = {};
    args.w_scale = a->w.scale;
    args.bias = a->bias;
    args.x_scale = x.scale;
    args.y = y.at;
    args.most = y.most;
    args.y_stride = y.stride;
    args.n_units = units_of(a);
    args.n_tokens = n_rows;
    args.n_pieces = up_to((int)a->w.in, PIECE_BYTES);
    args.octets = cut->octets;
    args.token_tiles = up_to(n_rows, TOKENS);
    args.n_tiles = args.token_tiles * up_to(up_to(args.n_units, 8), cut->octets);
    args.n_stages = cut->n_stages;
    args.split = cut->split;
    args.bend = a->act == 0 ? LOG2_E : GELU;
    args.twist = a->act == 0 ? 0 : GELU * 0.044715f;
    args.y_element = y.element;
    if (a->heads)
        args.heads = *a->heads;
    kernel k = instance->by_variant[variant_of(a)];
    size_t shared = shared_bytes(a, cut);
    args.ring_bytes = (int)(shared - ATOM - WARPS * STAGING - scale_bytes(instance->eights()));
    cudaFuncSetAttribute(k, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = nodes_start_early();
    int wanted = args.n_tiles * cut->split;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = cut->split;
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    int n_blocks = cut->n_blocks < wanted ? cut->n_blocks : wanted;
    cudaLaunchConfig_t config = {dim3(n_blocks), dim3(instance->threads()), shared, stream, attributes, 2};
    return cudaLaunchKernelEx(&config, k, w_map, x_map, args);
}

cudaError_t launch_wide_linear(cudaStream_t stream, int n_rows, const struct dwide *a, struct dmat x, struct dmat y) {
    struct wide_cut cut = wide_cut_of(a, n_rows);
    return launch_wide_linear_cut(stream, n_rows, a, x, y, &cut);
}
