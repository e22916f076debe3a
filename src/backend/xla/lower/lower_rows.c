/* lower_rows.c - see lower.h: what is done row by row, EMBED to TAKE_ROWS, and where ranks meet. */
#include "backend/xla/lower/lower.h"

void xla_embed(struct lower *c) {
    struct hlo *h = &c->h;
    const struct embed_args *a = &c->op->args.embed;
    int at = c->l->weight_of[c->i_op * OP_MAX_WEIGHTS];
    struct tensor table = lower_weight(c, 0);
    struct tensor id = hlo_binary(h, "subtract", c->token, lower_rank_int(c, a->first));
    struct tensor y = hlo_convert(h, hlo_take(h, table, id), TYPE_F32);
    if (c->l->weights[at].is_scaled)
        y = hlo_binary(h, "multiply", y, hlo_rows(h, hlo_take(h, c->scales[at], id), y.shape));
    y = hlo_binary(h, "multiply", y, hlo_float(h, a->scale));
    // gather takes the nearest row there is: not for -1, nor for a row of the vocabulary that another rank has
    struct tensor low = hlo_compare(h, "GE", id, hlo_int(h, 0)),
                  high = hlo_compare(h, "LT", id, hlo_int(h, (int32_t)table.shape.dims[0]));
    struct tensor has = hlo_binary(h, "and", low, high);
    lower_out(c, 0, hlo_select(h, hlo_rows(h, has, y.shape), y, hlo_float(h, 0)));
}

void xla_states(struct lower *c) {
    lower_out(c, 0, lower_floats(c, c->at.states, SHAPE(c->n_tokens, c->op->out[0].width)));
}

void xla_concat(struct lower *c) {
    struct tensor parts[3] = {lower_in(c, 0), lower_in(c, 1)};
    bool has_third = lower_has_in(c, 2);
    if (has_third)
        parts[2] = lower_in(c, 2);
    lower_out(c, 0, hlo_concat(&c->h, 1, parts, has_third ? 3 : 2));
}

void xla_add_norm(struct lower *c) {
    struct hlo *h = &c->h;
    const struct norm_args *a = &c->op->args.norm;
    struct tensor r = lower_in(c, 0), w = lower_has_weight(c, 0) ? lower_weight(c, 0) : r;
    if (lower_has_in(c, 1))
        r = hlo_binary(h, "add", r, lower_in(c, 1));
    if (lower_has_weight(c, 1))
        r = hlo_binary(h, "multiply", r, hlo_reshape(h, lower_weight(c, 1), SCALAR));
    // else each norm would add up what all layers before it have added
    lower_out(c, 0, lower_sums_products(c, r.shape.dims[0]) ? hlo_barrier(h, r) : r);
    lower_out(c, 1, lower_rms(c, r, lower_has_weight(c, 0) ? &w : NULL, a->eps, a->plus_one));
}

void xla_norm(struct lower *c) {
    struct hlo *h = &c->h;
    const struct norm_args *a = &c->op->args.norm;
    struct tensor x = lower_in(c, 0), w = lower_has_weight(c, 0) ? lower_weight(c, 0) : x;
    int64_t n = x.shape.dims[0], width = x.shape.dims[1];
    struct tensor groups = hlo_reshape(h, x, SHAPE(n, width / a->group, a->group));
    struct tensor y = lower_rms(c, groups, lower_has_weight(c, 0) ? &w : NULL, a->eps, a->plus_one);
    y = hlo_reshape(h, y, x.shape);
    if (a->scale != 1)
        y = hlo_binary(h, "multiply", y, hlo_float(h, a->scale));
    if (lower_has_in(c, 1))
        y = hlo_binary(h, "multiply", y, lower_silu(c, lower_in(c, 1)));
    lower_out(c, 0, y);
}

void xla_linear(struct lower *c) {
    struct tensor y = lower_product(c, lower_in(c, 0), 0);
    if (lower_has_weight(c, 1))
        y = hlo_binary(&c->h, "add", y, hlo_cols(&c->h, lower_weight(c, 1), y.shape));
    lower_out(c, 0, y);
}

void xla_gated_act(struct lower *c) {
    lower_out(c, 0, lower_activate(c, c->op->args.gated_act, lower_in(c, 0), lower_in(c, 1)));
}

void xla_gated_add(struct lower *c) {
    struct hlo *h = &c->h;
    struct tensor add = lower_in(c, 0), x = lower_in(c, 1);
    if (lower_has_in(c, 2)) {
        struct tensor gate = hlo_reshape(h, lower_sigmoid(c, lower_in(c, 2)), SHAPE(x.shape.dims[0]));
        x = hlo_binary(h, "multiply", x, hlo_rows(h, gate, x.shape));
    }
    lower_out(c, 0, hlo_binary(h, "add", add, x));
}

void xla_softcap(struct lower *c) {
    struct hlo *h = &c->h;
    struct tensor cap = hlo_float(h, c->op->args.softcap.cap);
    struct tensor t = hlo_unary(h, "tanh", hlo_binary(h, "divide", lower_in(c, 0), cap));
    lower_out(c, 0, hlo_binary(h, "multiply", t, cap));
}

