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
 *     block   a producer warp, one thread of which copies, and two warpgroups of 64 tokens each, every one with all rows of W in
 *             the tile, by PARTS instructions. A ring of stages, 128 bytes of each row of the tile and of its tokens, is filled by
 *             bulk copies of tensor maps, in the 128-byte swizzle that wgmma reads. A block takes tile after tile; the ring runs on.
 *     cluster row_share tiles of the same tokens, times token_share tiles of the same rows, times `split` blocks that share a tile's
 *             terms. What tiles have in common each of them copies a part of, for all (multicast): what the L2 gives is then
 *
 *                 128 bytes of a row:   octets * 8 (* 2) / token_share + 128 / row_share   for   64 cycles an octet of W's rows
 *
 *             Blocks that split a tile exchange sums through shared memory of the cluster, each finishing some of the columns, and
 *             add them in the order of the blocks.
 *
 * Results do not depend on timing. Weights are never written, so the ring is full of them before the wait for the node before; tokens
 * follow into the same stages.
 *
 * The end of a tile: sums times both scales, bias, activation; then by way of shared memory, 64 bytes of a token at a time, so that
 * what is written are whole sectors. */
#include "backend/cuda/device.cuh"
#include "backend/cuda/wgmma_e4m3.cuh"

#include <cudaTypedefs.h>

namespace {

enum { PIECE_BYTES = 128, ATOM = 1024, MAX_STAGES = 12, WARPGROUP = 128, GROUPS = 2, GROUP_TOKENS = 64, TOKENS = GROUPS * GROUP_TOKENS };
enum { CONSUMERS = GROUPS * WARPGROUP, WARPS = CONSUMERS / 32, X_BYTES = TOKENS * PIECE_BYTES };
enum { LINE = 64, PITCH = LINE + 16, STAGING = 16 * PITCH }; // of a warp: 16 tokens, 64 bytes of each

struct wide_args {
    const float *w_scale, *bias, *x_scale;
    void *y;
    uint32_t *most;
    int64_t y_stride;
    int width;  // columns of y
    int up_row; // from a gate's row of W to its up row
    int n_tokens, n_pieces, octets, token_groups, row_groups, n_stages, split, row_share, token_share, lag;
    float bend, twist; // of the activation
    element y_element;
};

/* Many sums take registers that the producer must leave (setmaxnreg), for which it is a whole warpgroup. Few leave room beside the block,
 * where the next node's may start early. */
__host__ __device__ constexpr bool is_large(int n, int parts) { return n * parts > 192; }
__host__ __device__ constexpr int threads_of(int n, int parts) { return CONSUMERS + (is_large(n, parts) ? WARPGROUP : 32); }

/* Where a block stands in its cluster. */
struct place {
    int split, row, token; // ranks
};

static __device__ place place_of(const wide_args &a) {
    int rank = cluster_rank();
    return {rank % a.split, rank / a.split % a.row_share, rank / (a.split * a.row_share)};
}
static __device__ int rank_of(const wide_args &a, const place &p) { return p.split + a.split * (p.row + a.row_share * p.token); }

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

/* The tiles of a cluster, one after the other: those of one group of rows and all tokens lie together, so that W is read once. */
struct tile_walk {
    int at, step, n;
    __device__ tile_walk(const wide_args &a) {
        int cluster = a.split * a.row_share * a.token_share;
        at = blockIdx.x / cluster;
        step = gridDim.x / cluster;
        n = a.token_groups * a.row_groups;
    }
    __device__ bool there() const { return at < n; }
    __device__ void next() { at += step; }
    __device__ int token_tile(const wide_args &a, const place &p) const { return at % a.token_groups * a.token_share + p.token; }
    __device__ int row_tile(const wide_args &a, const place &p) const { return at / a.token_groups * a.row_share + p.row; }
};

struct shared_places { // addresses
    uint32_t ring, staging, scales, received, full, empty, all_sums;
};

// ---- copying --------------------------------------------------------------------------------------------------------

struct producer {
    const wide_args &a;
    const CUtensorMap *w_map, *x_map;
    const shared_places &m;
    place p;
    int halves, w_bytes, piece_begin, piece_end;
    tile_walk w_walk, x_walk;
    int w_piece, x_piece;
    uint64_t once, often;

