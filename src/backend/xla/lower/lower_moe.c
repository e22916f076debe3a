/* lower_moe.c - see lower.h: MOE_ROUTE, MOE_FFN.
 *
 * Of few rows the matrices of their experts are gathered: rows * top_k of them. Where that would be as many as there
 * are experts, or more, each expert multiplies all rows, and rows that it was not chosen for have the weight 0: static
 * shapes allow no other. */
#include "backend/xla/lower/lower.h"

/* x with `value` in place of entry at [T] of each row [T, n]. */
static struct tensor without(struct lower *c, struct tensor x, struct tensor at, float value) {
    struct hlo *h = &c->h;
    struct tensor is = hlo_compare(h, "EQ", hlo_iota(h, TYPE_S32, x.shape, 1), hlo_rows(h, at, x.shape));
    return hlo_select(h, is, hlo_float(h, value), x);
}

/* x[t, at[t]]. */
static struct tensor entry(struct lower *c, struct tensor x, struct tensor at) {
    struct hlo *h = &c->h;
    struct tensor is = hlo_compare(h, "EQ", hlo_iota(h, TYPE_S32, x.shape, 1), hlo_rows(h, at, x.shape));
    return hlo_reduce(h, "add", hlo_select(h, is, x, hlo_float(h, 0)), 1);
}

static struct tensor softmax(struct lower *c, struct tensor x) {
    struct hlo *h = &c->h;
    struct tensor max = hlo_rows(h, hlo_reduce(h, "maximum", x, 1), x.shape);
    struct tensor e = hlo_unary(h, "exponential", hlo_binary(h, "subtract", x, max));
    return hlo_binary(h, "divide", e, hlo_rows(h, hlo_reduce(h, "add", e, 1), x.shape));
}

/* [T, n_groups]: a group's best choice, or the sum of its two best. */
static struct tensor group_scores(struct lower *c, struct tensor choice, bool two_best) {
    struct hlo *h = &c->h;
    const struct route_args *a = &c->op->args.moe_route;
    int64_t rows = choice.shape.dims[0], size = a->n_experts / a->n_groups;
    struct tensor best, groups = hlo_reshape(h, choice, SHAPE(rows * a->n_groups, size));
    struct tensor at = lower_argmax(c, groups, &best);
    if (two_best && size > 1)
        best = hlo_binary(h, "add", best, hlo_reduce(h, "maximum", without(c, groups, at, -__builtin_inff()), 1));
    return hlo_reshape(h, best, SHAPE(rows, a->n_groups));
}

/* Choices outside the top_groups best groups become `masked`. */
static struct tensor keep_best_groups(struct lower *c, struct tensor choice, bool two_best, float masked) {
    struct hlo *h = &c->h;
    const struct route_args *a = &c->op->args.moe_route;
    int64_t rows = choice.shape.dims[0], size = a->n_experts / a->n_groups;
    struct tensor scores = group_scores(c, choice, two_best), best;
    struct tensor group = hlo_iota(h, TYPE_S32, scores.shape, 1), kept = hlo_full(h, TYPE_PRED, scores.shape, 0);
    for (int i = 0; i < a->top_groups; i++) {
        struct tensor at = lower_argmax(c, scores, &best);
        kept = hlo_binary(h, "or", kept, hlo_compare(h, "EQ", group, hlo_rows(h, at, scores.shape)));
        scores = without(c, scores, at, -__builtin_inff());
    }
    struct tensor wide = hlo_reshape(h, hlo_rows(h, kept, SHAPE(rows, a->n_groups, size)), choice.shape);
    return hlo_select(h, wide, choice, hlo_float(h, masked));
}

static struct tensor scores_of(struct lower *c, struct tensor logits) {
    switch (c->op->args.moe_route.how) {
    case ROUTE_SOFTMAX_TOPK: return logits;
    case ROUTE_SOFTMAX:
    case ROUTE_SOFTMAX_GROUP: return softmax(c, logits);
    case ROUTE_SIGMOID: return lower_sigmoid(c, logits);
    }
    bug(__FILE__, __LINE__, "a routing without a formula");
}

