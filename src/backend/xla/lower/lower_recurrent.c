/* lower_recurrent.c - see lower.h: SHORT_CONV and DELTA_RULE over the states of sequences. A sequence whose first row
 * has position 0 begins with zeros; the state of padding is put nowhere. */
#include "backend/xla/lower/lower.h"

/* The states [S, floats] that the sequences' slots hold, in this shape. */
static struct tensor states(struct lower *c, int cache, int which, struct shape shape) {
    struct hlo *h = &c->h;
    struct tensor all = *lower_cache(c, cache, which);
    struct tensor state = hlo_take(h, all, c->state_slot);
    struct tensor first = hlo_slice(h, hlo_reshape(h, c->position, SHAPE(c->s.n_seqs, c->s.n_queries)), 1, 0, 1);
    struct tensor goes_on = hlo_compare(h, "GT", hlo_reshape(h, first, SHAPE(c->s.n_seqs)), hlo_int(h, 0));
    state = hlo_select(h, hlo_rows(h, goes_on, state.shape), state, hlo_float(h, 0));
    return hlo_reshape(h, state, shape);
}

static void keep_states(struct lower *c, int cache, int which, struct tensor state) {
    struct tensor *all = lower_cache(c, cache, which);
    struct tensor rows = hlo_reshape(&c->h, state, SHAPE(c->s.n_seqs, all->shape.dims[1]));
    struct tensor at = hlo_reshape(&c->h, c->state_slot, SHAPE(c->s.n_seqs, 1));
    *all = hlo_put(&c->h, *all, at, rows);
}

/* Of x [S, N, C] the n rows from at[s] on, of each sequence. */
static struct tensor rows_from(struct lower *c, struct tensor x, struct tensor at, int64_t n) {
    struct hlo *h = &c->h;
    int64_t n_seqs = x.shape.dims[0], rows = x.shape.dims[1], channels = x.shape.dims[2];
    struct shape shape = SHAPE(n_seqs, n);
    struct tensor id = hlo_binary(h, "multiply", hlo_iota(h, TYPE_S32, shape, 0), hlo_int(h, (int32_t)rows));
    id = hlo_binary(h, "add", hlo_binary(h, "add", id, hlo_iota(h, TYPE_S32, shape, 1)), hlo_rows(h, at, shape));
    return hlo_take(h, hlo_reshape(h, x, SHAPE(n_seqs * rows, channels)), id);
}

void xla_short_conv(struct lower *c) {
    struct hlo *h = &c->h;
    const struct conv_args *a = &c->op->args.short_conv;
    struct tensor u = lower_in(c, 0), w = lower_weight(c, 0), sum = u;
    int64_t n_seqs = c->s.n_seqs, n_queries = c->s.n_queries, channels = u.shape.dims[1], past = a->kernel - 1;
    struct shape shape = SHAPE(n_seqs, n_queries, channels);
    struct tensor all = hlo_reshape(h, u, shape);
    w = hlo_reshape(h, w, SHAPE(channels, a->kernel)); // of a kernel of 1 it is a vector
    if (past > 0) {
        struct tensor before = states(c, a->cache, CACHE_CONV, SHAPE(n_seqs, past, channels));
        all = hlo_concat(h, 1, (struct tensor[]){before, all}, 2);
        keep_states(c, a->cache, CACHE_CONV, rows_from(c, all, c->n_query, past));
    }
    for (int j = 0; j < a->kernel; j++) {
        struct tensor tap = hlo_reshape(h, hlo_slice(h, w, 1, j, 1), SHAPE(channels));
        struct tensor term = hlo_binary(h, "multiply", hlo_slice(h, all, 1, j, n_queries), hlo_cols(h, tap, shape));
        sum = j == 0 ? term : hlo_binary(h, "add", sum, term);
    }
    lower_out(c, 0, hlo_reshape(h, lower_silu(c, sum), u.shape));
}

/* ---- DELTA_RULE ---- */

/* Heads x [T, n, dim] of length `factor`, each repeated for the value heads that share it: [T, value heads, dim]. */
static struct tensor unit_heads(struct lower *c, struct tensor x, int64_t first, float factor) {
    struct hlo *h = &c->h;
    const struct delta_args *a = &c->op->args.delta_rule;
    int64_t n = a->n_key_heads, dim = a->key_dim, share = a->n_value_heads / n, rows = c->n_tokens;
    struct tensor heads = hlo_reshape(h, hlo_slice(h, x, 1, first, n * dim), SHAPE(rows, n, dim));
    struct tensor squares = hlo_reduce(h, "add", hlo_binary(h, "multiply", heads, heads), 2);
    struct tensor scale = hlo_unary(h, "rsqrt", hlo_binary(h, "add", squares, hlo_float(h, 1e-6f)));
    scale = hlo_binary(h, "multiply", scale, hlo_float(h, factor));
    heads = hlo_binary(h, "multiply", heads, hlo_rows(h, scale, heads.shape));
    struct tensor wide = hlo_spread(h, heads, SHAPE(rows, n, share, dim), AXES(0, 1, 3));
    return hlo_reshape(h, wide, SHAPE(rows, n * share, dim));
}