    __device__ uint32_t stage(int slot) const { return m.ring + slot * (w_bytes + X_BYTES); }

    __device__ void put_w(int slot) {
        uint32_t full = m.full + slot * 8, to = stage(slot);
        barrier_expect(full, w_bytes + X_BYTES);
        int octet = w_walk.row_tile(a, p) * a.octets, part = a.octets / a.token_share;
        if (a.token_share == 1) {
            bulk_copy_box(to, w_map, w_piece * PIECE_BYTES, 0, 0, octet, full, once);
        } else {
            uint32_t mask = 0;
            for (int i = 0; i < a.token_share; i++)
                mask |= 1u << rank_of(a, {p.split, p.row, i});
            bulk_copy_box_to_all(to + p.token * part * halves * ATOM, w_map, w_piece * PIECE_BYTES, 0, 0, octet + p.token * part, full,
                                 once, (uint16_t)mask);
        }
        if (++w_piece == piece_end) {
            w_piece = piece_begin;
            w_walk.next();
        }
    }

    __device__ void put_x(int slot) {
        uint32_t full = m.full + slot * 8, to = stage(slot) + w_bytes;
        int token = x_walk.token_tile(a, p) * TOKENS, part = TOKENS / a.row_share;
        if (a.row_share == 1) {
            bulk_copy_box(to, x_map, x_piece * PIECE_BYTES, token, full, often);
        } else {
            uint32_t mask = 0;
            for (int i = 0; i < a.row_share; i++)
                mask |= 1u << rank_of(a, {p.split, i, p.token});
            bulk_copy_box_to_all(to + p.row * part * PIECE_BYTES, x_map, x_piece * PIECE_BYTES, token + p.row * part, full, often,
                                 (uint16_t)mask);
        }
        if (++x_piece == piece_end) {
            x_piece = piece_begin;
            x_walk.next();
        }
    }

    __device__ void run() {
        int n_tiles = w_walk.there() ? (w_walk.n - 1 - w_walk.at) / w_walk.step + 1 : 0, n_mine = n_tiles * (piece_end - piece_begin);
        int n_early = min(n_mine, a.n_stages);
        for (int i = 0; i < n_early; i++)
            put_w(i);
        wait_for_previous();
        for (int i = 0; i < n_early; i++)
            put_x(i);
        ring_place at = {0, a.n_stages, 0};
        for (int i = n_early; i < n_mine; i++) {
            barrier_wait(m.empty + at.slot * 8, at.parity);
            put_w(at.slot);
            put_x(at.slot);
            at.step();
        }
    }
};

// ---- the end of a tile ----------------------------------------------------------------------------------------------

static __device__ void copy_four(uint32_t to, const float *from, bool there) { // zeros if not
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(there ? 4 : 0) : "memory");
}
static __device__ float2 load_pair(uint32_t at) {
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(at) : "memory");
    return v;
}
static __device__ void store_word(uint32_t at, uint32_t v) { asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(v) : "memory"); }
static __device__ void store_pair(uint32_t at, float2 v) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(v.x), "f"(v.y) : "memory");
}
static __device__ uint4 load_sixteen(uint32_t at) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at) : "memory");
    return v;
}
static __device__ float4 load_four(uint32_t at) {
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(at) : "memory");
    return v;
}

/* Of a float32, or pair by pair; what is not a number stays so. */
template <element E> static __device__ uint32_t larger_sizes(uint32_t sizes, uint32_t v) {
    uint32_t larger;
    if (E == ELEMENT_F32)
        return max(sizes, v & 0x7fffffffu);
    if (E == ELEMENT_BF16)
        asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(sizes), "r"(v & 0x7fff7fffu));
    else
        asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(larger) : "r"(sizes), "r"(v & 0x7fff7fffu));
    return larger;
}

