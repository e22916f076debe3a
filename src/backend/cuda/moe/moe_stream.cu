/* moe_stream.cu - MOE_FFN as a stream of the experts' weights: see moe_stream.h and core/ops.def.
 *
 *     up     hidden[p, f] = act(W13_e x[t])       of each pair p of a token t and one of its experts e
 *     down   result[p, d] = W2_e hidden[p] + b2_e
 *     join   y[t, d] = sum_k weight[t, k] result[t top_k + k, d], in ascending k
 *
 * Mathematics on the tensor core with W as the first operand, as in linear/gemv.cu: m16n8k16, 16 rows of W (of gates
 * and ups 8 of each, so that a lane has both sums of a unit) by up to 4 times 8 tokens of an expert. e4m3 becomes half
 * on the way, exactly, or bfloat16.
 *
 * Who does what. Tiles of 16 rows, of all tiles of tokens behind one another, go to blocks in equal shares of
 * neighbours; so a block seldom changes its tokens, which lie in shared memory, and blocks that share an expert's
 * tokens in two tiles read the same weights at about the same time. Warps of a block take its tiles by turns, each with
 * all columns: no sum is ever joined with another's, and what a row of y is does not depend on the other tokens.
 *
 * Loads. Each lane copies what it will itself read into a queue in shared memory (cp.async, DEPTH steps of 128 bytes of
 * 16 rows): no barrier is needed to take it out. 8 warps x 12 KB on each of 132 multiprocessors keep 12.7 MB under way.
 * moe_down fills its queue before it waits for moe_up.
 *
 * Bytes: of each expert that has tokens W13 and W2, once a tile; x once a block. */
#include "backend/cuda/moe/moe_stream.h"
#include "backend/cuda/moe/moe_stream_kernel.cuh"
#include "backend/cuda/ptx/fours.cuh"
#include "backend/cuda/ptx/launching.cuh"
#include "backend/cuda/value.h"

enum { DEPTH = 6, QUEUE_BYTES = STREAM_WARPS * DEPTH * STEP * TILE_ROWS, SHARED_MOST = 224 << 10, MOST_PIECE = 1024 };

static int up_to(int64_t n, int of) { return (int)((n + of - 1) / of); }

// ---- how it is cut --------------------------------------------------------------------------------------------------

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static int x_pitch_of(struct dweight w) {
    return w.element == ELEMENT_E4M3 ? up_to(w.in, STEP) * STEP * 2 + 16 : up_to(w.in * 2, STEP) * STEP + 64;
}
static int tokens_that_fit(struct dweight w13, struct dweight w2) {
    return (int)((SHARED_MOST - QUEUE_BYTES) / most(x_pitch_of(w13), x_pitch_of(w2)));
}

bool moe_streams(struct dweight w13, struct dweight w2) {
    bool narrow = w13.element == ELEMENT_E4M3, halves = w13.element == ELEMENT_F16 || w13.element == ELEMENT_BF16;
    int64_t of = narrow ? 16 : 8;
    return (narrow || halves) && w13.element == w2.element && w13.in % of == 0 && w2.in % of == 0 &&
           w13.out < INT32_MAX && w2.out < INT32_MAX && w13.in < 1 << 24 && w2.in < 1 << 24 &&
           tokens_that_fit(w13, w2) > 0;
}

struct dmoe_cut moe_cut_of(const struct dmoe *a, struct dweight w13, struct dweight w2, int n_tokens) {
    int64_t fits = tokens_that_fit(w13, w2);
    struct dmoe_cut c;
    c.piece = (int)least(n_tokens, MOST_PIECE);
    c.tile = (int)least(fits < 8 ? fits : fits / 8 * 8, MOST_OCTETS * 8);
    int64_t pairs = (int64_t)c.piece * a->top_k;
    c.most_tiles = (int)(least(pairs, a->n_experts) + pairs / most(c.tile, 1));
    return c;
}

/* Parts of the scratch, each at a multiple of 256 bytes. */
static struct dmoe_room room_of(const struct dmoe *a, const struct dmoe_cut *c, struct dweight w13, int64_t *n_bytes) {
    char *at = static_cast<char *>(a->scratch);
    int64_t pairs = (int64_t)c->piece * a->top_k, used = 0;
    auto take = [&](int64_t bytes) {
        char *part = at + used;
        used += (bytes + 255) / 256 * 256;
        return part;
    };
    struct dmoe_room r;
    r.list.n_tiles = reinterpret_cast<int32_t *>(take(sizeof(int32_t)));
    r.list.tiles = reinterpret_cast<dmoe_tile *>(take(c->most_tiles * (int64_t)sizeof(dmoe_tile)));
    r.list.pair = reinterpret_cast<int32_t *>(take(pairs * (int64_t)sizeof(int32_t)));
    r.list.rank = reinterpret_cast<int32_t *>(take(pairs * (int64_t)sizeof(int32_t)));
    r.hidden = take(pairs * a->ffn_size * 2);
    r.result = reinterpret_cast<float *>(take(pairs * w13.in * (int64_t)sizeof(float)));
    *n_bytes = used;
    return r;
}