static struct tensor choices_of(struct lower *c, struct tensor scores) {
    const struct route_args *a = &c->op->args.moe_route;
    struct tensor choice = scores;
    if (a->how == ROUTE_SIGMOID && lower_has_weight(c, 0))
        choice = hlo_binary(&c->h, "add", scores, hlo_cols(&c->h, lower_weight(c, 0), scores.shape));
    if (a->n_groups > 1 && a->how == ROUTE_SIGMOID)
        return keep_best_groups(c, choice, true, -__builtin_inff());
    if (a->n_groups > 1 && a->how == ROUTE_SOFTMAX_GROUP)
        return keep_best_groups(c, choice, false, 0);
    return choice;
}

/* Weights [T, top_k] of the chosen ones' scores. */
static struct tensor weigh(struct lower *c, struct tensor weights, struct tensor ids) {
    struct hlo *h = &c->h;
    const struct route_args *a = &c->op->args.moe_route;
    if (a->how == ROUTE_SOFTMAX_TOPK) {
        weights = softmax(c, weights);
    } else if (a->renormalise) {
        struct tensor sum = hlo_reduce(h, "add", weights, 1);
        if (a->how == ROUTE_SIGMOID)
            sum = hlo_binary(h, "add", sum, hlo_float(h, 1e-20f));
        weights = hlo_binary(h, "divide", weights, hlo_rows(h, sum, weights.shape));
    }
    if (a->scale != 1)
        weights = hlo_binary(h, "multiply", weights, hlo_float(h, a->scale));
    if (lower_has_weight(c, 1))
        weights = hlo_binary(h, "multiply", weights, hlo_take(h, lower_weight(c, 1), ids));
    return weights;
}

void xla_moe_route(struct lower *c) {
    struct hlo *h = &c->h;
    const struct route_args *a = &c->op->args.moe_route;
    struct tensor scores = scores_of(c, lower_in(c, 0)), choice = choices_of(c, scores), best, ids[XLA_MAX_TOP_K],
                  weights[XLA_MAX_TOP_K];
    struct shape column = SHAPE(scores.shape.dims[0], 1);
    for (int k = 0; k < a->top_k; k++) {
        struct tensor at = lower_argmax(c, choice, &best);
        choice = without(c, choice, at, -__builtin_inff());
        ids[k] = hlo_reshape(h, at, column);
        weights[k] = hlo_reshape(h, entry(c, scores, at), column);
    }
    struct tensor chosen = hlo_concat(h, 1, ids, a->top_k),
                  of_chosen = weigh(c, hlo_concat(h, 1, weights, a->top_k), chosen);
    if (a->n_shared == 0) {
        lower_out(c, 0, chosen), lower_out(c, 1, of_chosen);
        return;
    }
    struct shape shared = SHAPE(scores.shape.dims[0], a->n_shared);
    struct tensor numbers =
        hlo_binary(h, "add", hlo_iota(h, TYPE_S32, shared, 1), hlo_full(h, TYPE_S32, shared, a->n_experts));
    struct tensor gate = hlo_full(h, TYPE_F32, shared, 1);
    if (val_given(c->op->in[1]))
        gate = hlo_rows(h, hlo_reshape(h, lower_sigmoid(c, lower_in(c, 1)), SHAPE(shared.dims[0])), shared);
    lower_out(c, 0, hlo_concat(h, 1, (struct tensor[]){chosen, numbers}, 2));
    lower_out(c, 1, hlo_concat(h, 1, (struct tensor[]){of_chosen, gate}, 2));
}

/* ---- MOE_FFN ---- */

/* The weights of one MOE_FFN, experts along axis 0; what is absent is not looked at. */
struct experts {
    struct tensor w13, w2;         // [E, 2F, D], [E, D, F]
    struct tensor scale13, scale2; // [E, 2F], [E, D] of int8
    struct tensor b13, b2;         // [E, 2F], [E, D]
    bool is_scaled, has_b13, has_b2;
};

static struct tensor scales_of(struct lower *c, int weight, struct shape shape) {
    return hlo_reshape(&c->h, c->scales[c->l->weight_of[c->i_op * OP_MAX_WEIGHTS + weight]], shape);
}

