/* moe_stream.cu - MOE_FFN as a stream of the experts' weights: see moe_stream.h and core/ops.def.
 *
 *     up     hidden[p, f] = act(W13_e x[t])       of each pair p of a token t and one of its experts e
 *     down   result[p, d] = W2_e hidden[p] + b2_e
 *     join   y[t, d] = sum_k weight[t, k] result[t top_k + k, d], in ascending k
 *
 * Mathematics on the tensor core with W as the first operand, as in linear/gemv.cu: m16n8k16, 16 rows of W (of gates
 * and ups 8 of each, so that a lane has both sums of a unit) by up to 3 times 8 tokens of an expert. What is narrower
 * becomes half on the way, exactly, or bfloat16.
 *
 * Who does what. Tiles of 16 rows, of all tiles of tokens behind one another, go to blocks in equal shares of
 * neighbours; so a block seldom changes its tokens, which lie in shared memory, and blocks that share an expert's
 * tokens in two tiles read the same weights at about the same time. Where tokens of two tiles have no room together, a
 * block has rows of one tile, if shares are not too unequal then. Warps of a block take its tiles by turns, each with
 * all columns: no sum is ever joined with another's, and what a row of y is does not depend on the other tokens.
 *
 * Formats of W are in moe_formats.cuh: e4m3, 16 bits, and MXFP4 in blocks (weights/blocks.h), whose codes
 * become half in nine instructions for eight of them (ptx/nibbles.cuh), times the scale of their 32 columns.
 *
 * Loads. A warp copies what it will itself read into a queue in shared memory (cp.async, DEPTH steps of 128 bytes of
 * 16 rows, or of some blocks): no barrier is needed to take it out. 8 warps x 12 KB on each of 132 multiprocessors keep
 * 12.7 MB under way. A slot is filled again as soon as it has been read. moe_down fills its queue before it waits for
 * moe_up.
 *
 * From 20 tokens an expert on, in the mean, moe_tiles.cuh computes the same, to the bit: a stream turns each weight
 * into half once more for every 24 tokens. From 32 on moe_wide.cuh does, where widths allow.
 *
 * Bytes: of each expert that has tokens W13 and W2, once a tile; x once a block. */
#include "backend/cuda/moe/moe_kernels.h"
#include "backend/cuda/moe/moe_order.cuh"
#include "backend/cuda/moe/moe_stream.h"
#include "backend/cuda/ptx/fours.cuh"
#include "backend/cuda/ptx/launching.cuh"
#include "backend/cuda/rows/rows.h"
#include "backend/cuda/value.h"

enum {
    MOST_PIECE = 1024,
    LEAST_TILED_PIECE = 2048, // of many tokens an expert: each piece reads all experts' weights
    MOST_TILED_PIECE = 8192,
    BETWEEN_BYTES = 704 << 20, // that it may take between nodes beyond the least
    FEW_FOR_BLOCKS = 2,        // of an expert, in the mean: below, BLOCKS of a format have room for those of a tile
    FEW_TOKENS = 5,            // likewise: below, tiles of shared experts are short
    MANY_TOKENS = 20,          // of an expert, in the mean
    WIDE_MANY = 32,            // likewise
    JOINED_TOKENS = 2
};

static int up_to(int64_t n, int of) { return (int)((n + of - 1) / of); }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// ---- how it is cut --------------------------------------------------------------------------------------------------

static const expert_kernels *kernels_for(const struct dweight &w, element product) {
    const expert_kernels *quads = expert_kernels_quads(w);
    if (quads)
        return product == ELEMENT_F16 ? quads : nullptr;
    return product == ELEMENT_BF16 ? expert_kernels_bf16(w) : expert_kernels_f16(w);
}

/* Those that tokens are sent to: on one rank of several some are here, and have as many tokens as if all were. */
static int all_experts(const struct dmoe *a) { return a->n_all > 0 ? a->n_all : a->n_experts; }

/* Of either product alike. */
static stream_format format_of(const struct dweight &w) {
    const expert_kernels *k = kernels_for(w, ELEMENT_F16);
    return k ? k->format : stream_format{};
}

static int pitch_of(struct dweight w13, struct dweight w2) {
    stream_format f = format_of(w13);
    return (int)most(f.x_pitch(w13.in), f.x_pitch(w2.in));
}
static int tokens_that_fit(struct dweight w13, struct dweight w2) {
    return (SHARED_MOST - format_of(w13).many_queue_bytes) / pitch_of(w13, w2);
}