/* exp(a . b) */
static struct tensor exp_of_dot(struct lower *c, int a, int b) {
    struct tensor product = hlo_binary(&c->h, "multiply", lower_weight(c, a), lower_weight(c, b));
    return hlo_unary(&c->h, "exponential", hlo_reduce(&c->h, "add", product, 0));
}

void xla_diff_heads(struct lower *c) {
    struct hlo *h = &c->h;
    struct tensor x = lower_in(c, 0);
    int64_t half = x.shape.dims[1] / 2;
    struct tensor lambda = hlo_binary(h, "subtract", exp_of_dot(c, 0, 1), exp_of_dot(c, 2, 3));
    lambda = hlo_binary(h, "add", lambda, hlo_float(h, c->op->args.diff_heads.lambda_init));
    struct tensor second = hlo_binary(h, "multiply", hlo_slice(h, x, 1, half, half), lambda);
    lower_out(c, 0, hlo_binary(h, "subtract", hlo_slice(h, x, 1, 0, half), second));
}

void xla_take_rows(struct lower *c) { lower_out(c, 0, hlo_take(&c->h, lower_in(c, 0), c->out_row)); }

/* ---- adapters ---- */

/* Rows of an op with adapters, as groups that have one adapter each: sequences, or output rows. */
struct lora_rows {
    int64_t n_groups, n_rows; // of each
    struct tensor adapter;    // [n_groups], from 0; -1: none
};

static struct lora_rows rows_of(struct lower *c) {
    struct hlo *h = &c->h;
    struct tensor adapter = hlo_binary(h, "subtract", c->adapter, hlo_int(h, 1));
    if (c->p->values[c->op->in[0].id].rows == ROWS_TOKENS)
        return (struct lora_rows){c->s.n_seqs, c->s.n_queries, adapter};
    struct tensor seq = hlo_binary(h, "divide", c->out_row, hlo_int(h, c->s.n_queries));
    return (struct lora_rows){c->s.n_rows, 1, hlo_take(h, adapter, seq)};
}

/* What B of a run of columns makes of h [groups, rows, modules * rank]. */
static struct tensor run_of(struct lower *c, struct tensor hidden, struct tensor b, int64_t first,
                            struct lora_run run) {
    struct hlo *h = &c->h;
    int rank = c->op->args.lora.rank;
    struct tensor part = hlo_slice(h, hidden, 2, (int64_t)run.module * rank, rank);
    struct tensor cols = hlo_slice(h, b, 1, first, run.width);
    return hlo_dot(h, hlo_convert(h, part, c->l->type), cols, (struct dot_axes){{0, -1}, {0, -1}, {2, -1}, {2, -1}},
                   TYPE_F32);
}

void xla_lora(struct lower *c) {
    struct hlo *h = &c->h;
    const struct lora_args *a = &c->op->args.lora;
    struct tensor base = lower_in(c, 0), x = lower_in(c, 1);
    struct lora_rows rows = rows_of(c);
    int64_t n = rows.n_groups, width = base.shape.dims[1], in = x.shape.dims[1],
            ranks = (int64_t)a->n_modules * a->rank;
    struct tensor of_all = hlo_reshape(h, lower_weight(c, 0), SHAPE(a->n_adapters, ranks, in));
    struct tensor b_all = hlo_reshape(h, lower_weight(c, 1), SHAPE(a->n_adapters, width, a->rank));
    struct tensor scales = hlo_reshape(h, lower_weight(c, 2), SHAPE(a->n_adapters, a->n_modules));
    struct tensor grouped = hlo_reshape(h, hlo_convert(h, x, c->l->type), SHAPE(n, rows.n_rows, in));
    struct tensor hidden = hlo_dot(h, grouped, hlo_take(h, of_all, rows.adapter),
                                   (struct dot_axes){{0, -1}, {0, -1}, {2, -1}, {2, -1}}, TYPE_F32);
    struct tensor scale =
        hlo_spread(h, hlo_take(h, scales, rows.adapter), SHAPE(n, rows.n_rows, a->n_modules, a->rank), AXES(0, 2));
    hidden = hlo_binary(h, "multiply", hidden, hlo_reshape(h, scale, hidden.shape));
    struct tensor b = hlo_take(h, b_all, rows.adapter), y = base;
    for (int64_t i = 0, first = 0; i < a->n_runs; first += a->runs[i++].width) {
        struct tensor parts[2] = {y, run_of(c, hidden, b, first, a->runs[i])};
        y = i == 0 ? parts[1] : hlo_concat(h, 2, parts, 2);
    }
    struct tensor has = hlo_compare(h, "GE", rows.adapter, hlo_int(h, 0));
    y = hlo_select(h, hlo_rows(h, has, y.shape), y, hlo_float(h, 0));
    lower_out(c, 0, hlo_binary(h, "add", base, hlo_reshape(h, y, base.shape)));
}

/* ---- ranks ---- */

void xla_all_reduce(struct lower *c) { lower_out(c, 0, hlo_all_reduce(&c->h, lower_in(c, 0), c->p->n_ranks)); }

void xla_all_gather(struct lower *c) { lower_out(c, 0, hlo_all_gather(&c->h, lower_in(c, 0), 1, c->p->n_ranks)); }
