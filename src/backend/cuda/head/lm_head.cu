/* lm_head.cu - the LM head: LINEAR whose rows are logits, from values of 16 bits, with the SOFTCAP behind it and what
 * SAMPLE wants of greedy rows.
 *
 *     logits [M, out] = x [M, in] W^T + b, of these cap * tanh(./cap) if there is a cap;        x and W float16 or
 *                                                                                               bfloat16
 *     bests  [M, parts]  the largest logit of each part of a row, and where
 *
 * A row of logits has 4 bytes for each of 150,000 tokens: at 128 rows 78 MB, which take 17 us to write and again to
 * read. Only rows of whom more is asked than the most probable token (drow.is_plain) have them written; which those are
 * is read from the plan on the device, so a captured graph serves both.
 *
 * Mathematics by wgmma with W as the first operand: m64nNk16, 64 rows of W by N >= M tokens, both from shared memory,
 * sums in float32 registers. Up to some hundred tokens reading W once is what it costs, so everything serves the
 * reading:
 *
 *     tile    8 * octets rows of W by N tokens, as many rows as let all blocks end at once. The tensor core computes
 *             whole 64 rows; what it finds behind the tile's last is computed and not looked at.
 *     block   two or three warpgroups that multiply, each 64 rows of the tile, and one of which a thread copies. A ring
 *             of stages, 128 bytes of each row of the tile and of x, is filled by bulk copies of tensor maps, in the
 *             128-byte swizzle that wgmma reads. A block takes tile after tile; the ring runs on while a tile ends.
 *     cluster beyond 64 tokens two blocks that share x: the same tokens and each other rows of W. Each copies half of
 *     x, to both (multicast).
 *
 * Weights are never written, so the ring is full of them before the wait for the node before; tokens follow into the
 * same stages. Where that node may have done all (argmax_filter.cu), nothing is read before it is known.
 *
 * The best of a tile: a lane has two rows for N / 4 tokens, compares them, and shares with the seven lanes that have
 * the same tokens, each of which ends with an eighth of them (join_lanes); the warp's bests stay in shared memory from
 * tile to tile. Of equals the first counts, so results do not depend on timing.
 *
 * Tried and lost: L2 promotion of 256 bytes (4 per cent), two products of 64 rows a warpgroup (2 to 20 per cent, as
 * there is room for fewer stages), clusters that share W and have each other tokens (256 and 512 rows, with tiles of
 * 128 tokens: 20 per cent). docs/lab/cuda_head.md has
 * what it takes. */
#include "backend/cuda/head/lm_head.h"
#include "backend/cuda/head/lm_head_ring.cuh"
#include "backend/cuda/ptx/wgmma_halves.cuh"
#include "backend/cuda/value.h"

namespace {

static_assert(HALVES_K * 2 == STEP_BYTES, "");

struct head_args {
    const float *bias;
    dmat logits;
    float cap;
    device_plan plan;
    dbest *bests;
    const int32_t *done; // NULL, or not zero: there is nothing to do
    int n_rows;          // of W
    int n_tokens, n_pieces, octets, n_tiles, n_stages, token_tiles, sharers;
};

// ---- the best of a tile ---------------------------------------------------------------------------------------------

__device__ float larger(float a, float b) { // what is not a number is larger than any
    float m;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(a), "f"(b));
    return m;
}
/* The better of two; of equals the lower id. What is not a number stays, and ids are then of any. */
__device__ void take_better(float &most, int &id, float v, int of) {
    id = v > most || (v == most && of < id) ? of : id;
    most = larger(most, v);
}

/* Lanes that differ in bits of STEP and above join what they have found; each keeps the best of fewer tokens, from
 * `first` on. C: how many it has. */
