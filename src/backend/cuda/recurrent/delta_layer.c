/* delta_layer.c - which kernels a SHORT_CONV, a DELTA_RULE and the gated NORM behind them run on.
 *
 * Where the three follow one another (linear/fuse.c) and the fast kernels have their shapes, they are a layer: nodes in
 * the place of the NORM (delta_layer.h). All else is a node an op, of plain kernels. */
#include "backend/cuda/recurrent/delta_layer.h"
#include "backend/cuda/device/device.h"
#include "backend/cuda/qact/qact.h"
#include "backend/cuda/recurrent/recurrent.h"
#include "backend/cuda/step/fold.h"
#include "backend/cuda/step/node.h"
#include "backend/cuda/step/plan.h"

static struct ddelta shape_of(const struct executable *exe, const struct compiled_op *rule) {
    const struct delta_args *a = &rule->op->args.delta_rule;
    const struct cache_group *g = &exe->program->groups[rule->cache.group];
    return (struct ddelta){a->n_key_heads, a->n_value_heads, a->key_dim, a->value_dim,
                           g->state_floats - (int64_t)a->n_value_heads * a->key_dim * a->value_dim};
}

/* Rows stand behind the state and its marks, as cache_state_floats counts them. */
static struct ddelta_back back_of(const struct executable *exe, const struct compiled_op *c) {
    const struct cache_group *g = &exe->program->groups[c->cache.group];
    int n = exe->loaded->n_back;
    if (n == 0)
        return (struct ddelta_back){0};
    int64_t state = (g->state_floats - g->delta_floats) * (int64_t)sizeof(float) +
                    g->delta_floats * element_bytes(c->cache.element);
    return (struct ddelta_back){.n = n,
                                .base = plan_state_base(exe),
                                .kept = plan_state_kept(exe),
                                .rows = state + STATE_MARKS * (int64_t)sizeof(float),
                                .conv_width = g->conv_width,
                                .delta_width = g->delta_width};
}

static bool may_be_unscaled(const struct executable *exe, val v) {
    return exe->ops[exe->program->values[v.id].first_use].unscaled_is_read;
}

/* Whether u, z, b and a are float32, all of them columns of one projection, or none of them ever unscaled products. */
static bool lie_alike(const struct executable *exe, const struct compiled_op *conv) {
    const struct compiled_op *rule = conv + 1, *norm = conv + 2;
    struct dmat of[] = {conv->in[0], norm->in[1], rule->in[1], rule->in[2]};
    val v[] = {conv->op->in[0], norm->op->in[1], rule->op->in[1], rule->op->in[2]};
    bool one = true, scaled = true;
    for (int i = 0; i < 4; i++) {
        if (of[i].element != ELEMENT_F32)
            return false;
        one = one && v[i].id == v[0].id;
        scaled = scaled && !may_be_unscaled(exe, v[i]);
    }
    return one || scaled;
}

static enum status check_states(const struct executable *exe, struct error *err) {
    for (int i = 0; exe->loaded->device->state != ELEMENT_F32 && i < exe->program->n_ops; i++) {
        const struct delta_args *a = &exe->program->ops[i].args.delta_rule;
        if (exe->program->ops[i].code == OP_DELTA_RULE && !exe->ops[i].pair)
            return fail(err, ERR_UNSUPPORTED,
                        "%s: state=bfloat16: the plain kernels, which take heads of %d key and %d value channels here, "
                        "keep states in float32",
                        exe->program->name, a->key_dim, a->value_dim);
    }
    return OK;
}

enum status delta_layers_pair(struct executable *exe, struct error *err) {
    for (int i = 0; exe->loaded->device->is_fast && i < exe->program->n_ops; i++) {
        struct compiled_op *conv = &exe->ops[i];
        if (!delta_layer_follows(exe->program, i))
            continue;
        struct ddelta shape = shape_of(exe, conv + 1);
        if (!delta_layer_takes(&shape, conv->op->args.short_conv.kernel) || !lie_alike(exe, conv))
            continue;
        conv[0].pair = conv[1].pair = &conv[2];
        conv[2].pair = conv;
    }
    return check_states(exe, err);
}

// ---- an op a node -----------------------------------------------------------------------------------------------

static enum status put_short_conv(const struct node *n, const struct launch *l, struct error *err) {
    struct ddelta_back back = back_of(n->exe, n->c);
    (void)err; // what does not start shows as cudaGetLastError
    launch_short_conv(l, n->c->op->args.short_conv.kernel, &back, input_of(n->exe, n->c, 0, n->n_rows), n->c->floats[0],
                      n->c->cache, n->c->out[0]);
    return OK;
}

static enum status put_delta_rule(const struct node *n, const struct launch *l, struct error *err) {
    const struct compiled_op *c = n->c;
    struct ddelta shape = shape_of(n->exe, c);
    struct ddelta_back back = back_of(n->exe, c);
    (void)err;
    launch_delta_rule(l, &shape, &back, c->in[0], input_of(n->exe, c, 1, n->n_rows), input_of(n->exe, c, 2, n->n_rows),
                      c->floats[0], c->floats[1], c->cache, c->out[0]);
    return OK;
}

