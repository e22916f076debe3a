/* lower_attention.c - see lower.h: QKV_PREP, ATTENTION, and the softmax over cached rows that latent attention has too.
 *
 * Launches with dense copies (dense.h) read keys and values of a sequence from there. Others gather them by its block
 * table: entry i of what is gathered is at position base + i. Where there are few that is done at once; where the
 * context is long (device option blockwise) or sequences are many, in pieces of the table, with a running maximum and
 * sum: what is gathered stays small, and of a long context pieces behind the longest sequence are not computed. */
#include "backend/xla/lower/lower.h"

/* ---- QKV_PREP ---- */

/* Heads [T, n, dim] of x from column `first` on. */
static struct tensor heads_of(struct lower *c, struct tensor x, int64_t first, int n, int dim) {
    return hlo_reshape(&c->h, hlo_slice(&c->h, x, 1, first, (int64_t)n * dim), SHAPE(c->n_tokens, n, dim));
}

static struct tensor normed(struct lower *c, struct tensor x, int weight) {
    const struct qkv_args *a = &c->op->args.qkv_prep;
    if (!lower_has_weight(c, weight))
        return x;
    struct tensor w = lower_weight(c, weight);
    return lower_rms(c, x, &w, a->eps, a->plus_one);
}

void xla_qkv_prep(struct lower *c) {
    struct hlo *h = &c->h;
    const struct qkv_args *a = &c->op->args.qkv_prep;
    struct tensor x = lower_in(c, 0);
    int64_t keys = (int64_t)a->n_heads * a->head_dim, values = keys + (int64_t)a->n_kv_heads * a->head_dim;
    struct tensor q = lower_rotate(c, normed(c, heads_of(c, x, 0, a->n_heads, a->head_dim), 0), a->rope);
    lower_out(c, 0, hlo_reshape(h, q, SHAPE(c->n_tokens, keys)));
    if (a->k_absent)
        return;
    struct tensor k = normed(c, heads_of(c, x, keys, a->n_kv_heads, a->head_dim), 1);
    struct tensor v = heads_of(c, x, a->v_from_k ? keys : values, a->n_kv_heads, a->v_head_dim);
    if (a->v_norm)
        v = lower_rms(c, v, NULL, a->eps, false);
    lower_store(c, a->cache, CACHE_K, lower_rotate(c, k, a->rope));
    lower_store(c, a->cache, CACHE_V, v);
}

/* ---- the softmax ---- */

/* [S, Q, n]: the positions first .. first + n - 1 (first [S]). */
static struct tensor positions_from(struct lower *c, struct tensor first, int64_t n) {
    struct shape shape = SHAPE(c->s.n_seqs, c->s.n_queries, n);
    return hlo_binary(&c->h, "add", hlo_iota(&c->h, TYPE_S32, shape, 2), hlo_rows(&c->h, first, shape));
}

/* [S, Q, n]: whether a query sees the keys at these positions. */
static struct tensor visible(struct lower *c, const struct attend *a, struct tensor key) {
    struct hlo *h = &c->h;
    struct shape shape = key.shape;
    struct tensor query = hlo_rows(h, hlo_reshape(h, c->position, SHAPE(c->s.n_seqs, c->s.n_queries)), shape);
    struct tensor sees = hlo_compare(h, "LE", key, query);
    if (a->ring > 0)
        sees = hlo_binary(h, "and", sees, hlo_compare(h, "GE", key, hlo_int(h, 0)));
    if (a->window > 0) {
        struct tensor least = hlo_binary(h, "subtract", query, hlo_int(h, a->window));
        sees = hlo_binary(h, "and", sees, hlo_compare(h, "GT", key, least));
    }
    if (a->chunk > 0) {
        struct tensor within = hlo_binary(h, "remainder", query, hlo_int(h, a->chunk));
        sees = hlo_binary(h, "and", sees, hlo_compare(h, "GE", key, hlo_binary(h, "subtract", query, within)));
    }
    return sees;
}

/* A scale a row [S, W, H, B] over scores [S, H, Q, G, W, B], or [S, H, G, B] of a run. */
static struct tensor times_scales(struct hlo *h, struct tensor x, struct tensor scales) {
    if (x.shape.rank == 4) {
        struct shape s = x.shape;
        struct tensor run = hlo_reshape(h, scales, SHAPE(s.dims[0], s.dims[1], s.dims[3]));
        return hlo_binary(h, "multiply", x, hlo_spread(h, run, s, AXES(0, 1, 3)));
    }
    struct tensor turned = hlo_transpose(h, scales, AXES(0, 2, 1, 3));
    return hlo_binary(h, "multiply", x, hlo_spread(h, turned, x.shape, AXES(0, 1, 4, 5)));
}