template <int C, int STEP, int MOST> __device__ void join_lanes(float (&most)[MOST], int (&id)[MOST], int &first) {
    constexpr int HALF = C > 1 ? C / 2 : 1;
    bool upper = threadIdx.x & STEP;
#pragma unroll
    for (int k = 0; k < HALF; k++) {
        float v = C > 1 && !upper ? most[k + C / 2] : most[k];
        int of = C > 1 && !upper ? id[k + C / 2] : id[k];
        if (C > 1 && upper) {
            most[k] = most[k + C / 2];
            id[k] = id[k + C / 2];
        }
        take_better(most[k], id[k], __shfl_xor_sync(0xffffffffu, v, STEP), __shfl_xor_sync(0xffffffffu, of, STEP));
    }
    if (C > 1 && upper)
        first += C / 2;
    if constexpr (STEP < 16)
        join_lanes<HALF, STEP * 2>(most, id, first);
}

/* The lane's two rows of a tile, 8 apart, for all tokens; then, with the lane that differs in 4, both lanes' for half
 * of the tokens each. Before that a bit tells which of two is better: there are not registers for more. */
template <int TOKENS> struct lane_bests {
    static constexpr int HALF = TOKENS / 2;
    float most[TOKENS];
    uint32_t codes[2][(HALF + 31) / 32]; // a bit a token: of the first half of them, of the second

    __device__ void find(const float (&sums)[2 * TOKENS]) {
#pragma unroll
        for (int k = 0; k < TOKENS; k++) {
            float low = sums[k / 2 * 4 + k % 2], high = sums[k / 2 * 4 + 2 + k % 2];
            uint32_t &code = codes[k / HALF][k % HALF / 32];
            most[k] = larger(low, high);
            code = (k % HALF % 32 ? code : 0) | (uint32_t)(high > low) << k % HALF % 32; // of equals the lower
            asm volatile("" : "+f"(most[k]), "+r"(code)); // one token after the other: their sums' registers are wanted
        }
    }
    /* row: the lane's first; other: that lane's. Ids come to be. */
    __device__ void join_first(int row, int other, int (&id)[HALF], int &first) {
        bool upper = threadIdx.x & 4;
#pragma unroll
        for (int k = 0; k < HALF; k++) {
            uint32_t mine = codes[0][k / 32], sent = codes[1][k / 32];
            if (upper)
                mine = codes[1][k / 32], sent = codes[0][k / 32];
            uint32_t theirs = __shfl_xor_sync(0xffffffffu, sent, 4);
            float v = upper ? most[k] : most[k + HALF];
            most[k] = upper ? most[k + HALF] : most[k];
            id[k] = row + (int)(mine >> k % 32 & 1) * 8;
            take_better(most[k], id[k], __shfl_xor_sync(0xffffffffu, v, 4), other + (int)(theirs >> k % 32 & 1) * 8);
        }
        first = upper ? HALF : 0;
    }
};

/* The best of the warp's 16 rows of a tile, the first of them given, joins those of the warp's earlier ones. */
template <int N> __device__ void find_best(int first_row, const float (&sums)[N / 2], dbest *of_warp) {
    constexpr int TOKENS = N / 4, HALF = TOKENS / 2, LEFT = TOKENS >= 8 ? TOKENS / 8 : 1;
    int lane = threadIdx.x % 32, first, id[HALF];
    float most[HALF];
    lane_bests<TOKENS> best;
    best.find(sums);
    best.join_first(first_row + lane / 4, first_row + (lane ^ 4) / 4, id, first);
#pragma unroll
    for (int k = 0; k < HALF; k++)
        most[k] = best.most[k];
    join_lanes<HALF, 8>(most, id, first);
    if (lane < TOKENS * 4) // of few tokens several lanes have the same
#pragma unroll
        for (int i = 0; i < LEFT; i++) {
            int k = first + i;
            dbest &b = of_warp[k / 2 * 8 + k % 2 + lane % 4 * 2];
            take_better(b.logit, b.id, most[i], id[i]);
        }
}

// ---- the end of a tile ----------------------------------------------------------------------------------------------

template <int N> struct wanted_rows {
    uint32_t bits[(N + 31) / 32]; // a token's each
    bool any;
};