/* gate * up / (1 + e^-(gate * (bend + twist * gate^2))): SiLU, and GELU by tanh. bend and twist count in powers of two. */
static __device__ float gated(const wide_args &a, float gate, float up) {
    float power = exp2_fast(-gate * (a.bend + a.twist * gate * gate));
    return __fdividef(gate * up, 1.0f + power);
}

template <int N, int PARTS, bool GATED> struct consumer {
    static constexpr int EIGHTS = N / 8 * PARTS, HALVES = GATED ? 2 : 1, OCTETS = EIGHTS / HALVES; // of W's rows; of y's columns

    const wide_args &a;
    const shared_places &m;
    place p;
    int group, warp, lane; // warp: of the group
    float sums[PARTS][N / 2];
    float x_scale[2];

    __device__ void sync_group() const { threads_sync(1 + group, WARPGROUP); }

    /* Scales and biases of the tile's rows: [scale, bias][half][octets][8]. */
    __device__ uint32_t scales() const { return m.scales + group * 2 * EIGHTS * 32; }
    __device__ void fetch_scales(int row_tile) const {
        sync_group(); // nobody reads those of the tile before
        int n = a.octets * 8;
        for (int i = threadIdx.x % WARPGROUP; i < n * HALVES; i += WARPGROUP) {
            int half = i >= n, column = row_tile * n + i - half * n;
            bool there = column < a.width;
            int row = there ? column + half * a.up_row : 0;
            copy_four(scales() + i * 4, a.w_scale + row, there);
            copy_four(scales() + (i + EIGHTS * 8) * 4, a.bias ? a.bias + row : a.w_scale, there && a.bias);
        }
    }

    /* The value of sums of the eighth of W's rows: two columns of the lane's first token, then of its second. */
    __device__ float4 value(int octet, int half) const {
        constexpr int E = N / 8;
        int i = octet * HALVES + half;
        const float *d = &sums[i / E][i % E * 4];
        uint32_t at = scales() + ((half * a.octets + octet) * 8 + lane % 4 * 2) * 4;
        float2 s = load_pair(at), b = load_pair(at + EIGHTS * 8 * 4);
        return {fmaf(d[0], s.x * x_scale[0], b.x), fmaf(d[1], s.y * x_scale[0], b.y), fmaf(d[2], s.x * x_scale[1], b.x),
                fmaf(d[3], s.y * x_scale[1], b.y)};
    }
    __device__ float4 column_pairs(int octet) const {
        float4 v = value(octet, 0);
        if (!GATED)
            return v;
        float4 u = value(octet, 1);
        return {gated(a, v.x, u.x), gated(a, v.y, u.y), gated(a, v.z, u.z), gated(a, v.w, u.w)};
    }

    /* Blocks that split a tile send each other the sums of the columns that are not theirs: [sender][eighth][thread]. */
    __device__ int first_octet(int rank) const { return a.octets * rank / a.split; }
    __device__ void exchange() {
        constexpr int E = N / 8;
        int most = (a.octets + a.split - 1) / a.split * HALVES;
        uint32_t mine = m.received + threadIdx.x * 16;
        for (int to = 0; to < a.split; to++) {
            if (to == p.split)
                continue;
            int begin = first_octet(to) * HALVES, end = first_octet(to + 1) * HALVES, rank = rank_of(a, {to, p.row, p.token});
            int sender = p.split - (p.split > to);
            uint32_t there = address_at_rank(mine + sender * most * CONSUMERS * 16, rank), told = address_at_rank(m.all_sums, rank);
#pragma unroll
            for (int i = 0; i < EIGHTS; i++)
                if (i >= begin && i < end) {
                    const float *d = &sums[i / E][i % E * 4];
                    store_at_rank(there + (i - begin) * CONSUMERS * 16, {d[0], d[1], d[2], d[3]}, told);
                }
        }
        barrier_wait(m.all_sums, 0);
        int begin = first_octet(p.split) * HALVES, end = first_octet(p.split + 1) * HALVES;
#pragma unroll
        for (int i = 0; i < EIGHTS; i++)
            if (i >= begin && i < end) {
                float *d = &sums[i / E][i % E * 4];
                float4 own = {d[0], d[1], d[2], d[3]}, sum = {0, 0, 0, 0};
#pragma unroll 1
                for (int k = 0, sender = 0; k < a.split; k++) {
                    float4 v = own;
                    if (k != p.split)
                        v = load_four(mine + (sender++ * most + i - begin) * CONSUMERS * 16);
                    sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
                }
                d[0] = sum.x, d[1] = sum.y, d[2] = sum.z, d[3] = sum.w;
            }
    }

    /* A pair of sizes, or a float32, for each of the lane's two tokens. */
    template <element E> __device__ void tell_most(uint32_t (&most)[2], int first_token) const {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (E != ELEMENT_F32)
                most[i] = larger_sizes<E>(most[i], most[i] >> 16);
            most[i] = larger_sizes<E>(most[i], __shfl_xor_sync(0xffffffffu, most[i], 1));
            most[i] = larger_sizes<E>(most[i], __shfl_xor_sync(0xffffffffu, most[i], 2));
            int token = first_token + lane / 4 + 8 * i;
            uint32_t size = E == ELEMENT_F32   ? most[i]
                            : E == ELEMENT_F16 ? __float_as_uint(__half2float(__ushort_as_half((unsigned short)most[i])))
                                               : most[i] << 16;
            if (lane % 4 == 0 && token < a.n_tokens)
                atomicMax(a.most + token, size);
        }
    }

    template <element E> __device__ void finish(int row_tile, int token_tile) {
        constexpr int SIZE = E == ELEMENT_F32 ? 4 : 2, AT_ONCE = LINE / (8 * SIZE), PIECES = 8 * SIZE / 16; // octets; 16 bytes of an octet
        int begin = first_octet(p.split), end = first_octet(p.split + 1),
            first_token = token_tile * TOKENS + group * GROUP_TOKENS + warp * 16;
        uint32_t staging = m.staging + (group * 4 + warp) * STAGING, to = staging + lane / 4 * PITCH + lane % 4 * 2 * SIZE;
        uint32_t most[2] = {0, 0}; // of the lane's two tokens; pairs
#pragma unroll
        for (int base = 0; base < OCTETS; base += AT_ONCE) {
            if (base >= end || base + AT_ONCE <= begin)
                continue;
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++)
                if (base + k < OCTETS) {
                    float4 v = column_pairs(base + k);
                    bool mine = base + k >= begin && base + k < end; // columns beyond the last are zeros
                    uint32_t first[2] = {__float_as_uint(v.x), __float_as_uint(v.y)},
                             second[2] = {__float_as_uint(v.z), __float_as_uint(v.w)};
                    if (E == ELEMENT_F32) {
                        store_pair(to + k * 32, {v.x, v.y});
                        store_pair(to + k * 32 + 8 * PITCH, {v.z, v.w});
                    } else {
                        first[0] = first[1] = to_pair<E == ELEMENT_BF16>(v.x, v.y);
                        second[0] = second[1] = to_pair<E == ELEMENT_BF16>(v.z, v.w);
                        store_word(to + k * 16, first[0]);
                        store_word(to + k * 16 + 8 * PITCH, second[0]);
                    }
#pragma unroll
                    for (int i = 0; i < (E == ELEMENT_F32 ? 2 : 1); i++)
                        if (mine) {
                            most[0] = larger_sizes<E>(most[0], first[i]);
                            most[1] = larger_sizes<E>(most[1], second[i]);
                        }
                }
            __syncwarp();
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int token = i * 8 + lane / 4, piece = lane % 4, octet = base + piece / PIECES, column = (row_tile * a.octets + octet) * 8;
                if (octet >= begin && octet < end && column < a.width && first_token + token < a.n_tokens) {
                    uint4 v = load_sixteen(staging + token * PITCH + piece * 16);
                    int64_t at = (first_token + token) * a.y_stride + column;
                    *reinterpret_cast<uint4 *>(static_cast<char *>(a.y) + at * SIZE + piece % PIECES * 16) = v;
                }
            }
            __syncwarp();
        }
        if (a.most)
            tell_most<E>(most, first_token);
    }

    __device__ void release(int slot) const { // to all who copy into it
        if (lane < a.row_share)
            barrier_arrive_at_rank(address_at_rank(m.empty + slot * 8, rank_of(a, {p.split, lane, p.token})));
        else if (lane < a.row_share + a.token_share && lane - a.row_share != p.token)
            barrier_arrive_at_rank(address_at_rank(m.empty + slot * 8, rank_of(a, {p.split, p.row, lane - a.row_share})));
    }

    /* All pieces of the tile. */
    __device__ void multiply(ring_place &at, int n_pieces, int w_bytes, int ahead) {
        int last = -1;
        for (int piece = 0; piece < n_pieces; piece++) {
            if (piece == ahead)
                asm volatile("bar.arrive %0, %1;" ::"r"(1 + GROUPS), "r"((int)CONSUMERS) : "memory"); // the second group may begin
            barrier_wait(m.full + at.slot * 8, at.parity);
            uint32_t stage = m.ring + at.slot * (w_bytes + X_BYTES);
            uint64_t x = operand_rows(stage + w_bytes + group * GROUP_TOKENS * PIECE_BYTES), w = operand_rows(stage);
            products_begin();
#pragma unroll
            for (int k = 0; k < PIECE_BYTES / E4M3_K; k++)
#pragma unroll
                for (int part = 0; part < PARTS; part++)
                    e4m3_product<N>::multiply(sums[part], x + k * E4M3_K_STEP, w + k * E4M3_K_STEP + part * (N * PIECE_BYTES >> 4),
                                              piece > 0 || k > 0);
            products_commit();
            products_wait<1>(); // of the stage before
            if (last >= 0)
                release(last);
            last = at.slot;
            at.step();
        }
        products_wait<0>();
#pragma unroll
        for (int part = 0; part < PARTS; part++)
            registers_settle(sums[part]);
        if (last >= 0)
            release(last);
    }

    __device__ void run(int n_pieces, int w_bytes) {
        ring_place at = {0, a.n_stages, 0};
        bool first = true;
        for (tile_walk walk(a); walk.there(); walk.next()) {
            int row_tile = walk.row_tile(a, p), token_tile = walk.token_tile(a, p);
            fetch_scales(row_tile);
            if (first)
                wait_for_previous();
            int token = token_tile * TOKENS + group * GROUP_TOKENS + warp * 16 + lane / 4;
            x_scale[0] = token < a.n_tokens ? a.x_scale[token] : 0;
            x_scale[1] = token + 8 < a.n_tokens ? a.x_scale[token + 8] : 0;
            if (a.lag > 0 && first && group == 1)
                threads_sync(1 + GROUPS, CONSUMERS);
            multiply(at, n_pieces, w_bytes, a.lag > 0 && first && group == 0 ? min(a.lag, n_pieces - 1) : -1);
            if (a.split > 1)
                exchange();
            asm volatile("cp.async.wait_all;" ::: "memory");
            sync_group(); // scales are there
            if (!GATED && a.y_element == ELEMENT_F32)
                finish<ELEMENT_F32>(row_tile, token_tile);
            else if (a.y_element == ELEMENT_F16)
                finish<ELEMENT_F16>(row_tile, token_tile);
            else
                finish<ELEMENT_BF16>(row_tile, token_tile);
            first = false;
        }
        if (first)
            wait_for_previous();
    }
};

