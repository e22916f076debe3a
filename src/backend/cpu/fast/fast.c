/* fast.c - which ops have a fast function, and the short ones. */
#include "backend/cpu/fast/fast.h"

static void fast_gated_act(const struct call *c) {
    struct mat gate = c->in[0], up = c->in[1], y = c->out[0];
    int64_t begin, end;
    call_share(c, y.width, 16, &begin, &end);
    for (int64_t t = 0; t < y.rows; t++)
        c->loaded->device->kernels->activate(c->op->args.gated_act, mat_row(gate, t) + begin, mat_row(up, t) + begin,
                                             end - begin, mat_row(y, t) + begin);
}

static const struct fast_op fast_op_gated_act = {fast_gated_act, NULL};

/* Each is at the end of the file of its function. */
extern const struct fast_op fast_op_linear, fast_op_add_norm, fast_op_qkv_prep, fast_op_attention, fast_op_mla_prep,
    fast_op_mla_attention, fast_op_moe_ffn, fast_op_short_conv, fast_op_delta_rule, fast_op_lora;

/* Others are of rows of a few thousand elements, once or twice a layer. */
static const struct fast_op *const fast_ops[N_OPCODES] = {
    [OP_LINEAR] = &fast_op_linear,
    [OP_GATED_ACT] = &fast_op_gated_act,
    [OP_ADD_NORM] = &fast_op_add_norm,
    [OP_QKV_PREP] = &fast_op_qkv_prep,
    [OP_ATTENTION] = &fast_op_attention,
    [OP_MLA_PREP] = &fast_op_mla_prep,
    [OP_MLA_ATTENTION] = &fast_op_mla_attention,
    [OP_MOE_FFN] = &fast_op_moe_ffn,
    [OP_SHORT_CONV] = &fast_op_short_conv,
    [OP_DELTA_RULE] = &fast_op_delta_rule,
    [OP_LORA] = &fast_op_lora,
};

const struct fast_op *fast_op(const struct op *op) {
    bool is_plain = op->code == OP_GATED_ACT && op->args.gated_act.act == ACT_GELU; // erf has no vector form here
    return is_plain ? NULL : fast_ops[op->code];
}

struct need fast_need(const struct fast_op *f, const struct loaded *l, const struct op *op, struct bucket bucket) {
    return f->need ? f->need(l, op, bucket) : (struct need){0, 0};
}