/* x [T, ..] as [Q, S, ..]: a scan takes a row of each sequence at a time. */
static struct tensor by_step(struct lower *c, struct tensor x) {
    struct hlo *h = &c->h;
    struct shape shape = SHAPE(c->s.n_seqs, c->s.n_queries);
    int axes[HLO_MAX_RANK] = {1, 0};
    for (int i = 1; i < x.shape.rank; i++) {
        axes[shape.rank] = shape.rank;
        shape.dims[shape.rank++] = x.shape.dims[i];
    }
    return hlo_transpose(h, hlo_reshape(h, x, shape), axes);
}

/* log of the decay of each row and value head: -exp(A_log) * softplus(a + dt_bias), 0 of padding. */
static struct tensor log_decay(struct lower *c, struct tensor is_real) {
    struct hlo *h = &c->h;
    struct tensor a = lower_in(c, 2);
    struct tensor x = hlo_binary(h, "add", a, hlo_cols(h, lower_weight(c, 1), a.shape));
    struct tensor soft = hlo_unary(h, "log_plus_one", hlo_unary(h, "exponential", x));
    soft = hlo_select(h, hlo_compare(h, "GT", x, hlo_float(h, 20)), x, soft);
    struct tensor rate = hlo_unary(h, "negate", hlo_unary(h, "exponential", lower_weight(c, 0)));
    struct tensor g = hlo_binary(h, "multiply", soft, hlo_cols(h, rate, a.shape));
    return hlo_select(h, hlo_rows(h, is_real, a.shape), g, hlo_float(h, 0));
}

/* One row of each sequence [S, Hv, ..]: the next state [S, Hv, Dk, Dv], and what is read of it. */
static struct tensor delta_step(struct lower *c, struct tensor state, const struct tensor row[5], struct tensor *out) {
    struct hlo *h = &c->h;
    struct tensor q = row[0], k = row[1], v = row[2], decay = row[3], beta = row[4];
    const struct dot_axes over_keys = {{0, 1, -1}, {0, 1, -1}, {2, -1}, {2, -1}};
    state = hlo_binary(h, "multiply", state, hlo_rows(h, decay, state.shape));
    struct tensor error = hlo_binary(h, "subtract", v, hlo_dot(h, k, state, over_keys, TYPE_F32));
    error = hlo_binary(h, "multiply", error, hlo_rows(h, beta, error.shape));
    struct tensor outer =
        hlo_binary(h, "multiply", hlo_rows(h, k, state.shape), hlo_spread(h, error, state.shape, AXES(0, 1, 3)));
    state = hlo_binary(h, "add", state, outer);
    *out = hlo_dot(h, q, state, over_keys, TYPE_F32);
    return state;
}

void xla_delta_rule(struct lower *c) {
    struct hlo *h = &c->h;
    const struct delta_args *a = &c->op->args.delta_rule;
    int64_t rows = c->n_tokens, heads = a->n_value_heads, keys = (int64_t)a->n_key_heads * a->key_dim,
            n_seqs = c->s.n_seqs, n_queries = c->s.n_queries;
    struct tensor x = lower_in(c, 0), b = lower_in(c, 1);
    struct shape by_seq = SHAPE(n_seqs, n_queries);
    struct tensor real = hlo_compare(h, "LT", hlo_iota(h, TYPE_S32, by_seq, 1), hlo_rows(h, c->n_query, by_seq));
    real = hlo_reshape(h, real, SHAPE(rows));
    struct tensor beta = hlo_select(h, hlo_rows(h, real, b.shape), lower_sigmoid(c, b), hlo_float(h, 0));
    struct tensor v =
        hlo_reshape(h, hlo_slice(h, x, 1, 2 * keys, heads * a->value_dim), SHAPE(rows, heads, a->value_dim));
    const struct tensor all[5] = {
        by_step(c, unit_heads(c, x, 0, 1.0f / __builtin_sqrtf((float)a->key_dim))),
        by_step(c, unit_heads(c, x, keys, 1)),
        by_step(c, v),
        by_step(c, hlo_unary(h, "exponential", log_decay(c, real))),
        by_step(c, beta),
    };
    struct tensor carried[2] = {states(c, a->cache, CACHE_DELTA, SHAPE(n_seqs, heads, a->key_dim, a->value_dim)),
                                hlo_full(h, TYPE_F32, SHAPE(n_queries, n_seqs, heads, a->value_dim), 0)};
    struct loop loop;
    hlo_loop_begin(h, &loop, hlo_int(h, (int32_t)n_queries), carried, 2);
    struct tensor row[5], out, next[2];
    for (int i = 0; i < 5; i++) {
        struct shape shape = {.rank = all[i].shape.rank - 1};
        for (int d = 0; d < shape.rank; d++)
            shape.dims[d] = all[i].shape.dims[d + 1];
        row[i] = hlo_reshape(h, hlo_window(h, all[i], 0, loop.at, 1), shape);
    }
    next[0] = delta_step(c, loop.now[0], row, &out);
    struct tensor one = hlo_reshape(h, out, SHAPE(1, n_seqs, heads, a->value_dim));
    next[1] = hlo_set_window(h, loop.now[1], 0, loop.at, one);
    hlo_loop_end(h, &loop, next, carried);
    keep_states(c, a->cache, CACHE_DELTA, carried[0]);
    struct tensor y = hlo_transpose(h, carried[1], AXES(1, 0, 2, 3));
    lower_out(c, 0, hlo_reshape(h, y, SHAPE(rows, heads * a->value_dim)));
}