// ---- the kernel -----------------------------------------------------------------------------------------------------

__host__ __device__ constexpr int scale_bytes(int n_eights) { return GROUPS * 2 * n_eights * 32; }

template <int N, int PARTS, bool GATED>
__global__ void __launch_bounds__(threads_of(N, PARTS), 1)
    wide_linear(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap x_map, const __grid_constant__ wide_args a) {
    extern __shared__ unsigned char unaligned[];
    __shared__ uint64_t barriers[2 * MAX_STAGES + 1];
    constexpr int HALVES = GATED ? 2 : 1;
    int w_bytes = a.octets * HALVES * ATOM, warp = threadIdx.x / 32;
    shared_places m;
    m.ring = (shared_address(unaligned) + ATOM - 1) & ~(uint32_t)(ATOM - 1);
    m.staging = m.ring + a.n_stages * (w_bytes + X_BYTES);
    m.scales = m.staging + WARPS * STAGING;
    m.received = m.scales + scale_bytes(N / 8 * PARTS);
    m.full = shared_address(barriers);
    m.empty = m.full + MAX_STAGES * 8;
    m.all_sums = m.empty + MAX_STAGES * 8;
    place p = place_of(a);
    int cluster = a.split * a.row_share * a.token_share;
    int piece_begin = a.n_pieces * p.split / a.split, piece_end = a.n_pieces * (p.split + 1) / a.split;

    if (threadIdx.x == 0) {
        for (int i = 0; i < a.n_stages; i++) {
            barrier_init(m.full + i * 8, 1);
            barrier_init(m.empty + i * 8, WARPS * (a.row_share + a.token_share - 1));
        }
        barrier_init(m.all_sums, 1);
        barrier_init_done();
        int mine = a.octets * (p.split + 1) / a.split - a.octets * p.split / a.split;
        barrier_expect(m.all_sums, (a.split - 1) * mine * HALVES * CONSUMERS * 16);
    }
    __syncthreads(); // the barriers are ready
    if (cluster > 1)
        cluster_sync(); // those of all blocks
    let_next_start();

    if (warp >= WARPS) {
        if constexpr (is_large(N, PARTS))
            asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == CONSUMERS) {
            producer by = {a,
                           &w_map,
                           &x_map,
                           m,
                           p,
                           HALVES,
                           w_bytes,
                           piece_begin,
                           piece_end,
                           tile_walk(a),
                           tile_walk(a),
                           piece_begin,
                           piece_begin,
                           policy_read_once(),
                           policy_read_often()};
            by.run();
        }
        __syncwarp();
    } else {
        if constexpr (is_large(N, PARTS))
            asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        consumer<N, PARTS, GATED> c = {a, m, p, (int)threadIdx.x / WARPGROUP, warp % 4, (int)threadIdx.x % 32, {}, {}};
        c.run(piece_end - piece_begin, w_bytes);
    }
    if (a.row_share * a.token_share > 1)
        cluster_sync(); // nobody is told or sent anything any more
}