int64_t moe_stream_bytes(const struct dmoe *a, struct dweight w13, struct dweight w2, int n_tokens) {
    struct dmoe_cut c = moe_cut_of(a, w13, w2, n_tokens);
    int64_t n_bytes;
    room_of(a, &c, w13, &n_bytes);
    return n_bytes;
}

// ---- the weighted sum -----------------------------------------------------------------------------------------------

enum { JOIN_THREADS = 256 };

struct join_args {
    const float *result; // [pairs][width]
    dmat weights, y;     // rows from first_token on
    int first_token, top_k;
    bool in_fours;
};

static __global__ void __launch_bounds__(JOIN_THREADS) moe_join(device_plan plan, join_args a) {
    let_next_start();
    wait_for_previous();
    int t = a.first_token + blockIdx.y, d = (blockIdx.x * JOIN_THREADS + threadIdx.x) * 4;
    if (t >= step_tokens(plan) || d >= a.y.width)
        return;
    const float *from = a.result + (int64_t)blockIdx.y * a.top_k * a.y.width + d;
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 8
    for (int k = 0; k < a.top_k; k++) {
        float4 v = *reinterpret_cast<const float4 *>(from + (int64_t)k * a.y.width);
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

template <class W, bool UP>
static void launch_half(const struct launch *l, const struct dmoe_cut *c, stream_args args, struct dweight w) {
    auto kernel = moe_stream<W, DEPTH, UP>;
    args.x_pitch = x_pitch_of(w);
    args.x_tokens = (int)least(c->tile, c->piece); // an expert has no more tokens than there are
    size_t shared = (size_t)QUEUE_BYTES + (size_t)args.x_tokens * args.x_pitch;
    allow_shared(kernel, SHARED_MOST);
    int blocks = n_multiprocessors(), wanted = up_to(c->most_tiles, MOST_OF_BLOCK - 2);
    launch_node(kernel, blocks > wanted ? blocks : wanted, STREAM_WARPS * 32, shared, l->stream, args);
}

template <bool UP>
static void launch_half(const struct launch *l, element product, const struct dmoe_cut *c, const stream_args &args,
                        struct dweight w) {
    bool narrow = w.element == ELEMENT_E4M3;
    if (product == ELEMENT_BF16)
        narrow ? launch_half<e4m3_expert<__nv_bfloat16>, UP>(l, c, args, w)
               : launch_half<plain_expert<__nv_bfloat16>, UP>(l, c, args, w);
    else
        narrow ? launch_half<e4m3_expert<__half>, UP>(l, c, args, w)
               : launch_half<plain_expert<__half>, UP>(l, c, args, w);
}

void launch_moe_stream(const struct launch *l, const struct dmoe *a, enum element product, struct dmat x,
                       struct dmat ids, struct dmat weights, struct dweight w13, struct dweight w2, struct dweight b13,
                       struct dweight b2, struct dmat y) {
    struct dmoe_cut c = moe_cut_of(a, w13, w2, l->n_tokens);
    int64_t n_bytes;
    struct dmoe_room room = room_of(a, &c, w13, &n_bytes);
    for (int first = 0; first < l->n_tokens; first += c.piece) {
        int n = (int)least(c.piece, l->n_tokens - first);
        launch_moe_list(l, a, c.tile, first, n, ids, room.list);
        stream_args up = {static_cast<const unsigned char *>(w13.at), w13.scale, static_cast<const float *>(b13.at)};
        up.x = x, up.list = room.list, up.y = room.hidden;
        up.in = (int)w13.in, up.units = a->ffn_size, up.n_row_tiles = up_to(a->ffn_size, 8);
        up.top_k = a->top_k, up.first_token = first, up.act = a->act, up.limit = a->limit;
        launch_half<true>(l, product, &c, up, w13);
        stream_args down = {static_cast<const unsigned char *>(w2.at), w2.scale, static_cast<const float *>(b2.at)};
        down.x = {room.hidden, a->ffn_size, a->ffn_size, product, nullptr};
        down.list = room.list, down.y = room.result;
        down.in = a->ffn_size, down.units = (int)w13.in, down.n_row_tiles = up_to(w13.in, TILE_ROWS);
        down.top_k = a->top_k;
        launch_half<false>(l, product, &c, down, w2);
        join_args join = {room.result, weights, y, first, a->top_k, lies_in_fours(y)};
        launch_node(moe_join, dim3(up_to(y.width, 4 * JOIN_THREADS), n), JOIN_THREADS, 0, l->stream, l->plan, join);
    }
}
