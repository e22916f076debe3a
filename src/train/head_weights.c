/* head_weights.c - weights of programs: see head_parts.h. */
#include "train/head_parts.h"

#include <stdlib.h>
#include <string.h>

/* Of what attention gives (Qwen3.5). */
static bool is_gate(const struct op *op) { return op->code == OP_GATED_ACT && op->args.gated_act.act == ACT_SIGMOID; }

static void look_at(const struct op *op, const struct op *before, struct layer_weights *out) {
    if (op->code == OP_NORM && op->args.norm.group == op->in[0].width)
        *(out->norm ? &out->second_norm : &out->norm) = op->weights[0];
    if (op->code == OP_ADD_NORM) {
        *(out->qkv ? &out->ffn_norm : &out->norm) = op->weights[0];
        out->norms_hold_one = op->args.norm.plus_one;
    }
    if (op->code == OP_QKV_PREP && before->code == OP_LINEAR)
        out->qkv = before->weights[0], out->q_norm = op->weights[0], out->k_norm = op->weights[1];
    if (op->code == OP_LINEAR && (before->code == OP_ATTENTION || is_gate(before)))
        out->out = op->weights[0];
    if (op->code == OP_GATED_ACT && before->code == OP_LINEAR)
        out->gate_up = before->weights[0];
    if (op->code == OP_LINEAR && before->code == OP_GATED_ACT && !is_gate(before))
        out->down = op->weights[0];
}

static void look_outside(const struct program *p, const struct op *op, const struct op *before,
                         struct layer_weights *out) {
    if (op->code == OP_NORM)
        *(out->embed_norm ? &out->hidden_norm : &out->embed_norm) = op->weights[0];
    if (op->code == OP_LINEAR && before->code == OP_CONCAT)
        out->fc = op->weights[0];
    if (op->code == OP_ADD_NORM)
        out->last_norm = op->weights[0];
    if (op->code == OP_LINEAR && p->values[op->out[0].id].rows == ROWS_OUT)
        out->lm_head = op->weights[0];
}

struct layer_weights weights_of(const struct program *p, int layer) {
    struct layer_weights out = {0};
    for (int i = 1; i < p->n_ops; i++) {
        const struct op *op = &p->ops[i];
        const struct section *s = &p->sections[op->section];
        if (s->layer == layer)
            look_at(op, &p->ops[i - 1], &out);
        else if (s->layer < 0)
            look_outside(p, op, &p->ops[i - 1], &out);
    }
    return out;
}

void copy_rows(const struct weight *from, int64_t row, int64_t n, int64_t cols, float *to, int64_t stride) {
    float *whole = xcalloc((size_t)from->in, sizeof *whole);
    for (int64_t r = 0; r < n; r++) {
        weight_rows_f32(from, row + r, 1, whole);
        memcpy(to + r * stride, whole, (size_t)cols * sizeof *to);
    }
    free(whole);
}