bool moe_streams(struct dweight w13, struct dweight w2) {
    const expert_kernels *k = kernels_for(w13, ELEMENT_F16);
    int64_t of = k ? k->format.width_of : 0;
    return of > 0 && k == kernels_for(w2, ELEMENT_F16) && w13.in % of == 0 && w2.in % of == 0 && w13.out < INT32_MAX &&
           w2.out < INT32_MAX && w13.in < 1 << 24 && w2.in < 1 << 24 && tokens_that_fit(w13, w2) > 0;
}

/* The longest piece of many tokens an expert. */
static int tiled_piece(const struct dmoe *a, struct dweight w13) {
    int64_t a_token = a->top_k * (w13.in * (int64_t)sizeof(float) + a->ffn_size * (int64_t)sizeof(uint16_t));
    return (int)most(LEAST_TILED_PIECE, least(MOST_TILED_PIECE, BETWEEN_BYTES / a_token / 1024 * 1024));
}

struct dmoe_cut moe_cut_of(const struct dmoe *a, struct dweight w13, struct dweight w2, int n_tokens) {
    int64_t fits = tokens_that_fit(w13, w2), n_experts = all_experts(a);
    stream_format f = format_of(w13);
    struct dmoe_cut c;
    c.is_tiled = f.order > 0 && (int64_t)n_tokens * a->top_k >= (int64_t)MANY_TOKENS * n_experts;
    c.is_wide = w13.in % PANEL_COLUMNS == 0 && w2.in % PANEL_COLUMNS == 0 &&
                (int64_t)n_tokens * a->top_k >= (int64_t)WIDE_MANY * n_experts;
    int64_t pairs_of_all = (int64_t)n_tokens * a->top_k;
    c.piece = (int)least(n_tokens, c.is_tiled || c.is_wide ? tiled_piece(a, w13) : MOST_PIECE);
    c.tile = (int)least(fits < 8 ? fits : fits / 8 * 8, MOST_OCTETS * 8);
    if (f.blocks > 1 && pairs_of_all < FEW_FOR_BLOCKS * n_experts)
        c.tile = (int)least(c.tile, most(1, (SHARED_HALF - f.queue_bytes) / pitch_of(w13, w2) / 8 * 8));
    // Shared experts have all tokens. Blocks have equal numbers of rows by tiles, so those with full tiles would be
    // waited for by all others, whose tiles have a few tokens each. Short ones find the expert's weights in the L2.
    if (a->n_shared > 0 &&
        (pairs_of_all - (int64_t)n_tokens * a->n_shared) <= (int64_t)FEW_TOKENS * (n_experts - a->n_shared))
        c.tile = (int)least(c.tile, 8);
    c.tile = c.is_wide ? f.wide_tokens : c.is_tiled ? TILE_TOKENS : c.tile;
    int64_t pairs = (int64_t)c.piece * a->top_k;
    c.most_tiles = (int)(least(pairs, a->n_experts) + pairs / c.tile);
    bool fits_joined =
        a->top_k <= JOINED_WARPS && a->top_k * (f.queue_bytes / STREAM_WARPS + f.x_pitch(w2.in)) <= SHARED_MOST;
    c.is_joined = n_tokens <= JOINED_TOKENS && fits_joined && !c.is_tiled;
    c.is_direct = n_tokens == 1 && c.is_joined;
    return c;
}

/* Parts of memory, each at a multiple of 256 bytes. */
struct memory_parts {
    char *at;
    int64_t used;
    template <class T> void take(T *&part, int64_t n) {
        part = reinterpret_cast<T *>(at + used);
        used += (n * (int64_t)sizeof(T) + 255) / 256 * 256;
    }
};

struct dmoe_list moe_list_at(const struct dmoe *a, const struct dmoe_cut *c, void *at, int64_t *n_bytes) {
    memory_parts parts = {static_cast<char *>(at), 0};
    int64_t pairs = (int64_t)c->piece * a->top_k;
    struct dmoe_list list;
    parts.take(list.seen, 2);
    parts.take(list.n_tiles, 1);
    parts.take(list.tiles, c->most_tiles);
    parts.take(list.pair, pairs);
    parts.take(list.rank, most(pairs, (pairs / 512 + 1) * (a->n_experts + 1) / 2)); // moe_list_parts.cuh
    parts.take(list.posted, 1);
    *n_bytes = parts.used;
    list.tiles = c->is_direct ? NULL : list.tiles;
    bool fits = a->top_k - a->n_shared <= MOST_POSTED && a->n_experts - a->n_shared <= POSTED_EXPERTS;
    list.posted = c->is_direct && a->is_posted && fits && a->n_experts == all_experts(a) ? list.posted : NULL;
    return list;
}

