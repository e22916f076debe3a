/* bench_floor.c - see bench_floor.h. Activations are not counted: between ops they can stay in the device's caches. */
#include "bench/bench_floor.h"

#include "core/pass/op_work.h"
#include "engine/inspect.h"

#include <math.h>

struct placed {
    struct engine_parts engine;
    int block_size; // of the cache
};

double bench_experts_if_uniform(const struct gyre *g, double n_tokens) {
    const struct program *p = engine_parts(g).program;
    for (int i = 0; i < p->n_ops; i++)
        if (p->ops[i].code == OP_MOE_FFN)
            return experts_if_uniform(p->ops[i].args.moe_ffn.n_experts, p->ops[i].args.moe_ffn.top_k, n_tokens);
    return 0;
}

static double weight_bytes(const void *context, const struct op *op, int slot) {
    const struct engine_parts *e = &((const struct placed *)context)->engine;
    const struct backend_probes *probes = e->ops->probes;
    return (double)(probes && probes->weight_bytes ? probes->weight_bytes(e->loaded, op->weights[slot])
                                                   : weight_stored_bytes(op->weights[slot]));
}

static double cache_bytes(const void *context, int cache) {
    const struct placed *placed = context;
    int group = placed->engine.program->caches[cache].group;
    const struct cache_group *c = &placed->engine.program->groups[group];
    double block =
        (double)placed->engine.ops->cache_block_bytes(placed->engine.loaded, group, placed->block_size) / c->n_layers;
    if (c->kind == CACHE_STATE) // of a ring each token by itself
        return c->ring > 0 ? block / c->ring : block;
    return block / placed->block_size;
}

/* What attention multiplies has 16 bits, whatever the cache has. */
struct bench_floor bench_floor_op(const struct gyre *g, const struct device_limits *limits, int op, double n_seqs,
                                  double n_before, double n_new, double n_experts) {
    struct placed placed = {engine_parts(g), gyre_info(g)->block_size};
    const struct program *p = placed.engine.program;
    struct work_kind kind = {n_seqs, n_before, n_new};
    struct work_shape shape = {.program = p,
                               .kinds = &kind,
                               .n_kinds = 1,
                               .n_experts = n_experts,
                               .weight_bytes = weight_bytes,
                               .cache_bytes = cache_bytes,
                               .context = &placed};
    struct op_work work = op_work_of(&shape, &p->ops[op]);
    double products =
        work.narrow_flops / limits->flops_per_s + (work.wide_flops + work.mixer_flops) / limits->wide_flops_per_s;
    double reading = (work.weight_bytes + work.cache_bytes) / limits->read_bytes_per_s;
    return (struct bench_floor){.weight_bytes = work.weight_bytes,
                                .cache_bytes = work.cache_bytes,
                                .flops = work.narrow_flops + work.wide_flops + work.mixer_flops,
                                .seconds = fmax(reading, products)};
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
