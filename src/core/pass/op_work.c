/* op_work.c - see op_work.h. */
#include "core/pass/op_work.h"

#include <math.h>

double experts_if_uniform(int n_experts, int top_k, double n_tokens) {
    return n_experts * (1 - pow(1 - (double)top_k / n_experts, n_tokens));
}

/* That routers choose among. */
static int all_experts(const struct work_shape *s, const struct op *op) {
    return s->n_all_experts > 0 ? s->n_all_experts : op->args.moe_ffn.n_experts;
}

/* The share of an op's weight that a step touches: of experts, those that some token is sent to. */
static double touched(const struct work_shape *s, const struct op *op, int slot, double n_tokens) {
    const struct moe_args *a = &op->args.moe_ffn;
    if (op->code == OP_EMBED)
        return fmin(1, n_tokens / (double)op->weights[0]->out);
    if (op->code == OP_MOE_FFN && slot < 4 && s->n_experts > 0)
        return fmin(1, s->n_experts / a->n_experts);
    if (op->code == OP_MOE_FFN && slot < 4)
        return experts_if_uniform(all_experts(s, op), a->top_k, n_tokens) / all_experts(s, op);
    return 1;
}

/* Multiply-adds of one row with the op's weight, as FLOPs. */
static double product_flops(const struct work_shape *s, const struct op *op, int slot) {
    const struct weight *w = op->weights[slot];
    if (op->code == OP_EMBED || w->in == 1 || !op_multiplies_by(op->code, slot))
        return 0;
    double share = op->code == OP_MOE_FFN ? (double)op->args.moe_ffn.top_k / all_experts(s, op) : 1;
    return 2.0 * (double)w->out * (double)w->in * share;
}

static double n_tokens_of(const struct work_shape *s) {
    double n = 0;
    for (int i = 0; i < s->n_kinds; i++)
        n += s->kinds[i].n_seqs * s->kinds[i].n_new;
    return n;
}

double op_work_rows(const struct work_shape *s, const struct op *op) {
    double n = 0;
    if (!val_given(op->in[0]) || s->program->values[op->in[0].id].rows == ROWS_TOKENS)
        return n_tokens_of(s);
    for (int i = 0; i < s->n_kinds; i++)
        n += s->kinds[i].n_seqs;
    return n;
}

static void add_weights(const struct work_shape *s, const struct op *op, struct op_work *work) {
    double n_tokens = n_tokens_of(s), rows = op_work_rows(s, op);
    for (int k = 0; k < OP_MAX_WEIGHTS; k++) {
        const struct weight *w = op->weights[k];
        if (!w)
            continue;
        double bytes = s->weight_bytes(s->context, op, k);
        bool is_wide = bytes >= 2 * (double)w->out * (double)w->in;
        *(is_wide ? &work->wide_flops : &work->narrow_flops) += rows * product_flops(s, op, k);
        work->weight_bytes += bytes * touched(s, op, k, n_tokens);
    }
}

/* Keys that the rows of one sequence see, summed; and the number of different ones. */
static double keys_seen(const struct work_kind *k, int window) {
    double all = k->n_new * k->n_before + k->n_new * (k->n_new + 1) / 2;
    return window > 0 ? fmin(all, k->n_new * window) : all;
}
static double keys_read(const struct work_kind *k, int window) {
    double all = k->n_before + k->n_new;
    return window > 0 ? fmin(all, window + k->n_new - 1) : all;
}

static void add_mixer(const struct work_shape *s, const struct op *op, const struct work_kind *k,
                      struct op_work *work) {
    const union op_args *a = &op->args;
    if (op->code == OP_ATTENTION) {
        int window = a->attention.window ? a->attention.window : a->attention.chunk;
        work->cache_bytes += k->n_seqs * keys_read(k, window) * s->cache_bytes(s->context, a->attention.cache);
        work->mixer_flops += 2 * k->n_seqs * keys_seen(k, window) * a->attention.n_heads *
                             (a->attention.head_dim + a->attention.v_head_dim);
    } else if (op->code == OP_MLA_ATTENTION) {
        work->cache_bytes += k->n_seqs * keys_read(k, 0) * s->cache_bytes(s->context, a->mla.cache);
        work->mixer_flops += 2 * k->n_seqs * keys_seen(k, 0) * a->mla.n_heads * (2 * a->mla.rank + a->mla.rope_dim);
    } else if (op->code == OP_DELTA_RULE) {
        const struct delta_args *d = &a->delta_rule;
        work->cache_bytes += 2 * k->n_seqs * s->cache_bytes(s->context, d->cache);
        work->mixer_flops += 6.0 * k->n_seqs * k->n_new * d->n_value_heads * d->key_dim * d->value_dim;
    }
}

struct op_work op_work_of(const struct work_shape *s, const struct op *op) {
    struct op_work work = {0};
    add_weights(s, op, &work);
    for (int i = 0; i < s->n_kinds; i++)
        add_mixer(s, op, &s->kinds[i], &work);
    return work;
}
