/* argmax_filter.cu - the most probable tokens of a step's rows, of those that a row's mask lets through, of a head of
 * 16 bits, from half of its bytes.
 *
 *     token[j] = the lowest i with the largest w_i.x_j        W [out, in], x [tokens, in] float16 or bfloat16;
 *                of those that mask j lets through            with cap: cap * tanh(./cap)
 *
 * The head is not quantised. A copy of it in bytes, and x in bytes, only tell which rows cannot win:
 *
 *     |w_i.x_j - s_i t_j q_i.p_j| <= e_ij        q, p: bytes, rounded at random; s, t: their steps
 *
 * Only rows with s_i t_j q_i.p_j + e_ij >= best_j = max_i (s_i t_j q_i.p_j - e_ij) can win: of 152,064 normal rows
 * about seven. Their logits are made from W by products of the tensor core in lm_head.cu's order, 16 terms at a time,
 * and the largest wins, of equals the first. docs/numerics.md proves the bound; it asks nothing of W and x, and fails
 * once in 10^15 tokens at most. W and x above have scaled columns, so that outlying channels of x do not widen it
 * (argmax_filter_columns.cuh).
 *
 * Nodes of a step, before lm_head.cu and SAMPLE:
 *     rows       x becomes bytes, a block a token; one more block finds whether the step is to be filtered
 *     product    argmax_filter_product.cuh: all sums q_i.p_j, of which those that may be best become a list a token
 *     choice     argmax_filter_choice.cuh: of a list those that reach the final best; their logits; the token
 *
 * A step is left to lm_head.cu and SAMPLE, with state->is_done 0, if more is asked of a row (step_rows_not_best), if a
 * token's list is empty, too long or has more rows that reach the best than are worth it, or if something is not
 * finite. Where 5 of the last 32 steps that were tried were left, 256 steps are not tried, or fewer if the columns have
 * better scales by then.
 *
 * Lists vary with timing in what they have beyond the rows that reach best_j; the token does not. Nothing depends on
 * what else is in the step. */
#include "backend/cuda/head/argmax_filter.h"
#include "backend/cuda/head/argmax_filter_choice.cuh"
#include "backend/cuda/head/argmax_filter_columns.cuh"
#include "backend/cuda/head/lm_head.h"
#include "backend/cuda/linear/ending.h"
#include "backend/cuda/value.h"

#include <string.h>

namespace screen {

enum {
    MOST_ROW_THREADS = 1024,
    CHOICE_BLOCKS = 512, // as many as run at once, and at most MOST_PARTS a token
    MOST_PARTS = 16,
    LOOKS_AHEAD = 4, // pieces before a tile's end
};

// ---- bytes ----------------------------------------------------------------------------------------------------------

struct measured {
    float most, squares; // largest size, sum of squares: not finite if an element is not
};

/* Eight elements from k on, times their columns' scales. */
template <bool BF16, class SCALE>
__device__ void scaled_eight(const void *at, const SCALE *scale, int k, float (&v)[8]) {
    float scales[8];
    eight_scales(scale + k, scales);
    eight_of<BF16>(static_cast<const char *>(at) + 2 * (int64_t)k, v);
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] *= scales[i];
}

/* Of n elements, known to all threads of the block, whose warps leave theirs in `shared`. */
template <bool BF16, class SCALE>
__device__ measured measure(const void *at, const SCALE *scale, int n, measured *shared) {
    measured m = {0, 0};
    for (int k = threadIdx.x * 8; k < n; k += blockDim.x * 8) {
        float v[8];
        scaled_eight<BF16>(at, scale, k, v);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            m.most = fmaxf(m.most, fabsf(v[i]));
            m.squares += v[i] * v[i];
        }
    }
    m = measured{warp_max(m.most), warp_sum(m.squares)};
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = m;
    __syncthreads(); // every warp's are there
    m = threadIdx.x % 32 < blockDim.x / 32 ? shared[threadIdx.x % 32] : measured{0, 0};
    return measured{warp_max(m.most), warp_sum(m.squares)};
}

/* n elements in steps, to where to(element) says of each eight, by the random bits of `stream` + place / 2, zeros
 * behind them up to a multiple of 16. Sums are the block's, as in measure. */
