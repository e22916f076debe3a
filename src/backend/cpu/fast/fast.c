/* fast.c - which ops have a fast function, the scratch that each wants, and the short ones. */
#include "backend/cpu/fast/fast.h"

static void fast_gated_act(const struct call *c) {
    struct mat gate = c->in[0], up = c->in[1], y = c->out[0];
    int64_t begin, end;
    call_share(c, y.width, 16, &begin, &end);
    for (int64_t t = 0; t < y.rows; t++)
        c->loaded->device->kernels->activate(c->op->args.gated_act, mat_row(gate, t) + begin, mat_row(up, t) + begin,
                                             end - begin, mat_row(y, t) + begin);
}

op_function *fast_function(const struct op *op) {
    switch (op->code) {
    case OP_LINEAR: return fast_linear;
    case OP_GATED_ACT: return op->args.gated_act.act == ACT_GELU ? NULL : fast_gated_act; // erf has no vector form here
    case OP_ADD_NORM: return fast_add_norm;
    case OP_QKV_PREP: return fast_qkv_prep;
    case OP_ATTENTION: return fast_attention;
    case OP_MLA_PREP: return fast_mla_prep;
    case OP_MLA_ATTENTION: return fast_mla_attention;
    case OP_MOE_FFN: return fast_moe_ffn;
    case OP_SHORT_CONV: return fast_short_conv;
    case OP_DELTA_RULE: return fast_delta_rule;
    case OP_LORA: return fast_lora;
    default: return NULL; // rows of a few thousand elements, once or twice a layer
    }
}

struct need fast_need(const struct loaded *l, const struct op *op, struct bucket bucket) {
    const union op_args *a = &op->args;
    switch (op->code) {
    case OP_LINEAR:
        return (struct need){.worker = product_scratch(op->in[0].width), .shared = fast_linear_shared(op, bucket)};
    case OP_QKV_PREP: return (struct need){.worker = (int64_t)a->qkv_prep.head_dim + a->qkv_prep.v_head_dim};
    case OP_ATTENTION: return (struct need){.worker = fast_attention_scratch(l, &a->attention)};
    case OP_MLA_PREP: return (struct need){.worker = fast_mla_prep_scratch(&a->mla)};
    case OP_MLA_ATTENTION: return (struct need){.worker = fast_mla_attention_scratch(&a->mla)};
    case OP_MOE_FFN:
        return (struct need){.worker = fast_moe_scratch(op), .shared = fast_moe_shared(op, bucket.max_tokens)};
    case OP_LORA: return (struct need){.worker = fast_lora_scratch(op), .shared = fast_lora_shared(op, bucket)};
    case OP_SHORT_CONV: return (struct need){.worker = fast_conv_scratch(op)};
    case OP_DELTA_RULE: return (struct need){.worker = fast_delta_scratch(&a->delta_rule)};
    default: return (struct need){0, 0};
    }
}