// ---- how it is cut --------------------------------------------------------------------------------------------------

enum { SHARED_MOST = 227 << 10, MAX_CLUSTER = 8 };

int up_to(int n, int of) { return (n + of - 1) / of; }
int columns_of(const struct dwide *a) { return (int)(a->gated ? a->w.out / 2 : a->w.out); }

using kernel = void (*)(CUtensorMap, CUtensorMap, wide_args);
struct instance { // what a kernel computes: up to n * parts rows of W a tile
    int n, parts;
    kernel plain, gated;
    int eights() const { return n / 8 * parts; }
    int threads() const { return threads_of(n, parts); }
};
#define BOTH(N, PARTS) \
    { N, PARTS, wide_linear<N, PARTS, false>, wide_linear<N, PARTS, true> }
const instance INSTANCES[] = {
#ifdef WIDE_INSTANCES
    WIDE_INSTANCES
#else
    BOTH(56, 1),  BOTH(72, 1),  BOTH(96, 1),  BOTH(112, 1), BOTH(128, 1), BOTH(144, 1),
    BOTH(168, 1), BOTH(192, 1), BOTH(112, 2), BOTH(128, 2), BOTH(144, 2), BOTH(168, 2),
#endif
};

/* The narrowest that has as many rows of W. */
const instance *instance_of(bool gated, int octets) {
    for (const instance &i : INSTANCES)
        if (i.eights() >= octets * (gated ? 2 : 1))
            return &i;
    return nullptr;
}