static enum status put_delta_keep(const struct node *n, const struct launch *l, struct error *err) {
    const struct compiled_op *c = n->c;
    struct ddelta_back back = back_of(n->exe, c);
    (void)err;
    launch_delta_keep(l, &back, c->in[0], input_of(n->exe, c, 1, n->n_rows), input_of(n->exe, c, 2, n->n_rows),
                      c->cache);
    return OK;
}

static const struct node_kernel by_short_conv = {"short_conv", "delta.cu", put_short_conv},
                                by_delta_rule = {"delta_rule", "delta.cu", put_delta_rule, "the recurrence"},
                                by_delta_keep = {"delta_keep", "delta.cu", put_delta_keep};

void lower_short_conv(struct lowering *w, const struct compiled_op *c, int n_rows) {
    if (!c->pair)
        lower_node(w, &by_short_conv, c, n_rows);
}

void lower_delta_rule(struct lowering *w, const struct compiled_op *c, int n_rows) {
    if (c->pair)
        return;
    lower_node(w, &by_delta_rule, c, n_rows);
    if (w->exe->loaded->n_back > 0)
        lower_node(w, &by_delta_keep, c, n_rows);
}

// ---- a layer ----------------------------------------------------------------------------------------------------

static struct ddelta_layer layer_of(const struct node *n) {
    const struct executable *exe = n->exe;
    const struct compiled_op *norm = n->c, *conv = norm->pair, *rule = conv + 1;
    const struct norm_args *a = &norm->op->args.norm;
    return (struct ddelta_layer){.shape = shape_of(exe, rule),
                                 .back = back_of(exe, rule),
                                 .kernel = conv->op->args.short_conv.kernel,
                                 .u = input_of(exe, conv, 0, n->n_rows),
                                 .z = input_of(exe, norm, 1, n->n_rows),
                                 .b = input_of(exe, rule, 1, n->n_rows),
                                 .a = input_of(exe, rule, 2, n->n_rows),
                                 .conv = conv->floats[0],
                                 .a_log = rule->floats[0],
                                 .dt_bias = rule->floats[1],
                                 .norm = norm->floats[0],
                                 .eps = a->eps,
                                 .plus = a->plus_one ? 1.0f : 0.0f,
                                 .scale = a->scale,
                                 .cache = conv->cache,
                                 .y = n->out,
                                 .qact = n->qact,
                                 .mixed = conv->out[0],
                                 .parts = rule->out[0]};
}

/* A kernel that takes a layer. */
#define LAYER_KERNEL(name, file)                                                                     \
    static enum status put_##name(const struct node *n, const struct launch *l, struct error *err) { \
        struct ddelta_layer a = layer_of(n);                                                         \
        (void)err;                                                                                   \
        launch_##name(l, &a);                                                                        \
        return OK;                                                                                   \
    }                                                                                                \
    static const struct node_kernel by_##name = {#name, file, put_##name};
LAYER_KERNEL(delta_decode, "delta_decode.cu")
LAYER_KERNEL(delta_decode_few, "delta_decode.cu")
LAYER_KERNEL(delta_chunk_inputs, "delta_chunk_inputs.cu")
LAYER_KERNEL(delta_chunk_parts, "delta_chunk_parts.cu")
LAYER_KERNEL(delta_chunk_scan, "delta_chunk_scan.cu")
LAYER_KERNEL(delta_norm, "delta_norm.cu")

/* Chunks round what the recurrence does not: where products are float32, that is what a user asks for. */
static bool goes_by_chunks(const struct executable *exe, const struct launch *l) {
    bool has_long = l->n_tokens > l->n_seqs && !l->few && delta_most_long(l) > 0;
    return has_long && exe->loaded->product != ELEMENT_F32;
}

bool lower_delta_layer(struct lowering *w, const struct compiled_op *norm, int n_rows) {
    const struct launch *l = w->launch;
    if (!norm->pair)
        return false;
    if (!goes_by_chunks(w->exe, l)) {
        lower_node(w, &by_delta_decode, norm, n_rows)->out = output_with_absmax(w, norm, 0, n_rows);
        return true;
    }
    if (l->n_seqs > 1 || l->n_tokens <= DELTA_FEW_TOKENS || w->exe->loaded->n_back > 0)
        lower_node(w, &by_delta_decode_few, norm, n_rows);
    lower_node(w, &by_delta_chunk_inputs, norm, n_rows);
    lower_node(w, &by_delta_chunk_parts, norm, n_rows);
    lower_node(w, &by_delta_chunk_scan, norm, n_rows);
    struct dmat qact = qact_to_write(w, norm, 0, n_rows);
    struct node *n = lower_node(w, &by_delta_norm, norm, n_rows);
    n->qact = qact, n->out = norm->out[0];
    if (qact.at && !value_is_read(w->exe, norm, 0, n_rows))
        n->out.at = NULL;
    return true;
}
