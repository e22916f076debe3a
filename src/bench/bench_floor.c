/* bench_floor.c - see bench_floor.h. Activations are not counted: between ops they can stay in the device's caches. */
#include "bench/bench_floor.h"

#include "engine/inspect.h"

#include <math.h>

struct shape {
    struct engine_parts engine;
    int block_size; // of the cache
    double n_seqs, n_before, n_new;
    double n_experts; // of a layer that are read; 0: not known
};

/* Of a layer's experts, how many have one of n_tokens tokens, if all are equally likely. */
static double experts_if_uniform(const struct moe_args *a, double n_tokens) {
    return a->n_experts * (1 - pow(1 - (double)a->top_k / a->n_experts, n_tokens));
}

double bench_experts_if_uniform(const struct gyre *g, double n_tokens) {
    const struct program *p = engine_parts(g).program;
    for (int i = 0; i < p->n_ops; i++)
        if (p->ops[i].code == OP_MOE_FFN)
            return experts_if_uniform(&p->ops[i].args.moe_ffn, n_tokens);
    return 0;
}

/* The share of an op's weight that a step touches: of experts, those that some token is sent to, as was counted, or
 * when all are equally likely. */
static double touched(const struct shape *s, const struct op *op, int slot, double n_tokens) {
    if (op->code == OP_EMBED)
        return fmin(1, n_tokens / (double)op->weights[0]->out);
    if (op->code == OP_MOE_FFN && slot < 4 && s->n_experts > 0)
        return fmin(1, s->n_experts / op->args.moe_ffn.n_experts);
    if (op->code == OP_MOE_FFN && slot < 4)
        return experts_if_uniform(&op->args.moe_ffn, n_tokens) / op->args.moe_ffn.n_experts;
    return 1;
}

/* Multiply-adds of one row with the op's weight, as FLOPs. */
static double product_flops(const struct op *op, int slot) {
    const struct weight *w = op->weights[slot];
    if (op->code == OP_EMBED || w->in == 1 || !op_multiplies_by(op->code, slot))
        return 0;
    double share = op->code == OP_MOE_FFN ? (double)op->args.moe_ffn.top_k / op->args.moe_ffn.n_experts : 1;
    return 2.0 * (double)w->out * (double)w->in * share;
}

/* Returns how long computing with the weights takes at least. */
static double add_weights(const struct shape *s, const struct op *op, const struct device_limits *limits,
                          struct bench_floor *work) {
    const struct program *p = s->engine.program;
    bool per_answer = val_given(op->in[0]) && p->values[op->in[0].id].rows == ROWS_OUT;
    double n_tokens = s->n_seqs * s->n_new, rows = per_answer ? s->n_seqs : n_tokens, seconds = 0;
    for (int k = 0; k < OP_MAX_WEIGHTS; k++) {
        const struct weight *w = op->weights[k];
        if (!w)
            continue;
        const struct backend_probes *probes = s->engine.ops->probes;
        double bytes = (double)(probes && probes->weight_bytes ? probes->weight_bytes(s->engine.loaded, w)
                                                               : weight_stored_bytes(w));
        bool is_wide = bytes >= 2 * (double)w->out * (double)w->in;
        double flops = rows * product_flops(op, k);
        work->weight_bytes += bytes * touched(s, op, k, n_tokens);
        work->flops += flops;
        seconds += flops / (is_wide ? limits->wide_flops_per_s : limits->flops_per_s);
    }
    return seconds;
}

/* Of one layer: a token's, or of recurrent groups a sequence's. */
static double cache_bytes(const struct shape *s, int cache) {
    int group = s->engine.program->caches[cache].group;
    const struct cache_group *c = &s->engine.program->groups[group];
    double block = (double)s->engine.ops->cache_block_bytes(s->engine.loaded, group, s->block_size) / c->n_layers;
    return c->kind == CACHE_STATE ? block : block / s->block_size;
}

/* Keys that the rows of one sequence see, summed; and the number of different ones. */
static double keys_seen(const struct shape *s, int window) {
    double all = s->n_new * s->n_before + s->n_new * (s->n_new + 1) / 2;
    return window > 0 ? fmin(all, s->n_new * window) : all;
}
static double keys_read(const struct shape *s, int window) {
    double all = s->n_before + s->n_new;
    return window > 0 ? fmin(all, window + s->n_new - 1) : all;
}

static void add_cache(const struct shape *s, const struct op *op, struct bench_floor *work) {
    const union op_args *a = &op->args;
    if (op->code == OP_ATTENTION) {
        int window = a->attention.window ? a->attention.window : a->attention.chunk;
        work->cache_bytes += s->n_seqs * keys_read(s, window) * cache_bytes(s, a->attention.cache);
        work->flops += 2 * s->n_seqs * keys_seen(s, window) * a->attention.n_heads *
                       (a->attention.head_dim + a->attention.v_head_dim);
    } else if (op->code == OP_MLA_ATTENTION) {
        work->cache_bytes += s->n_seqs * keys_read(s, 0) * cache_bytes(s, a->mla.cache);
        work->flops += 2 * s->n_seqs * keys_seen(s, 0) * a->mla.n_heads * (2 * a->mla.rank + a->mla.rope_dim);
    } else if (op->code == OP_DELTA_RULE) {
        work->cache_bytes += 2 * s->n_seqs * cache_bytes(s, a->delta_rule.cache);
        work->flops +=
            6.0 * s->n_seqs * s->n_new * a->delta_rule.n_value_heads * a->delta_rule.key_dim * a->delta_rule.value_dim;
    }
}

struct bench_floor bench_floor_op(const struct gyre *g, const struct device_limits *limits, int op, double n_seqs,
                                  double n_before, double n_new, double n_experts) {
    struct shape s = {engine_parts(g), gyre_info(g)->block_size, n_seqs, n_before, n_new, n_experts};
    const struct op *o = &s.engine.program->ops[op];
    struct bench_floor work = {0};
    double products = add_weights(&s, o, limits, &work), flops_of_weights = work.flops;
    add_cache(&s, o, &work);
    double attention = (work.flops - flops_of_weights) /
                       limits->wide_flops_per_s; // what it multiplies has 16 bits, whatever the cache has
    work.seconds = fmax((work.weight_bytes + work.cache_bytes) / limits->read_bytes_per_s, products + attention);
    return work;
}

void bench_floor(const struct gyre *g, const struct device_limits *limits, double n_seqs, double n_before, double n_new,
                 double n_experts, struct bench_floor *out) {
    *out = (struct bench_floor){0};
    for (int i = 0; i < engine_parts(g).program->n_ops; i++) {
        struct bench_floor op = bench_floor_op(g, limits, i, n_seqs, n_before, n_new, n_experts);
        out->weight_bytes += op.weight_bytes;
        out->cache_bytes += op.cache_bytes;
        out->flops += op.flops;
        out->seconds += op.seconds;
    }
}