size_t shared_bytes(bool gated, const struct wide_cut *c) {
    const instance *i = instance_of(gated, c->octets);
    if (!i)
        return SIZE_MAX;
    int halves = gated ? 2 : 1;
    // What the tensor core reads behind the rows of the last stage, if the kernel has more, lies within what follows.
    size_t ring = (size_t)c->n_stages * (c->octets * halves * ATOM + X_BYTES);
    size_t received = (size_t)(c->split - 1) * up_to(c->octets, c->split) * halves * CONSUMERS * 16;
    return ATOM + ring + WARPS * STAGING + scale_bytes(i->eights()) + received;
}

/* Rows of bytes in the swizzle, boxes of 128 bytes of some rows. Beyond the end there is zero. */
bool encode(CUtensorMap *map, const void *at, int rank, const cuuint64_t *size, const cuuint64_t *strides, const cuuint32_t *box,
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
bool map_weight(CUtensorMap *map, const struct dwide *a, int octets) {
    cuuint64_t row = (cuuint64_t)a->w.in, n_halves = a->gated ? 2 : 1;
    cuuint64_t size[4] = {row, 8, n_halves, (cuuint64_t)columns_of(a) / 8};
    cuuint64_t strides[3] = {row, row * columns_of(a), row * 8};
    cuuint32_t box[4] = {PIECE_BYTES, 8, (cuuint32_t)n_halves, (cuuint32_t)octets};
    return encode(map, a->w.at, 4, size, strides, box, CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
}

bool map_tokens(CUtensorMap *map, struct dmat x, int n_rows, int n_tokens) {
    cuuint64_t size[2] = {(cuuint64_t)x.width, (cuuint64_t)n_rows}, strides[1] = {(cuuint64_t)x.stride};
    cuuint32_t box[2] = {PIECE_BYTES, (cuuint32_t)n_tokens};
    return encode(map, x.at, 2, size, strides, box, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
}

} // namespace

/* How many blocks run at once: with clusters not all multiprocessors have a place. */
int wide_blocks(int cluster) {
    static int found[MAX_CLUSTER + 1];
    if (found[cluster] == 0) {
        int device = 0, n = 0;
        cudaGetDevice(&device);
        cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device);
        cudaLaunchAttribute attribute = {};
        attribute.id = cudaLaunchAttributeClusterDimension;
        attribute.val.clusterDim.x = cluster;
        attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
        cudaLaunchConfig_t config = {dim3(n / cluster * cluster), dim3(CONSUMERS + WARPGROUP), SHARED_MOST - ATOM, nullptr, &attribute, 1};
        kernel k = INSTANCES[0].plain;
        cudaFuncSetAttribute(k, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_MOST - ATOM);
        int n_clusters = 0;
        if (cudaOccupancyMaxActiveClusters(&n_clusters, k, &config) != cudaSuccess || n_clusters == 0)
            n_clusters = 1; // the launch says why
        found[cluster] = (n_clusters < n / cluster ? n_clusters : n / cluster) * cluster;
    }
    return found[cluster];
}

int wide_stages(const struct dwide *a, const struct wide_cut *cut) {
    struct wide_cut c = *cut;
    for (c.n_stages = MAX_STAGES; c.n_stages > 0 && shared_bytes(a->gated, &c) > SHARED_MOST - ATOM; c.n_stages--)
        ;
    return c.n_stages;
}

bool wide_takes_cut(const struct dwide *a, int n_rows, const struct wide_cut *c) {
    int cluster = c->split * c->row_share * c->token_share, token_tiles = up_to(n_rows, TOKENS);
    int row_tiles = up_to(up_to(columns_of(a), 8), c->octets > 0 ? c->octets : 1);
    if (c->octets < 1 || cluster < 1 || cluster > MAX_CLUSTER || !instance_of(a->gated, c->octets) || c->octets % c->token_share ||
        GROUP_TOKENS % c->row_share || c->n_blocks < cluster || c->n_blocks % cluster || c->n_stages < 2 ||
        c->n_stages > wide_stages(a, c) || c->lag < 0 || c->lag >= c->n_stages)
        return false;
    int n_clusters = up_to(token_tiles, c->token_share) * up_to(row_tiles, c->row_share);
    return c->split == 1 || (n_clusters <= c->n_blocks / cluster && up_to((int)a->w.in, PIECE_BYTES) >= c->split);
}

struct wide_cut wide_cut_of(const struct dwide *a, int n_rows) {
    int octets = up_to(columns_of(a), 8), token_tiles = up_to(n_rows, TOKENS), most = 36 / (a->gated ? 2 : 1);
    struct wide_cut c = {};
    c.split = c.row_share = c.token_share = 1;
    c.n_blocks = wide_blocks(1);
    int passes = up_to(octets * token_tiles, c.n_blocks * most);
    c.octets = up_to(octets, c.n_blocks * passes / token_tiles);
    c.n_stages = wide_stages(a, &c);
    return c;
}

bool wide_takes(const struct dwide *a, struct dmat x, struct dmat y, int n_rows) {
    struct dweight w = a->w;
    int size = y.element == ELEMENT_F32 ? 4 : 2;
    return w.element == ELEMENT_E4M3 && x.element == ELEMENT_E4M3 && x.scale && w.scale && w.in % 16 == 0 && x.stride % 16 == 0 &&
           (uintptr_t)w.at % 16 == 0 && (uintptr_t)x.at % 16 == 0 && (!a->gated || (w.out % 16 == 0 && a->act <= 1)) && w.out % 8 == 0 &&
           n_rows >= 1 && w.out <= INT32_MAX / 4 && w.in <= INT32_MAX / 4 && (uintptr_t)y.at % 16 == 0 && y.stride * size % 16 == 0 &&
           ((y.element == ELEMENT_F32 && !a->gated) || y.element == ELEMENT_F16 || y.element == ELEMENT_BF16);
}

cudaError_t launch_wide_linear_cut(cudaStream_t stream, int n_rows, const struct dwide *a, struct dmat x, struct dmat y,
                                   const struct wide_cut *cut) {
    const float LOG2_E = 1.4426950408889634f, GELU = 2 * 0.7978845608028654f * LOG2_E;
    const instance *instance = instance_of(a->gated, cut->octets);
    CUtensorMap w_map, x_map;
    if (!map_weight(&w_map, a, cut->octets / cut->token_share) || !map_tokens(&x_map, x, n_rows, TOKENS / cut->row_share))
        return cudaErrorInvalidValue;
    int columns = columns_of(a);
    wide_args args = {};
    args.w_scale = a->w.scale;
    args.bias = a->bias;
    args.x_scale = x.scale;
    args.y = y.at;
    args.most = y.most;
    args.y_stride = y.stride;
    args.width = columns;
    args.up_row = columns;
    args.n_tokens = n_rows;
    args.n_pieces = up_to((int)a->w.in, PIECE_BYTES);
    args.octets = cut->octets;
    args.token_groups = up_to(up_to(n_rows, TOKENS), cut->token_share);
    args.row_groups = up_to(up_to(up_to(columns, 8), cut->octets), cut->row_share);
    args.n_stages = cut->n_stages;
    args.split = cut->split;
    args.row_share = cut->row_share;
    args.token_share = cut->token_share;
    args.lag = cut->lag;
    args.bend = a->act == 0 ? LOG2_E : GELU;
    args.twist = a->act == 0 ? 0 : GELU * 0.044715f;
    args.y_element = y.element;
    kernel k = a->gated ? instance->gated : instance->plain;
    size_t shared = shared_bytes(a->gated, cut);
    cudaFuncSetAttribute(k, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = nodes_start_early();
    int cluster = cut->split * cut->row_share * cut->token_share, wanted = args.token_groups * args.row_groups * cluster;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = cluster;
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    int n_blocks = cut->n_blocks < wanted ? cut->n_blocks : wanted;
    cudaLaunchConfig_t config = {dim3(n_blocks), dim3(instance->threads()), shared, stream, attributes, 2};
    return cudaLaunchKernelEx(&config, k, w_map, x_map, args);
}

cudaError_t launch_wide_linear(cudaStream_t stream, int n_rows, const struct dwide *a, struct dmat x, struct dmat y) {
    struct wide_cut cut = wide_cut_of(a, n_rows);
    return launch_wide_linear_cut(stream, n_rows, a, x, y, &cut);
}
