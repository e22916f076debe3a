/* load.c - a program on a device: what it is refused for, its types, weights and caches. See backend.h. */
#include "backend/xla/cache.h"
#include "backend/xla/dense.h"
#include "backend/xla/lower/lower.h"
#include "backend/xla/replicas.h"
#include "backend/xla/weights.h"

#include <stdlib.h>
#include <string.h>

static enum status check_program(const struct program *p, struct error *err) {
    if (p->n_ropes > XLA_MAX_ROPES)
        return fail(err, ERR_UNSUPPORTED, "%s: device xla: it has %d kinds of rotation, and %d are the most", p->name,
                    p->n_ropes, XLA_MAX_ROPES);
    for (int i = 0; i < p->n_ops; i++) {
        const struct op *op = &p->ops[i];
        if (!lower_has_op(op->code))
            return fail(err, ERR_UNSUPPORTED, "%s: device xla does not have the op %s", p->name, op_name(op->code));
        if (op->code == OP_ALL_GATHER && op->args.all_gather.first != p->rank * op->in[0].width)
            return fail(err, ERR_UNSUPPORTED, "%s: ALL_GATHER: device xla: ranks have columns of unequal widths",
                        p->name);
        if (op->code == OP_MOE_ROUTE && route_slots(&op->args.moe_route) > XLA_MAX_TOP_K)
            return fail(err, ERR_UNSUPPORTED, "%s: MOE_ROUTE: device xla: %d experts a token, and %d are the most",
                        p->name, op->args.moe_route.top_k, XLA_MAX_TOP_K);
        if (op->code == OP_ATTENTION && op->args.attention.paired_values &&
            op->args.attention.n_heads > XLA_MAX_PAIRED_HEADS)
            return fail(err, ERR_UNSUPPORTED, "%s: ATTENTION: device xla: %d heads in pairs, and %d are the most",
                        p->name, op->args.attention.n_heads, XLA_MAX_PAIRED_HEADS);
        if (op->code == OP_ATTENTION && op->args.attention.reach != REACH_CAUSAL)
            return fail(err, ERR_UNSUPPORTED,
                        "%s: ATTENTION: device xla: a row reads other rows than its own and those before it", p->name);
    }
    return OK;
}

/* As lower_rank_int asks for them. */
static void list_rank_ints(struct loaded *l) {
    const struct program *p = l->program;
    l->rank_ints = xcalloc((size_t)p->n_ops + 1, sizeof *l->rank_ints);
    for (int i = 0; i < p->n_ops && p->n_ranks > 1; i++) {
        if (p->ops[i].code == OP_EMBED)
            l->rank_ints[l->n_rank_ints++] = p->ops[i].args.embed.first;
        if (p->ops[i].code == OP_MOE_FFN)
            l->rank_ints[l->n_rank_ints++] = p->ops[i].args.moe_ffn.first_expert;
    }
}

void load_free(struct loaded *l) {
    if (!l)
        return;
    compiled_release(l);
    dense_free(l);
    cache_release(l);
    weights_release(l);
    free(l->arguments);
    free(l->outputs);
    free(l->array_ids);
    free(l->given);
    free(l->rank_ints);
    replicas_leave(l->replicas);
    free(l);
}

/* float32 on the CPU, bfloat16 elsewhere. */
static enum status read_load_options(struct loaded *l, const struct load_options *o, struct error *err) {
    const char *dtype = o->dtype ? o->dtype : device_is_cpu(l->device) ? "float32" : "bfloat16", *kv = o->kv_dtype;
    l->type = strcmp(dtype, "bfloat16") == 0 ? TYPE_BF16 : TYPE_F32;
    if (l->type == TYPE_F32 && strcmp(dtype, "float32") != 0)
        return fail(err, ERR_UNSUPPORTED, "dtype: device xla computes in float32 and bfloat16, not in %s", dtype);
    l->has_int8_cache = kv && strcmp(kv, "int8") == 0;
    if (kv && !l->has_int8_cache && strcmp(kv, dtype) != 0)
        return fail(err, ERR_UNSUPPORTED, "kv_cache_dtype: device xla keeps keys and values in %s or int8, not in %s",
                    dtype, kv);
    l->has_int8_weights = o->quantization && strcmp(o->quantization, "int8") == 0;
    if (o->quantization && !l->has_int8_weights)
        return fail(err, ERR_UNSUPPORTED, "quantization: device xla makes weights int8, not %s", o->quantization);
    return OK;
}

enum status load_describe(struct loaded *l, const struct load_options *options, struct error *err) {
    if (options->caches_of)
        return fail(err, ERR_UNSUPPORTED, "%s: device xla does not run a draft that reads another program's cache",
                    l->program->name);
    TRY(check_program(l->program, err));
    TRY(read_load_options(l, options, err));
    list_rank_ints(l);
    cache_list(l);
    weights_list(l);
    return OK;
}

static enum status load(struct loaded *l, const struct load_options *options, struct error *err) {
    TRY(load_describe(l, options, err));
    l->ids[0] = pjrt_device_id(l->device->pjrt, l->device->index);
    l->n_ids = 1;
    size_t n_outputs = 2 * (size_t)l->n_caches + 4 + MAX_TAPS;
    l->arguments = xcalloc(2 * (size_t)l->n_caches + 2 * (size_t)l->n_weights + 4, sizeof *l->arguments);
    l->outputs = xcalloc(n_outputs, sizeof *l->outputs);
    l->array_ids = xcalloc((size_t)l->n_caches + 1, sizeof *l->array_ids);
    l->given = xcalloc((size_t)l->n_caches + 1, sizeof *l->given);
    return weights_place(l, options->dummy_weights, &options->progress, err);
}

enum status load_program(struct device *d, const struct program *p, const struct load_options *options,
                         struct loaded **out, struct error *err) {
    struct loaded *l = xcalloc(1, sizeof *l);
    l->device = d;
    l->program = p;
    enum status st = load(l, options, err);
    if (st != OK) {
        load_free(l);
        l = NULL;
    }
    *out = l;
    return st;
}