/* Of one query a sequence, whose keys lie in one run: a copy of them, or a ring. */
static bool is_one_run(const struct lower *c, const struct attend *a) {
    return c->s.n_queries == 1 && (a->ring > 0 || lower_is_dense(c, a->group));
}

/* [S, 1, H, ..] without the axis of 1: a product of these axes reads it as it lies. */
static struct tensor of_one_run(struct hlo *h, struct tensor x) {
    return hlo_reshape(h, x, SHAPE(x.shape.dims[0], x.shape.dims[2], x.shape.dims[3], x.shape.dims[4]));
}

static const float unseen = -1e30f; // finite: a maximum of nothing else takes part in no difference that is a NaN

/* Scores [S, H, Q, G, W * B] of one piece of the table, those that are not seen `unseen`. */
static struct tensor scores_of(struct lower *c, const struct attend *a, const struct kv_rows *r, struct tensor sees) {
    struct hlo *h = &c->h;
    struct tensor q = hlo_convert(h, a->q, c->l->type), k = hlo_convert(h, r->k, c->l->type), s;
    int64_t n = k.shape.dims[1] * k.shape.dims[3];
    struct shape shape = SHAPE(q.shape.dims[0], q.shape.dims[2], q.shape.dims[1], q.shape.dims[3], n);
    if (is_one_run(c, a))
        s = hlo_dot(h, of_one_run(h, q), of_one_run(h, k), (struct dot_axes){{0, 1, -1}, {0, 1, -1}, {3, -1}, {3, -1}},
                    TYPE_F32);
    else
        s = hlo_dot(h, q, k, (struct dot_axes){{0, 2, -1}, {0, 2, -1}, {4, -1}, {4, -1}}, TYPE_F32);
    if (r->has_scales)
        s = times_scales(h, s, r->k_scale);
    s = hlo_binary(h, "multiply", hlo_reshape(h, s, shape), hlo_float(h, a->scale));
    if (a->softcap > 0) {
        struct tensor cap = hlo_float(h, a->softcap);
        s = hlo_binary(h, "multiply", hlo_unary(h, "tanh", hlo_binary(h, "divide", s, cap)), cap);
    }
    return hlo_select(h, hlo_spread(h, sees, shape, AXES(0, 2, 4)), s, hlo_float(h, unseen));
}

/* Values [S, W, H, B, D] are made zero where no query of the sequence sees them: others may have left anything there.
 * Of int8 their scales are, which are fewer. */
static void hide_unseen_values(struct lower *c, struct kv_rows *r, struct tensor sees) {
    struct hlo *h = &c->h;
    struct tensor *x = r->v.type == TYPE_S8 ? &r->v_scale : &r->v;
    struct shape s = x->shape;
    struct tensor any = hlo_reshape(h, hlo_reduce(h, "or", sees, 1), SHAPE(s.dims[0], s.dims[1], s.dims[3]));
    *x = hlo_select(h, hlo_spread(h, any, s, AXES(0, 1, 3)), *x, hlo_full(h, x->type, SCALAR, 0));
}

/* Sums [S, H, Q, G, D] of values by weights [S, H, Q, G, W * B]. */
static struct tensor sum_values(struct lower *c, const struct attend *a, const struct kv_rows *r,
                                struct tensor weights) {
    struct hlo *h = &c->h;
    struct shape s = weights.shape;
    if (is_one_run(c, a)) {
        struct tensor p = hlo_reshape(h, weights, SHAPE(s.dims[0], s.dims[1], s.dims[3], s.dims[4])),
                      v = of_one_run(h, hlo_convert(h, r->v, c->l->type));
        if (r->has_scales)
            p = times_scales(h, p, r->v_scale);
        struct tensor y = hlo_dot(h, hlo_convert(h, p, c->l->type), v,
                                  (struct dot_axes){{0, 1, -1}, {0, 1, -1}, {3, -1}, {2, -1}}, TYPE_F32);
        return hlo_reshape(h, y, SHAPE(s.dims[0], s.dims[1], 1, s.dims[3], y.shape.dims[3]));
    }
    struct tensor p = hlo_reshape(
        h, weights, SHAPE(s.dims[0], s.dims[1], s.dims[2], s.dims[3], r->v.shape.dims[1], r->v.shape.dims[3]));
    if (r->has_scales)
        p = times_scales(h, p, r->v_scale);
    return hlo_dot(h, hlo_convert(h, p, c->l->type), hlo_convert(h, r->v, c->l->type),
                   (struct dot_axes){{0, 1, -1}, {0, 2, -1}, {4, 5, -1}, {1, 3, -1}}, TYPE_F32);
}