/* What lies between nodes. */
struct between {
    uint16_t *x;      // [piece][D] in the element of products, where x has another
    uint16_t *hidden; // [pairs][ffn_size], in the element of products
    float *result;    // [pairs][D]
};
static struct between between_of(const struct dmoe *a, const struct dmoe_cut *c, struct dweight w13, int64_t *n_bytes) {
    memory_parts parts = {static_cast<char *>(a->scratch), 0};
    int64_t pairs = (int64_t)c->piece * a->top_k;
    struct between b;
    parts.take(b.x, c->piece * w13.in);
    parts.take(b.hidden, pairs * a->ffn_size);
    parts.take(b.result, pairs * w13.in);
    *n_bytes = parts.used;
    return b;
}

/* Steps of fewer tokens may be cut otherwise, and want more: of either cut the longest piece. */
void moe_stream_bytes(const struct dmoe *a, struct dweight w13, struct dweight w2, int n_tokens, int64_t *scratch,
                      int64_t *list) {
    *scratch = *list = 0;
    const int pieces[] = {MOST_PIECE, tiled_piece(a, w13)};
    for (int piece : pieces) {
        struct dmoe_cut c = moe_cut_of(a, w13, w2, (int)least(n_tokens, piece));
        int64_t of_list, between;
        c.tile = (int)least(8, tokens_that_fit(w13, w2)); // of the shortest tiles
        c.piece = (int)least(n_tokens, piece);
        c.most_tiles = (int)(least((int64_t)c.piece * a->top_k, a->n_experts) + (int64_t)c.piece * a->top_k / c.tile);
        between_of(a, &c, w13, &between);
        moe_list_at(a, &c, NULL, &of_list);
        *scratch = most(*scratch, between), *list = most(*list, of_list);
    }
}

// ---- the weighted sum -----------------------------------------------------------------------------------------------

enum { JOIN_THREADS = 256 };

struct join_args {
    const float *result; // [pairs][width]
    dmat weights, y;     // rows from first_token on
    int first_token, top_k;
    bool in_fours;
    dmat ids; // of a rank that has some experts: what tokens are sent to
    int first_expert, n_experts;
};

/* PART: pairs of experts that are not here are left out. */
template <bool PART> static __global__ void __launch_bounds__(JOIN_THREADS) moe_join(device_plan plan, join_args a) {
    let_next_start();
    wait_for_previous();
    int t = a.first_token + blockIdx.y, d = (blockIdx.x * JOIN_THREADS + threadIdx.x) * 4;
    if (t >= step_tokens(plan) || d >= a.y.width)
        return;
    const float *from = a.result + (int64_t)blockIdx.y * a.top_k * a.y.width + d;
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 8
    for (int k = 0; k < a.top_k; k++) {
        bool here = true;
        if (PART)
            here = (uint32_t)(static_cast<const int32_t *>(a.ids.at)[t * a.ids.stride + k] - a.first_expert) <
                   (uint32_t)a.n_experts;
        float4 v = make_float4(0, 0, 0, 0);
        if (here)
            v = *reinterpret_cast<const float4 *>(from + (int64_t)k * a.y.width);
        float w = load(a.weights, t, k);
        sum.x = fmaf(w, v.x, sum.x), sum.y = fmaf(w, v.y, sum.y);
        sum.z = fmaf(w, v.z, sum.z), sum.w = fmaf(w, v.w, sum.w);
    }
    if (a.in_fours) {
        store_four(a.y, t, d, sum);
    } else {
        store(a.y, t, d, sum.x), store(a.y, t, d + 1, sum.y);
        store(a.y, t, d + 2, sum.z), store(a.y, t, d + 3, sum.w);
    }
}

// ---- the launcher ---------------------------------------------------------------------------------------------------

static void name_experts(stream_args *args, const struct dmoe *a) {
    args->n_experts = a->n_experts, args->first_expert = a->first_expert, args->n_shared = a->n_shared;
    args->is_part = a->n_experts < all_experts(a);
}

static void launch_up(stream_call c, element product, struct dmat x, int first, struct dweight w, struct dweight b,
                      void *hidden) {
    stream_args up = {static_cast<const unsigned char *>(w.at), w.scale, static_cast<const float *>(b.at)};
    up.x = x, up.list = c.args.list, up.ids = c.args.ids, up.y = hidden;
    up.in = (int)w.in, up.units = c.a->ffn_size, up.n_row_tiles = up_to(c.a->ffn_size, 8);
    up.top_k = c.a->top_k, up.first_token = first, up.act = c.a->act, up.limit = c.a->limit;
    name_experts(&up, c.a);
    c.args = up, c.w = w;
    kernels_for(w, product)->up(c);
}