template <bool BF16, class SCALE, class TO>
__device__ squares round_row(const void *at, const SCALE *scale, int n, float step, uint64_t stream, TO to,
                             squares *shared) {
    float inverse = 1 / step;
    squares s = {0, 0};
    int end = (n + 15) / 16 * 16;
    for (int k = threadIdx.x * 8; k < end; k += blockDim.x * 8) {
        float v[8] = {};
        uint32_t bytes[2] = {};
        if (k < n)
            scaled_eight<BF16>(at, scale, k, v);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            uint64_t bits = mixed(stream + (k + i) / 2);
            float steps = v[i] * inverse;
            int b = k < n ? rounded(v[i], inverse, uniform((uint32_t)(i % 2 ? bits >> 32 : bits))) : 0;
            s.values += steps * steps, s.bytes += (float)(b * b);
            bytes[i / 4] |= (uint32_t)(b & 255) << i % 4 * 8;
        }
        *reinterpret_cast<uint2 *>(to(k)) = make_uint2(bytes[0], bytes[1]);
    }
    s = squares{warp_sum(s.values), warp_sum(s.bytes)};
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = s;
    __syncthreads(); // every warp's are there
    s = threadIdx.x % 32 < blockDim.x / 32 ? shared[threadIdx.x % 32] : squares{0, 0};
    return squares{warp_sum(s.values), warp_sum(s.bytes)};
}

/* Nobody writes these in a step: they come from memory before x is there. */
__device__ inline void bring_near(const __nv_bfloat16 *at, int n) {
    for (int k = threadIdx.x * 16; k < n; k += blockDim.x * 16)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(at + k));
}

/* What is known of W. */
struct copied {
    screen::columns columns;
    const row *rows;
    int64_t n_rows;
};

/* A usual (|w| / step)^2: of every so manieth row, by a warp. */
__device__ inline float typical_row(const row *rows, int64_t out) {
    row r = rows[threadIdx.x % 32 * out / 32];
    return warp_sum(r.size / r.step) / 32;
}

template <bool BF16>
__global__ void __launch_bounds__(MOST_ROW_THREADS)
    copy_weight(const char *w, int in, columns c, const __grid_constant__ units q, row *rows,
                unsigned long long *n_not_finite) {
    __shared__ measured shared[32];
    __shared__ squares sums[32];
    int64_t i = blockIdx.x;
    const char *at = w + i * in * 2;
    if (!*c.is_new)
        return;
    measured m = measure<BF16>(at, c.scale, in, shared);
    bool fine = m.squares < INFINITY;
    float step = fine ? step_of(m.most) : 1;
    squares s = round_row<BF16>(
        at, c.scale, fine ? in : 0, step, GEMV_W + i * ((in + 1) / 2), [&](int k) { return q.byte(i, k); }, sums);
    if (threadIdx.x == 0) {
        rows[i] = fine ? row_of(step, s) : row{1, INFINITY}; // it may always win, and nobody uses its bytes
        if (!fine && n_not_finite)
            atomicAdd(n_not_finite, 1ull);
    }
}

/* Rows of which more is asked than the most probable token of those that a mask, if there is one, lets through. */
__device__ inline int step_rows_not_best(const device_plan &p) { return p.counts[4]; }

/* Whether of all rows of the step the best is wanted, and steps are not paused; one thread. */
__device__ void begin_step(const device_plan &plan, const scratch &s, dfilter_state *state, const host_words &host) {
    bool other = step_rows_not_best(plan) > 0, paused = !other && state->paused > 0;
    if (paused)
        count_pause(state, host);
    state->is_done = 0;
    *s.is_wanted = !other && !paused;
    *s.n_ended = 0;
}