/* A maximum, a sum of exponentials below it [S, H, Q, G], and the values that these weigh [S, H, Q, G, D]. */
struct running {
    struct tensor max, sum, values;
};

static struct running piece_of(struct lower *c, const struct attend *a, struct tensor table, struct tensor first) {
    struct hlo *h = &c->h;
    struct kv_rows r = a->rows(c, a, table);
    struct tensor sees = visible(c, a, positions_from(c, first, r.k.shape.dims[1] * r.k.shape.dims[3]));
    struct tensor s = scores_of(c, a, &r, sees);
    hide_unseen_values(c, &r, sees);
    struct tensor max = hlo_reduce(h, "maximum", s, 4);
    struct tensor e = hlo_unary(h, "exponential", hlo_binary(h, "subtract", s, hlo_rows(h, max, s.shape)));
    return (struct running){max, hlo_reduce(h, "add", e, 4), sum_values(c, a, &r, e)};
}

static struct running joined(struct hlo *h, struct running a, struct running b) {
    struct tensor max = hlo_binary(h, "maximum", a.max, b.max);
    struct tensor of_a = hlo_unary(h, "exponential", hlo_binary(h, "subtract", a.max, max)),
                  of_b = hlo_unary(h, "exponential", hlo_binary(h, "subtract", b.max, max));
    struct tensor sum =
        hlo_binary(h, "add", hlo_binary(h, "multiply", a.sum, of_a), hlo_binary(h, "multiply", b.sum, of_b));
    struct tensor left = hlo_binary(h, "multiply", a.values, hlo_rows(h, of_a, a.values.shape)),
                  right = hlo_binary(h, "multiply", b.values, hlo_rows(h, of_b, b.values.shape));
    return (struct running){max, sum, hlo_binary(h, "add", left, right)};
}

/* Positions where each sequence's piece begins: its table's base, and `entries` blocks more. */
static struct tensor first_position(struct lower *c, int group, struct tensor entries) {
    struct tensor more = hlo_binary(&c->h, "multiply", entries, hlo_int(&c->h, c->l->block_size));
    return hlo_binary(&c->h, "add", c->base[group], more);
}

static bool is_long(const struct lower *c, int group) {
    return (int64_t)c->at.width[group] * c->l->block_size > c->l->device->blockwise;
}

/* How many pieces of so many entries there are; of a long context those of the sequence that has the most, counted from
 * its table's base. A number that is known beforehand saves some devices a look at it in each round. */
static struct tensor count_pieces(struct lower *c, int group, int64_t entries) {
    struct hlo *h = &c->h;
    if (!is_long(c, group))
        return hlo_int(h, (int32_t)((c->at.width[group] + entries - 1) / entries));
    struct shape shape = SHAPE(c->s.n_seqs, c->s.n_queries);
    int32_t tokens = (int32_t)entries * c->l->block_size;
    struct tensor behind =
        hlo_binary(h, "subtract", hlo_reshape(h, c->position, shape), hlo_rows(h, c->base[group], shape));
    struct tensor last = hlo_reduce(h, "maximum", hlo_reshape(h, behind, SHAPE(c->n_tokens)), 0);
    return hlo_binary(h, "add", hlo_binary(h, "divide", last, hlo_int(h, tokens)), hlo_int(h, 1));
}

enum { LEAST_PIECE = 1024, GATHERED_TOKENS = 32768 }; // of a sequence, whatever rows it has; and of all

/* Tokens of a piece: scores of many rows are large, and a round of a loop takes its time however little it does. */
static int64_t piece_tokens(const struct lower *c) {
    int64_t piece = c->l->device->piece;
    return MIN(MAX(piece / c->s.n_queries, MIN(piece, LEAST_PIECE)), GATHERED_TOKENS / c->s.n_seqs);
}