static struct experts all_experts(struct lower *c, int64_t width) {
    struct hlo *h = &c->h;
    const struct moe_args *a = &c->op->args.moe_ffn;
    int64_t n = a->n_experts, ffn = a->ffn_size;
    struct experts e = {.w13 = hlo_reshape(h, lower_weight(c, 0), SHAPE(n, 2 * ffn, width)),
                        .w2 = hlo_reshape(h, lower_weight(c, 1), SHAPE(n, width, ffn)),
                        .is_scaled = lower_weight(c, 0).type == TYPE_S8,
                        .has_b13 = lower_has_weight(c, 2),
                        .has_b2 = lower_has_weight(c, 3)};
    if (e.is_scaled) {
        e.scale13 = scales_of(c, 0, SHAPE(n, 2 * ffn));
        e.scale2 = scales_of(c, 1, SHAPE(n, width));
    }
    if (e.has_b13)
        e.b13 = hlo_reshape(h, lower_weight(c, 2), SHAPE(n, 2 * ffn));
    if (e.has_b2)
        e.b2 = hlo_reshape(h, lower_weight(c, 3), SHAPE(n, width));
    return e;
}

/* Those of ids [P]. */
static struct experts chosen_experts(struct lower *c, struct experts e, struct tensor ids) {
    struct hlo *h = &c->h;
    e.w13 = hlo_take(h, e.w13, ids);
    e.w2 = hlo_take(h, e.w2, ids);
    if (e.is_scaled) {
        e.scale13 = hlo_take(h, e.scale13, ids);
        e.scale2 = hlo_take(h, e.scale2, ids);
    }
    if (e.has_b13)
        e.b13 = hlo_take(h, e.b13, ids);
    if (e.has_b2)
        e.b2 = hlo_take(h, e.b2, ids);
    return e;
}

/* y [.., n] times scales and plus biases, which are spread as hlo_cols does. */
static struct tensor finish(struct lower *c, struct tensor y, const struct tensor *scale, const struct tensor *bias) {
    struct hlo *h = &c->h;
    if (scale)
        y = hlo_binary(h, "multiply", y, hlo_cols(h, *scale, y.shape));
    if (bias)
        y = hlo_binary(h, "add", y, hlo_cols(h, *bias, y.shape));
    return y;
}

/* Of gate and up [.., 2F] side by side what the second product reads [.., F]. */
static struct tensor activated(struct lower *c, struct tensor gate_up) {
    int last = gate_up.shape.rank - 1;
    int64_t ffn = gate_up.shape.dims[last] / 2;
    return lower_activate(c, c->op->args.moe_ffn.act, hlo_slice(&c->h, gate_up, last, 0, ffn),
                          hlo_slice(&c->h, gate_up, last, ffn, ffn));
}

/* Each of P rows x [P, D] with an expert of its own: y [P, D]. */
static struct tensor by_pairs(struct lower *c, struct experts e, struct tensor x) {
    struct hlo *h = &c->h;
    const struct dot_axes axes = {{0, -1}, {0, -1}, {1, -1}, {2, -1}};
    struct tensor gate_up =
        hlo_dot(h, hlo_convert(h, x, c->l->type), hlo_convert(h, e.w13, c->l->type), axes, TYPE_F32);
    gate_up = finish(c, gate_up, e.is_scaled ? &e.scale13 : NULL, e.has_b13 ? &e.b13 : NULL);
    struct tensor hidden = hlo_convert(h, activated(c, gate_up), c->l->type);
    struct tensor y = hlo_dot(h, hidden, hlo_convert(h, e.w2, c->l->type), axes, TYPE_F32);
    return finish(c, y, e.is_scaled ? &e.scale2 : NULL, e.has_b2 ? &e.b2 : NULL);
}

/* Few rows: sum_k weights[t, k] * expert ids[t, k] of x[t]; of experts that others have nothing. */
static struct tensor by_gather(struct lower *c, struct tensor x, struct tensor ids, struct tensor weights) {
    struct hlo *h = &c->h;
    struct tensor has = hlo_binary(h, "and", hlo_compare(h, "GE", ids, hlo_int(h, 0)),
                                   hlo_compare(h, "LT", ids, hlo_int(h, (int32_t)c->op->args.moe_ffn.n_experts)));
    weights = hlo_select(h, has, weights, hlo_float(h, 0));
    int64_t rows = x.shape.dims[0], width = x.shape.dims[1], top_k = ids.shape.dims[1];
    struct tensor flat = hlo_reshape(h, ids, SHAPE(rows * top_k));
    struct tensor repeated =
        hlo_reshape(h, hlo_spread(h, x, SHAPE(rows, top_k, width), AXES(0, 2)), SHAPE(rows * top_k, width));
    struct tensor y = by_pairs(c, chosen_experts(c, all_experts(c, width), flat), repeated);
    struct shape shape = SHAPE(rows, top_k, width);
    y = hlo_binary(h, "multiply", hlo_reshape(h, y, shape), hlo_rows(h, weights, shape));
    return hlo_reduce(h, "add", y, 1);
}