template <bool BF16>
__global__ void __launch_bounds__(MOST_ROW_THREADS)
    round_rows(device_plan plan, dmat x, copied w, scratch s, dfilter_state *state, host_words host) {
    __shared__ measured shared[32];
    __shared__ squares sums[32];
    int r = blockIdx.x;
    let_next_start();
    bring_near(w.columns.inverse, x.width);
    float typical = typical_row(w.rows, w.n_rows);
    wait_for_previous();
    if (r == (int)gridDim.x - 1) {
        if (threadIdx.x == 0)
            begin_step(plan, s, state, host);
        return;
    }
    if (step_rows_not_best(plan) > 0) // nobody will ask
        return;
    bool there = r<step_rows(plan), is_watched = state->paused> PAUSE - WATCHED;
    const char *at = static_cast<const char *>(x.at) + r * x.stride * 2;
    measured m = there ? measure<BF16>(at, w.columns.inverse, x.width, shared) : measured{0, 0};
    bool fine = there && m.squares < INFINITY;
    float step = fine ? step_of(m.most) : 1;
    squares of_x = round_row<BF16>(
        at, w.columns.inverse, fine ? x.width : 0, step, GEMV_X, [&](int k) { return s.p + r * s.pitch + k; }, sums);
    if (fine && is_watched)
        watch_columns<BF16>(at, x.width, w.columns);
    if (threadIdx.x != 0)
        return;
    s.tokens[r] = fine ? token_of(step, of_x, typical, x.width) : token{0, 0, 0};
    s.bests[r] = -INFINITY;
    s.keys[r] = 0;
    s.n_parts[r] = 0;
    s.n_found[r] = fine || !there ? 0 : MOST_FOUND + 1; // what is not finite is left
}

// ---- how it is cut
// ----------------------------------------------------------------------------------------------------

enum { MAX_BLOCKS = 160, ALIGNED = 256 };

using product = void (*)(unit_maps, CUtensorMap, product_args);
static product product_for(int n_rows) {
    switch (tokens_of(n_rows)) {
    case 8: return filter_product<8, 3>;
    case 16: return filter_product<16, 3>;
    case 32: return filter_product<32, 3>;
    case 64: return filter_product<64, 3>;
    case 128: return filter_product<128, 3>;
    case 192: return filter_product<192, 3>;
    default: return filter_product<256, 2>;
    }
}

/* Of `watch`. */
static int static_bytes(int n_rows) {
    int n = tokens_of(n_rows), of_warp = (int)sizeof(notes) + (n < 16 ? 16 : n) * 4;
    return n * 20 + groups_of(n_rows) * 4 * of_warp + LISTED * (int)sizeof(listed) + 512;
}

static int blocks_of(int sharers) {
    int n = blocks_at_once(filter_product<8, 3>, sharers, 4 * WARPGROUP, SHARED_MOST - static_bytes(8) - ATOM);
    return n < MAX_BLOCKS ? n : MAX_BLOCKS;
}

static head_cut cut_of(int n_rows) {
    int sharers = n_rows > 64 ? 2 : 1, n_blocks = blocks_of(sharers);
    head_cut c = {groups_of(n_rows) * (M_ROWS / 8), n_blocks, MAX_STAGES, sharers};
    while (c.n_stages > 2 && shared_bytes(n_rows, &c) > SHARED_MOST - static_bytes(n_rows))
        c.n_stages--;
    return c;
}

// ---- places
// -----------------------------------------------------------------------------------------------------------

static int64_t aligned(int64_t n) { return (n + ALIGNED - 1) / ALIGNED * ALIGNED; }
static int64_t pitch_of(int64_t in) { return (in + 15) / 16 * 16; }

static units units_of(const dfilter *s) {
    units u = units_of(s->w.out, pitch_of(s->w.in));
    int n_pages = (int)(bytes_of(u) / SIDES_PAGE);
    u.at = static_cast<char *>(s->copy);
    if (s->sides) {
        for (int i = 0; i < MOST_PAGES / 32 && i * 32 <= n_pages; i++)
            u.flips[i] = s->flips[i];
        u.hash = s->sides->hash;
        memcpy(u.sm_sides, s->sides->sm, sizeof u.sm_sides);
    }
    return u;
}
static row *rows_of(const dfilter *s) {
    return reinterpret_cast<row *>(static_cast<char *>(s->copy) + aligned(bytes_of(units_of(s))));
}

