/* cpu_elementwise.c - GATED_ACT, GATED_ADD, SOFTCAP, DIFF_HEADS: no sum over more than two elements.
 *
 * Workers split columns, not rows, so that a decode step of one row is shared too. */
#include "backend/cpu/cpu.h"

#include <math.h>

void cpu_gated_act(const struct call *c) {
    struct mat gate = c->in[0], up = c->in[1], y = c->out[0];
    int64_t begin, end;
    call_share(c, y.width, 16, &begin, &end);
    for (int64_t t = 0; t < y.rows; t++)
        for (int64_t i = begin; i < end; i++)
            mat_row(y, t)[i] = activate(c->op->args.gated_act, mat_row(gate, t)[i], mat_row(up, t)[i]);
}

void cpu_gated_add(const struct call *c) {
    struct mat add = c->in[0], x = c->in[1], gate = c->in[2], y = c->out[0];
    int64_t begin, end;
    call_share(c, y.width, 16, &begin, &end);
    for (int64_t t = 0; t < y.rows; t++) {
        float factor = gate.at ? sigmoid_f32(mat_row(gate, t)[0]) : 1.0f;
        for (int64_t i = begin; i < end; i++)
            mat_row(y, t)[i] = mat_row(add, t)[i] + mat_row(x, t)[i] * factor;
    }
}

void cpu_softcap(const struct call *c) {
    struct mat x = c->in[0], y = c->out[0];
    float cap = c->op->args.softcap.cap;
    int64_t begin, end;
    call_share(c, y.width, 16, &begin, &end);
    for (int64_t t = 0; t < y.rows; t++)
        for (int64_t i = begin; i < end; i++)
            mat_row(y, t)[i] = cap * tanhf(mat_row(x, t)[i] / cap);
}

void cpu_diff_heads(const struct call *c) {
    const struct diff_args *a = &c->op->args.diff_heads;
    struct mat x = c->in[0], y = c->out[0];
    int64_t head_dim = c->weight[0]->weight->out;
    float lambda = expf(dot_f32(call_floats(c, 0), call_floats(c, 1), head_dim)) -
                   expf(dot_f32(call_floats(c, 2), call_floats(c, 3), head_dim)) + a->lambda_init;
    int64_t begin, end;
    call_share(c, y.width, 16, &begin, &end);
    for (int64_t t = 0; t < y.rows; t++)
        for (int64_t i = begin; i < end; i++) // column i of head h stands y.width before that of head h + n_heads/2
            mat_row(y, t)[i] = mat_row(x, t)[i] - lambda * mat_row(x, t)[y.width + i];
}