/* Which tokens' logits are wanted. All consumers. */
template <int N>
__device__ void find_wanted(const head_args &a, const share_of_block &s, int n_consumers, uint32_t *shared,
                            wanted_rows<N> &wanted) {
    constexpr int WORDS = (N + 31) / 32;
    int t = threadIdx.x, r = s.first_token + t;
    if (t < WORDS * 32) {
        bool is = t < N && r < a.n_tokens && r < step_rows(a.plan) && !a.plan.rows[r].is_plain;
        uint32_t bits = __ballot_sync(0xffffffffu, is);
        if (t % 32 == 0)
            shared[t / 32] = bits;
    }
    threads_sync(1, n_consumers); // all words are there
    wanted.any = false;
#pragma unroll
    for (int i = 0; i < WORDS; i++) {
        wanted.bits[i] = shared[i];
        wanted.any |= shared[i] != 0;
    }
}

/* The lane's two rows of a tile for the tokens that want them. to: of the first row and the lane's first token. */
template <int N>
__device__ void write_rows(const wanted_rows<N> &wanted, const float (&sums)[N / 2], const bool (&there)[2], float *to,
                           int64_t stride) {
    uint32_t mine[(N + 31) / 32];
#pragma unroll
    for (int w = 0; w < (N + 31) / 32; w++)
        mine[w] = kept(wanted.bits[w] >> threadIdx.x % 4 * 2);
#pragma unroll
    for (int k = 0; k < N / 4; k++) {
#pragma unroll
        for (int half = 0; half < 2; half++)
            if (there[half] && mine[k / 8] >> (k / 2 * 8 % 32 + k % 2) & 1)
                to[half * 8] = sums[k / 2 * 4 + half * 2 + k % 2];
        to += stride * (k % 2 ? 7 : 1);
        asm volatile("" : "+l"(to)); // else all addresses are kept
    }
}

/* Sums of the lane's row become logits; of a row that is not there, less than any. */
template <int N, int HALF> __device__ void end_row(const head_args &a, int row, bool there, float (&sums)[N / 2]) {
    float bias = there && a.bias ? a.bias[row] : 0;
#pragma unroll
    for (int k = 0; k < N / 4; k++)
        sums[k / 2 * 4 + HALF * 2 + k % 2] += bias;
    if (a.cap > 0)
#pragma unroll
        for (int k = 0; k < N / 4; k++) {
            float &v = sums[k / 2 * 4 + HALF * 2 + k % 2];
            v = a.cap * tanhf(v / a.cap);
        }
    if (!there)
#pragma unroll
        for (int k = 0; k < N / 4; k++)
            sums[k / 2 * 4 + HALF * 2 + k % 2] = -INFINITY;
}

template <int N>
__device__ void finish_rows(const head_args &a, const share_of_block &s, int tile, const wanted_rows<N> &wanted,
                            float (&sums)[N / 2]) {
    int first_row = tile * a.octets * 8, warps = threadIdx.x / 32 * 16, mine = warps + threadIdx.x % 32 / 4,
        row = first_row + mine;
    bool there[2] = {mine < a.octets * 8 && row < a.n_rows, mine + 8 < a.octets * 8 && row + 8 < a.n_rows};
    end_row<N, 0>(a, row, there[0], sums);
    end_row<N, 1>(a, row + 8, there[1], sums);
    if (wanted.any)
        write_rows<N>(wanted, sums, there,
                      static_cast<float *>(a.logits.at) + (s.first_token + threadIdx.x % 4 * 2) * a.logits.stride + row,
                      a.logits.stride);
}

/* The block's best of every token goes to a.bests. */
template <int N>
__device__ void tell_bests(const head_args &a, const share_of_block &s, int n_consumers, const dbest *of_warps) {
    threads_sync(1, n_consumers); // every warp's are there
    int t = threadIdx.x;
    if (t >= N || s.first_token + t >= a.n_tokens)
        return;
    dbest b = of_warps[t];
    for (int w = 1; w < n_consumers / 32; w++)
        take_better(b.logit, b.id, of_warps[w * N + t].logit, of_warps[w * N + t].id);
    a.bests[(s.first_token + t) * HEAD_BESTS + s.part] = b;
}

