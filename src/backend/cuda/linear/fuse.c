/* fuse.c - which neighbours may be one node; see cuda.h.
 *
 *     LINEAR, GATED_ACT      y = act(gate) * up, where gate and up are the two halves of the columns of x W^T + b, read
 *                            by nobody else
 *     QKV_PREP, ATTENTION    where no sequence has more than one token: decode attention makes queries, key and value
 *                            itself
 *
 *     SHORT_CONV,            a DeltaNet layer between its products, where the fast kernels take its shapes
 *     DELTA_RULE, NORM       (recurrent/delta_layer.c)
 *
 * The first pair is one node in steps that take a kernel of ours, the second in steps that only decode; in all others
 * they are two. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/device/device.h"
#include "backend/cuda/step/fold.h"
#include "backend/cuda/value.h"

static bool is_read_by_one(const struct program *p, val v) {
    int n = 0;
    for (int i = 0; i < p->n_ops; i++) {
        bool reads = false;
        for (int k = 0; k < OP_MAX_IN; k++)
            reads |= p->ops[i].in[k].id == v.id;
        n += reads;
    }
    return n == 1 && !program_keeps(p, v.id);
}

bool gated_act_follows(const struct program *p, int i) {
    if (p->ops[i].code != OP_LINEAR || i + 1 >= p->n_ops || p->ops[i + 1].code != OP_GATED_ACT)
        return false;
    val made = p->ops[i].out[0], gate = p->ops[i + 1].in[0], up = p->ops[i + 1].in[1];
    bool halves = gate.id == made.id && up.id == made.id && gate.col == 0 && up.col == gate.width &&
                  up.width == gate.width && made.col == 0 && made.width == 2 * gate.width;
    return halves && is_read_by_one(p, made);
}

bool attention_follows(const struct program *p, int i) {
    if (p->ops[i].code != OP_QKV_PREP || i + 1 >= p->n_ops || p->ops[i + 1].code != OP_ATTENTION)
        return false;
    val q = p->ops[i].out[0], read = p->ops[i + 1].in[0];
    return read.id == q.id && read.col == q.col && read.width == q.width && is_read_by_one(p, q) &&
           p->ops[i].args.qkv_prep.cache == p->ops[i + 1].args.attention.cache &&
           p->ops[i].args.qkv_prep.rotary_dim == 0;
}

static bool is_same(val a, val b) { return a.id == b.id && a.col == b.col && a.width == b.width; }

bool delta_layer_follows(const struct program *p, int i) {
    if (i + 2 >= p->n_ops || p->ops[i].code != OP_SHORT_CONV || p->ops[i + 1].code != OP_DELTA_RULE ||
        p->ops[i + 2].code != OP_NORM)
        return false;
    const struct op *conv = &p->ops[i], *rule = conv + 1, *norm = conv + 2;
    return is_same(rule->in[0], conv->out[0]) && is_read_by_one(p, conv->out[0]) &&
           is_same(norm->in[0], rule->out[0]) && is_read_by_one(p, rule->out[0]) && val_given(norm->in[1]) &&
           norm->args.norm.group == rule->args.delta_rule.value_dim &&
           conv->args.short_conv.cache == rule->args.delta_rule.cache;
}

static void live_to(struct value *values, val v, int op) {
    if (val_given(v))
        values[v.id].last_use = MAX(values[v.id].last_use, op);
}

void fuse_lives(const struct program *p, struct value *values) {
    for (int i = 0; i < p->n_ops; i++) {
        if (gated_act_follows(p, i) || attention_follows(p, i))
            live_to(values, p->ops[i].in[0], i + 1);
        if (!delta_layer_follows(p, i))
            continue;
        for (int k = 0; k < OP_MAX_IN; k++) { // all is done in the place of the NORM
            live_to(values, p->ops[i].in[k], i + 2);
            live_to(values, p->ops[i + 1].in[k], i + 2);
        }
        live_to(values, p->ops[i + 1].out[0], i + 2); // what lies there between its nodes
    }
}
