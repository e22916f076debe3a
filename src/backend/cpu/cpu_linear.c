/* cpu_linear.c - LINEAR: the reference; every format through its own row_to_f32. */
#include "backend/cpu/cpu.h"

struct need cpu_linear_need(const struct op *op) {
    return (struct need){.worker = op->in[0].width}; // a row of weights
}

void cpu_linear(const struct call *c) {
    struct mat x = c->in[0], y = c->out[0];
    const float *bias = call_floats(c, 1);
    int64_t begin, end;
    call_share(c, y.width, 16, &begin, &end);
    for (int64_t o = begin; o < end; o++) {
        weight_rows_f32(c->weight[0]->weight, o, 1, c->scratch);
        for (int64_t t = 0; t < x.rows; t++)
            mat_row(y, t)[o] = dot_f32(mat_row(x, t), c->scratch, x.width) + (bias ? bias[o] : 0.0f);
    }
}