/* The table is a whole number of pieces then: entries behind its end are block 0, and nobody sees them. */
static struct running in_pieces(struct lower *c, const struct attend *a, struct running zero) {
    struct hlo *h = &c->h;
    int64_t width = c->at.width[a->group], entries = MIN(MAX(piece_tokens(c) / c->l->block_size, 1), width),
            padded = (width + entries - 1) / entries * entries, n_seqs = c->s.n_seqs;
    struct tensor table[2] = {c->table[a->group]};
    if (padded > width)
        table[1] = hlo_full(h, TYPE_S32, SHAPE(n_seqs, padded - width), 0);
    struct tensor whole = hlo_concat(h, 1, table, padded > width ? 2 : 1), out[3];
    struct loop loop;
    hlo_loop_begin(h, &loop, count_pieces(c, a->group, entries), (struct tensor[]){zero.max, zero.sum, zero.values}, 3);
    struct tensor first = hlo_binary(h, "multiply", loop.at, hlo_int(h, (int32_t)entries));
    struct tensor positions = first_position(c, a->group, hlo_spread(h, first, SHAPE(n_seqs), NULL));
    struct running piece = piece_of(c, a, hlo_window(h, whole, 1, first, entries), positions);
    struct running all = joined(h, (struct running){loop.now[0], loop.now[1], loop.now[2]}, piece);
    hlo_loop_end(h, &loop, (struct tensor[]){all.max, all.sum, all.values}, out);
    return (struct running){out[0], out[1], out[2]};
}

/* What a softmax begins with: the sinks, which carry no value, or nothing. */
static struct running start(struct lower *c, const struct attend *a, struct shape sums) {
    struct hlo *h = &c->h;
    struct shape values = sums;
    values.dims[values.rank++] = a->value_dim;
    bool has = a->sinks != NULL;
    struct tensor max = has ? hlo_spread(h, *a->sinks, sums, AXES(1, 3)) : hlo_full(h, TYPE_F32, sums, (double)unseen);
    return (struct running){max, hlo_full(h, TYPE_F32, sums, has), hlo_full(h, TYPE_F32, values, 0)};
}

/* All at once. Weights are made whole before they meet the values: then nothing is left to do behind that product. */
static struct tensor at_once(struct lower *c, const struct attend *a, struct shape sums) {
    struct hlo *h = &c->h;
    struct kv_rows r = a->rows(c, a, c->table[a->group]);
    bool is_dense = lower_is_dense(c, a->group);
    int64_t n = r.k.shape.dims[1] * r.k.shape.dims[3];
    struct tensor keys = a->ring > 0     ? lower_ring_positions(c, a->ring)
                         : is_dense      ? c->dense_keys[a->group]
                                         : positions_from(c, c->base[a->group], n);
    struct tensor sees = visible(c, a, keys);
    struct tensor s = scores_of(c, a, &r, sees), max = hlo_reduce(h, "maximum", s, 4), sink = max;
    if (!is_dense) // a copy has nothing that was not seen, but zeros and the sequence's own tokens
        hide_unseen_values(c, &r, sees);
    if (a->sinks) {
        sink = hlo_spread(h, *a->sinks, sums, AXES(1, 3));
        max = hlo_binary(h, "maximum", max, sink);
    }
    struct tensor e = hlo_unary(h, "exponential", hlo_binary(h, "subtract", s, hlo_rows(h, max, s.shape)));
    struct tensor sum = hlo_reduce(h, "add", e, 4);
    if (a->sinks)
        sum = hlo_binary(h, "add", sum, hlo_unary(h, "exponential", hlo_binary(h, "subtract", sink, max)));
    return sum_values(c, a, &r, hlo_binary(h, "divide", e, hlo_rows(h, sum, e.shape)));
}

struct tensor lower_attend(struct lower *c, const struct attend *a) {
    struct hlo *h = &c->h;
    struct shape q = a->q.shape, sums = SHAPE(q.dims[0], q.dims[2], q.dims[1], q.dims[3]);
    struct tensor y;
    int64_t gathered = (int64_t)c->at.width[a->group] * c->l->block_size * c->s.n_seqs;
    if (!lower_is_dense(c, a->group) && (is_long(c, a->group) || (gathered > GATHERED_TOKENS && c->s.n_seqs > 1))) {
        struct running r = in_pieces(c, a, start(c, a, sums));
        y = hlo_binary(h, "divide", r.values, hlo_rows(h, r.sum, r.values.shape));
    } else {
        y = at_once(c, a, sums);
    }
    return hlo_transpose(h, y, AXES(0, 2, 1, 3, 4)); // [S, Q, H, G, D]
}