static stream_args down_args(const stream_call &c, element product, void *hidden, struct dweight w, struct dweight b,
                             int width) {
    stream_args down = {static_cast<const unsigned char *>(w.at), w.scale, static_cast<const float *>(b.at)};
    down.x = {hidden, c.a->ffn_size, c.a->ffn_size, product, nullptr};
    down.list = c.args.list;
    down.in = c.a->ffn_size, down.units = width, down.n_row_tiles = up_to(width, TILE_ROWS);
    down.top_k = c.a->top_k;
    name_experts(&down, c.a);
    return down;
}

/* Down, and the weighted sum of tokens from the first-th on. */
static void launch_down_and_join(stream_call c, element product, const struct between &between, struct dmat ids,
                                 struct dmat weights, struct dweight w, struct dweight b, struct dmat y, int first,
                                 int n) {
    c.args = down_args(c, product, between.hidden, w, b, y.width), c.w = w;
    if (c.cut->is_joined) {
        down_join_args joined = {c.args, static_cast<const int32_t *>(ids.at), ids.stride, weights, y};
        kernels_for(w, product)->joined(c, joined);
        return;
    }
    c.args.y = between.result;
    kernels_for(w, product)->down(c);
    join_args join = {between.result,    weights,       y, first, c.a->top_k, lies_in_fours(y), ids,
                      c.a->first_expert, c.a->n_experts};
    launch_node(c.args.is_part ? moe_join<true> : moe_join<false>, dim3(up_to(y.width, 4 * JOIN_THREADS), n),
                JOIN_THREADS, 0, c.l->stream, c.l->plan, join);
}

static bool is_for_copies(struct dmat x, element product) {
    return x.element == product && x.stride % 8 == 0 && (uintptr_t)x.at % PIECE == 0;
}

static struct dmat rows_of(struct dmat x, int first) {
    x.at = static_cast<char *>(x.at) + first * x.stride * element_bytes(x.element);
    return x;
}

static void launch_order(const struct launch *l, element product, struct dmat x, int first, int n, struct dweight w,
                         uint16_t *to) {
    enum { THREADS = 256 };
    int blocks = up_to((int64_t)n * x.width / 8, THREADS), columns = format_of(w).order;
    if (product == ELEMENT_BF16)
        launch_node(moe_order<__nv_bfloat16>, blocks, THREADS, 0, l->stream, l->plan, x, first, n, columns,
                    reinterpret_cast<__nv_bfloat16 *>(to));
    else
        launch_node(moe_order<__half>, blocks, THREADS, 0, l->stream, l->plan, x, first, n, columns,
                    reinterpret_cast<__half *>(to));
}

void launch_moe_stream_cut(const struct launch *l, const struct dmoe *a, enum element product, struct dmat x,
                           struct dmat ids, struct dmat weights, struct dweight w13, struct dweight w2,
                           struct dweight b13, struct dweight b2, struct dmat y, const struct dmoe_cut *cut) {
    int64_t n_bytes;
    struct between between = between_of(a, cut, w13, &n_bytes);
    stream_call call = {l, a, cut};
    call.args.list = moe_list_at(a, cut, a->list, &n_bytes);
    call.args.ids = cut->is_direct ? static_cast<const int32_t *>(ids.at) : nullptr;
    for (int first = 0; first < l->n_tokens; first += cut->piece) {
        int n = (int)least(cut->piece, l->n_tokens - first);
        if (!a->is_listed)
            launch_moe_list(l, a, cut->tile, first, n, ids, call.args.list);
        bool ordered = cut->is_wide && format_of(w13).order > 0,
             as_it_is = !ordered && ((!cut->is_wide && !cut->is_tiled) || is_for_copies(x, product));
        struct dmat piece = as_it_is ? x : dmat{between.x, w13.in, (int)w13.in, product, nullptr};
        if (ordered)
            launch_order(l, product, x, first, n, w13, between.x);
        else if (!as_it_is)
            launch_convert(l, n, rows_of(x, first), piece);
        launch_up(call, product, piece, as_it_is ? first : 0, w13, b13, between.hidden);
        launch_down_and_join(call, product, between, ids, weights, w2, b2, y, first, n);
    }
}

void launch_moe_stream(const struct launch *l, const struct dmoe *a, enum element product, struct dmat x,
                       struct dmat ids, struct dmat weights, struct dweight w13, struct dweight w2, struct dweight b13,
                       struct dweight b2, struct dmat y) {
    struct dmoe_cut cut = moe_cut_of(a, w13, w2, l->n_tokens);
    launch_moe_stream_cut(l, a, product, x, ids, weights, w13, w2, b13, b2, y, &cut);
}