// ---- the kernel -----------------------------------------------------------------------------------------------------

/* Registers that the copying warpgroup leaves go to the others' sums (setmaxnreg). */
template <int N, int GROUPS, bool BF16>
__global__ void __launch_bounds__((GROUPS + 1) * WARPGROUP, 1)
    head_linear(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap x_map,
                const __grid_constant__ head_args a) {
    constexpr int CONSUMERS = GROUPS * WARPGROUP, WARPS = CONSUMERS / 32;
    extern __shared__ unsigned char unaligned[];
    __shared__ uint64_t full[MAX_STAGES], empty[MAX_STAGES];
    __shared__ dbest of_warps[WARPS * N];
    __shared__ uint32_t wanted_of_block[(N + 31) / 32];
    int warp = (int)of_warp(threadIdx.x / 32), rank = a.sharers > 1 ? cluster_rank() : 0;
    share_of_block s = share_of<N>(a, rank);
    shared_places m = places_of(a, unaligned, full, empty);
    filler<N, head_args> ring(a, m, s, &w_map, &x_map);
    bool copies = threadIdx.x == CONSUMERS;
    if (copies) {
        bulk_map_prefetch(&w_map);
        bulk_map_prefetch(&x_map);
        prepare_ring(a, m, GROUPS);
        if (!a.done)
            ring.begin();
    }
    for (int i = threadIdx.x; i < WARPS * N; i += blockDim.x)
        of_warps[i] = dbest{-INFINITY, INT32_MAX};
    __syncthreads(); // the barriers are ready
    if (a.sharers > 1)
        cluster_sync(); // those of both blocks
    let_next_start();
    if (a.done) {
        wait_for_previous();
        if (*a.done)
            return;
        if (copies)
            ring.begin();
    }
    if (warp >= WARPS) {
        if (GROUPS == 3)
            registers_fewer<32>();
        else
            registers_fewer<40>();
        if (copies) {
            wait_for_previous();
            ring.run();
        }
        __syncwarp();
    } else {
        if (GROUPS == 3)
            registers_more<160>();
        else
            registers_more<232>();
        wait_for_previous();
        wanted_rows<N> wanted;
        find_wanted<N>(a, s, CONSUMERS, wanted_of_block, wanted);
        ring_place at = {0, a.n_stages, 0};
        uint32_t empty_there = 0; // a product of the tensor core ends for all four warps of a group: the first one
                                  // tells each block that copies
        if (warp % 4 == 0 && (int)threadIdx.x % 32 < a.sharers)
            empty_there = address_at_rank(m.empty, threadIdx.x % 32);
        float sums[N / 2];
        for (int pass = 0, tile = s.part; pass < s.n_passes; pass++, tile += s.n_parts) {
            multiply<halves_product<N, BF16>, N>(a, m, empty_there, at, sums, [](int) {});
            finish_rows<N>(a, s, tile, wanted, sums);
            find_best<N>(tile * a.octets * 8 + warp * 16, sums, of_warps + warp * N);
        }
        tell_bests<N>(a, s, CONSUMERS, of_warps);
        __syncwarp();
    }
    if (a.sharers > 1)
        cluster_sync(); // others tell this block that they are done, to the end
}

// ---- how it is cut --------------------------------------------------------------------------------------------------

using kernel = void (*)(CUtensorMap, CUtensorMap, head_args);
template <bool BF16> kernel kernel_for(int n_rows) {
    switch (tokens_of(n_rows)) {
    case 8: return head_linear<8, 3, BF16>;
    case 16: return head_linear<16, 3, BF16>;
    case 32: return head_linear<32, 3, BF16>;
    case 64: return head_linear<64, 3, BF16>;
    case 128: return head_linear<128, 3, BF16>;
    case 192: return head_linear<192, 3, BF16>;
    default: return head_linear<256, 2, BF16>;
    }
}