/* Places one behind the other; with base NULL only counted. */
struct placing {
    char *base;
    int64_t n_bytes;
    template <class T> T *take(int64_t n) {
        T *at = reinterpret_cast<T *>(base + n_bytes);
        n_bytes += aligned(n * (int64_t)sizeof(T));
        return at;
    }
};
static columns columns_at(placing &p, int64_t in) {
    columns c = {};
    c.scale = p.take<float>(in), c.inverse = p.take<__nv_bfloat16>(in);
    c.most_w = p.take<float>(in), c.most_x = p.take<float>(in);
    c.is_new = p.take<int32_t>(1);
    return c;
}
static columns columns_of(const dfilter *s) {
    placing p = {reinterpret_cast<char *>(rows_of(s)) + aligned(s->w.out * (int64_t)sizeof(row)), 0};
    return columns_at(p, s->w.in);
}
static scratch scratch_at(placing &p, int64_t in, int n_rows) {
    scratch s = {};
    s.pitch = pitch_of(in);
    s.p = p.take<int8_t>(n_rows * s.pitch);
    s.found = p.take<candidate>((int64_t)n_rows * MOST_FOUND);
    s.tokens = p.take<token>(n_rows);
    s.bests = p.take<float>(n_rows);
    s.n_found = p.take<int32_t>(n_rows);
    s.keys = p.take<unsigned long long>(n_rows);
    s.n_parts = p.take<int32_t>(n_rows);
    s.is_wanted = p.take<int32_t>(1);
    s.n_ended = p.take<int32_t>(1);
    return s;
}