/* ---- ATTENTION ---- */

static struct kv_rows rows_of_cache(struct lower *c, const struct attend *a, struct tensor table) {
    struct hlo *h = &c->h;
    struct kv_rows r = {.has_scales = c->l->has_int8_cache};
    struct tensor *const parts[] = {&r.k, &r.v, &r.k_scale, &r.v_scale};
    for (int i = 0; i < c->l->layers[a->cache].n; i++)
        *parts[i] = lower_is_dense(c, a->group) ? lower_dense_rows(c, a->cache, CACHE_K + i)
                                                : hlo_take(h, *lower_cache(c, a->cache, CACHE_K + i), table);
    return r;
}

/* Heads `index` of x [S, W, H, ..], one after the other. */
static struct tensor pick_heads(struct hlo *h, struct tensor x, const int *index, int n) {
    struct tensor parts[XLA_MAX_PAIRED_HEADS];
    BUG_IF(n > (int)ARRAY_LEN(parts));
    for (int i = 0; i < n; i++)
        parts[i] = hlo_slice(h, x, 2, index[i], 1);
    return hlo_concat(h, 2, parts, n);
}

/* DiffLlama: a head is a group of its own, its key that of its KV head, its value both its partners' side by side. */
static struct kv_rows paired_rows(struct lower *c, const struct attend *a, struct tensor table) {
    struct hlo *h = &c->h;
    const struct attention_args *args = &c->op->args.attention;
    int group = args->n_heads / args->n_kv_heads, half = args->n_heads / 2, keys[XLA_MAX_PAIRED_HEADS],
        first[XLA_MAX_PAIRED_HEADS], second[XLA_MAX_PAIRED_HEADS];
    struct kv_rows r = rows_of_cache(c, a, table);
    for (int i = 0; i < args->n_heads; i++) {
        keys[i] = i / group;
        first[i] = i % half / group;
        second[i] = (i % half + half) / group;
    }
    struct tensor values[2] = {r.v, r.v};
    if (r.has_scales) // two values of a pair have a scale each: they are made whole before they are joined
        values[0] = values[1] =
            hlo_binary(h, "multiply", hlo_convert(h, r.v, TYPE_F32), hlo_rows(h, r.v_scale, r.v.shape));
    values[0] = pick_heads(h, values[0], first, args->n_heads);
    values[1] = pick_heads(h, values[1], second, args->n_heads);
    r.k = pick_heads(h, r.k, keys, args->n_heads);
    r.v = hlo_concat(h, 4, values, 2);
    if (r.has_scales) {
        r.k_scale = pick_heads(h, r.k_scale, keys, args->n_heads);
        r.v_scale = hlo_full(h, TYPE_F32, r.k_scale.shape, 1);
    }
    return r;
}

void xla_attention(struct lower *c) {
    struct hlo *h = &c->h;
    const struct attention_args *a = &c->op->args.attention;
    int n_kv = a->paired_values ? a->n_heads : a->n_kv_heads, group = a->n_heads / n_kv;
    struct shape heads = SHAPE(c->s.n_seqs, c->s.n_queries, n_kv, group, a->head_dim);
    struct tensor sinks = c->position;
    if (lower_has_weight(c, 0))
        sinks = hlo_reshape(h, lower_weight(c, 0), SHAPE(n_kv, group));
    struct attend attend = {.q = hlo_reshape(h, lower_in(c, 0), heads),
                            .cache = a->cache,
                            .group = lower_group(c, a->cache),
                            .scale = a->scale,
                            .softcap = a->softcap,
                            .window = a->window,
                            .chunk = a->chunk,
                            .ring = c->p->groups[lower_group(c, a->cache)].ring,
                            .sinks = lower_has_weight(c, 0) ? &sinks : NULL,
                            .value_dim = a->v_head_dim * (a->paired_values ? 2 : 1),
                            .rows = a->paired_values ? paired_rows : rows_of_cache};
    struct tensor y = lower_attend(c, &attend);
    lower_out(c, 0, hlo_reshape(h, y, SHAPE(c->n_tokens, (int64_t)a->n_heads * attend.value_dim)));
}