int static_bytes(int n_rows) { return groups_of(n_rows) * 4 * tokens_of(n_rows) * (int)sizeof(dbest) + 512; }

int head_blocks(int sharers) {
    int n = blocks_at_once(head_linear<8, 3, false>, sharers, 4 * WARPGROUP, SHARED_MOST - 4 * ATOM);
    return n < HEAD_BESTS ? n : HEAD_BESTS;
}

} // namespace

int head_stages(int n_rows, int octets) {
    struct head_cut c = {octets, 0, MAX_STAGES, 1};
    while (c.n_stages > 0 && shared_bytes(n_rows, &c) > SHARED_MOST - static_bytes(n_rows))
        c.n_stages--;
    return c.n_stages;
}

struct head_cut head_cut_of(const struct dlm_head *a, int n_rows) {
    int sharers = n_rows > 64 ? 2 : 1;
    struct head_cut c = {0, head_blocks(sharers), 0, sharers};
    c.octets = octets_of(a->w.out, n_rows, c.n_blocks, sharers);
    c.n_stages = head_stages(n_rows, c.octets);
    return c;
}

int head_parts(const struct dlm_head *a, int n_rows) {
    struct head_cut c = head_cut_of(a, n_rows);
    return parts_of(a->w.out, n_rows, &c);
}

bool head_takes(const struct dlm_head *a, struct dmat x, struct dmat logits, int n_rows) {
    bool halves = a->w.element == ELEMENT_F16 || a->w.element == ELEMENT_BF16;
    bool in_place = a->w.in % 8 == 0 && x.stride % 8 == 0 && (uintptr_t)a->w.at % 16 == 0 && (uintptr_t)x.at % 16 == 0;
    return halves && x.element == a->w.element && in_place && logits.element == ELEMENT_F32 && n_rows >= 1 &&
           n_rows <= HEAD_MAX_ROWS && a->w.out <= INT32_MAX / 4 && a->w.in <= INT32_MAX / 4;
}

cudaError_t launch_head_cut(const struct launch *l, int n_rows, const struct dlm_head *a, struct dmat x,
                            struct dmat logits, struct dbest *bests, const int32_t *done, const struct head_cut *cut) {
    CUtensorMap w_map, x_map;
    int box_tokens = tokens_of(n_rows) / cut->sharers;
    if (!map_rows(&w_map, a->w.at, a->w.in * 2, a->w.out, a->w.in * 2, cut->octets * 8) ||
        !map_rows(&x_map, x.at, x.width * 2, n_rows, x.stride * 2, box_tokens))
        return cudaErrorInvalidValue;
    head_args args = {a->bias,
                      logits,
                      a->cap,
                      l->plan,
                      bests,
                      done,
                      (int)a->w.out,
                      n_rows,
                      up_to((int)a->w.in * 2, PIECE_BYTES),
                      cut->octets,
                      up_to((int)a->w.out, cut->octets * 8),
                      cut->n_stages,
                      token_tiles_of(n_rows),
                      cut->sharers};
    kernel k = a->w.element == ELEMENT_F16 ? kernel_for<false>(n_rows) : kernel_for<true>(n_rows);
    int shared = shared_bytes(n_rows, cut), n_blocks = parts_of(a->w.out, n_rows, cut) * args.token_tiles;
    cudaFuncSetAttribute(k, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    return launch_cluster(k, dim3(n_blocks), cut->sharers, dim3((groups_of(n_rows) + 1) * WARPGROUP), shared, l->stream,
                          w_map, x_map, args);
}

cudaError_t launch_lm_head(const struct launch *l, int n_rows, const struct dlm_head *a, struct dmat x,
                           struct dmat logits, struct dbest *bests, const int32_t *done) {
    struct head_cut cut = head_cut_of(a, n_rows);
    return launch_head_cut(l, n_rows, a, x, logits, bests, done, &cut);
}