/* [T, E]: what each expert counts for. */
static struct tensor weight_of_experts(struct lower *c, struct tensor ids, struct tensor weights, int64_t n_experts) {
    struct hlo *h = &c->h;
    struct shape shape = SHAPE(ids.shape.dims[0], ids.shape.dims[1], n_experts);
    struct tensor is = hlo_compare(h, "EQ", hlo_iota(h, TYPE_S32, shape, 2), hlo_rows(h, ids, shape));
    return hlo_reduce(h, "add", hlo_select(h, is, hlo_rows(h, weights, shape), hlo_float(h, 0)), 1);
}

/* Many rows: an expert after the other, all rows. */
static struct tensor by_expert(struct lower *c, struct tensor x, struct tensor ids, struct tensor weights) {
    struct hlo *h = &c->h;
    int64_t rows = x.shape.dims[0], width = x.shape.dims[1], n = c->op->args.moe_ffn.n_experts;
    struct tensor of_each = hlo_transpose(h, weight_of_experts(c, ids, weights, n), AXES(1, 0)); // [E, T]
    struct tensor start = hlo_full(h, TYPE_F32, x.shape, 0), sum;
    struct experts all = all_experts(c, width);
    struct loop loop;
    hlo_loop_begin(h, &loop, hlo_int(h, (int32_t)n), &start, 1);
    struct experts e = chosen_experts(c, all, hlo_reshape(h, loop.at, SHAPE(1)));
    struct tensor one = hlo_reshape(h, x, SHAPE(1, rows, width));
    const struct dot_axes axes = {{0, -1}, {0, -1}, {2, -1}, {2, -1}};
    struct tensor gate_up = hlo_dot(h, hlo_convert(h, one, c->l->type), hlo_convert(h, e.w13, c->l->type), axes,
                                    TYPE_F32); // [1, T, 2F]
    e.scale13 = e.is_scaled ? hlo_reshape(h, e.scale13, SHAPE(e.scale13.shape.dims[1])) : e.scale13;
    e.scale2 = e.is_scaled ? hlo_reshape(h, e.scale2, SHAPE(width)) : e.scale2;
    e.b13 = e.has_b13 ? hlo_reshape(h, e.b13, SHAPE(e.b13.shape.dims[1])) : e.b13;
    e.b2 = e.has_b2 ? hlo_reshape(h, e.b2, SHAPE(width)) : e.b2;
    gate_up = finish(c, gate_up, e.is_scaled ? &e.scale13 : NULL, e.has_b13 ? &e.b13 : NULL);
    struct tensor hidden = hlo_convert(h, activated(c, gate_up), c->l->type);
    struct tensor y = hlo_dot(h, hidden, hlo_convert(h, e.w2, c->l->type), axes, TYPE_F32);
    y = finish(c, y, e.is_scaled ? &e.scale2 : NULL, e.has_b2 ? &e.b2 : NULL);
    struct tensor factor = hlo_reshape(h, hlo_window(h, of_each, 0, loop.at, 1), SHAPE(rows));
    y = hlo_binary(h, "multiply", hlo_reshape(h, y, x.shape), hlo_rows(h, factor, x.shape));
    struct tensor next = hlo_binary(h, "add", loop.now[0], y);
    hlo_loop_end(h, &loop, &next, &sum);
    return sum;
}

void xla_moe_ffn(struct lower *c) {
    struct hlo *h = &c->h;
    const struct moe_args *a = &c->op->args.moe_ffn;
    struct tensor x = lower_in(c, 0), ids = lower_in(c, 1), weights = lower_in(c, 2);
    ids = hlo_binary(h, "subtract", ids, lower_rank_int(c, a->first_expert));
    bool few = x.shape.dims[0] * a->top_k < a->n_experts;
    lower_out(c, 0, few ? by_gather(c, x, ids, weights) : by_expert(c, x, ids, weights));
}