static cudaError_t launch_product(const launch *l, int n_rows, const dfilter *s, const scratch &at) {
    head_cut c = cut_of(n_rows);
    unit_maps w_maps;
    CUtensorMap x_map;
    product_args args = {units_of(s)};
    if (!map_units(&w_maps, args.w) ||
        !map_rows(&x_map, at.p, at.pitch, n_rows, at.pitch, tokens_of(n_rows) / c.sharers))
        return cudaErrorInvalidValue;
    int token_tiles = token_tiles_of(n_rows), n_shares = parts_of(s->w.out, n_rows, &c),
        n_pieces = up_to((int)at.pitch, PIECE_BYTES);
    int most_sum = 127 * 127 * (int)at.pitch; // and twice that is less than 2^31
    args.rows = rows_of(s);
    args.tokens = at.tokens;
    args.bests = at.bests;
    args.n_found = at.n_found;
    args.found = at.found;
    args.is_wanted = at.is_wanted;
    args.asked = l->plan.rows;
    args.places = l->plan.places;
    args.by_turns = n_pieces > 1;
    args.cap = s->cap;
    args.most_needed = 0x1.fffp30f - most_sum;
    args.most_beyond = 0x1.fffp30f - 2.0f * most_sum;
    args.looks_at = n_pieces > LOOKS_AHEAD ? n_pieces - LOOKS_AHEAD : 0;
    args.most_found = MOST_FOUND;
    args.claims = s->state->claims;
    args.n_rows = (int)s->w.out;
    args.n_tokens = n_rows;
    args.n_pieces = n_pieces;
    args.octets = c.octets;
    args.n_stages = c.n_stages;
    args.token_tiles = token_tiles;
    args.sharers = c.sharers;
    product k = product_for(n_rows);
    int shared = shared_bytes(n_rows, &c);
    cudaFuncSetAttribute(k, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    return launch_cluster(k, dim3(n_shares * token_tiles), c.sharers, dim3((groups_of(n_rows) + 1) * WARPGROUP), shared,
                          l->stream, w_maps, x_map, args);
}

/* Of a block for a row: eight elements each, if that is enough. */
static int row_threads(int64_t in) {
    int64_t n = (in + 255) / 256 * 32;
    return n < MOST_ROW_THREADS ? (int)n : MOST_ROW_THREADS;
}

static void put_copy(cudaStream_t stream, const dfilter *s, const columns &c, unsigned long long *n_not_finite) {
    auto kernel = s->w.element == ELEMENT_BF16 ? copy_weight<true> : copy_weight<false>;
    kernel<<<dim3((unsigned)s->w.out), dim3(row_threads(s->w.in)), 0, stream>>>(
        static_cast<const char *>(s->w.at), (int)s->w.in, c, units_of(s), rows_of(s), n_not_finite);
}

template <bool BF16>
static cudaError_t launch_nodes(const launch *l, int n_rows, const dfilter *s, dmat x, const scratch &at) {
    copied w = {columns_of(s), rows_of(s), s->w.out};
    launch_node(round_rows<BF16>, dim3(n_rows + 1), dim3(row_threads(x.width)), 0, l->stream, l->plan, x, w, at,
                s->state, host_words{s->asked, s->counts});
    cudaError_t code = launch_product(l, n_rows, s, at);
    if (code != cudaSuccess)
        return code;
    int most_exact = s->budget > 0 && s->budget < MOST_EXACT ? s->budget : MOST_EXACT;
    ending e = {l->plan, at,       x,        static_cast<const char *>(s->w.at), (int)s->w.in, most_exact,
                s->cap,  s->state, s->counts};
    int shared = exact_logits<BF16>::RING,
        parts = CHOICE_BLOCKS / n_rows < MOST_PARTS ? CHOICE_BLOCKS / n_rows : MOST_PARTS;
    cudaFuncSetAttribute(choose<BF16>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    launch_node(choose<BF16>, dim3(parts, n_rows), dim3(CHOICE_THREADS), shared, l->stream, e);
    return cudaGetLastError();
}

} // namespace screen

bool filter_takes(const struct dlm_head *a, struct dmat x, int n_rows) {
    bool halves = a->w.element == ELEMENT_F16 || a->w.element == ELEMENT_BF16;
    bool in_place = a->w.in % 8 == 0 && x.stride % 8 == 0 && (uintptr_t)a->w.at % 16 == 0 && (uintptr_t)x.at % 16 == 0;
    return halves && !a->bias && x.element == a->w.element && in_place && n_rows >= 1 && n_rows <= HEAD_MAX_ROWS &&
           a->w.out >= 1 && a->w.out < 1 << 24 && a->w.in >= 8 &&
           a->w.in <= 65536; // twice sums of 127 * 127 in 31 bits
}

int64_t filter_pages_bytes(struct dweight w) {
    return screen::bytes_of(screen::units_of(w.out, screen::pitch_of(w.in)));
}

int64_t filter_copy_bytes(struct dweight w) {
    screen::placing p = {};
    screen::columns_at(p, w.in);
    return screen::aligned(filter_pages_bytes(w)) + screen::aligned(w.out * (int64_t)sizeof(screen::row)) + p.n_bytes;
}

int64_t filter_scratch_bytes(struct dweight w, int n_rows) {
    screen::placing p = {};
    screen::scratch_at(p, w.in, n_rows);
    return p.n_bytes;
}

void launch_filter_copy(cudaStream_t stream, const struct dfilter *s, unsigned long long *n_not_finite) {
    screen::columns c = screen::columns_of(s);
    auto measure = s->w.element == ELEMENT_BF16 ? screen::measure_columns<true> : screen::measure_columns<false>;
    cudaMemsetAsync(s->copy, 0, filter_pages_bytes(s->w), stream); // rows beyond the last are multiplied too
    screen::
        begin_columns<<<dim3(up_to((int)s->w.in, screen::COLUMN_THREADS)), dim3(screen::COLUMN_THREADS), 0, stream>>>(
            c, (int)s->w.in);
    measure<<<dim3(up_to((int)s->w.in, 256), screen::COLUMN_BLOCKS), dim3(screen::COLUMN_THREADS), 0, stream>>>(
        static_cast<const char *>(s->w.at), s->w.out, (int)s->w.in, c);
    screen::put_copy(stream, s, c, n_not_finite);
}

void launch_filter_again(cudaStream_t stream, const struct dfilter *s) {
    screen::columns c = screen::columns_of(s);
    screen::balance<<<dim3(1), dim3(screen::BALANCE_THREADS), 0, stream>>>(c, (int)s->w.in, s->state);
    screen::put_copy(stream, s, c, nullptr);
}

cudaError_t launch_filter(const struct launch *l, int n_rows, const struct dfilter *s, struct dmat x) {
    screen::placing p = {static_cast<char *>(s->scratch), 0};
    screen::scratch at = screen::scratch_at(p, s->w.in, n_rows);
    return s->w.element == ELEMENT_BF16 ? screen::launch_nodes<true>(l, n_rows, s, x, at)
                                        : screen::launch_nodes<false>(l, n_rows, s, x, at);
}
