/* cpu_lora.c - LORA: what adapters add to projections; the reference. */
#include "backend/cpu/cpu.h"

#include <string.h>

int call_adapter(const struct call *c, int64_t row) {
    const struct batch_plan *plan = c->plan;
    bool is_token = c->program->values[c->op->in[0].id].rows == ROWS_TOKENS;
    int adapter = plan->adapter[c->seq_of_row[is_token ? row : plan->out_row[row]]] - 1;
    BUG_IF(adapter >= c->op->args.lora.n_adapters);
    return adapter;
}

/* h [modules][rank] = scale A x, 0 for what the adapter does not change. row: scratch. */
static void shrink(const struct call *c, int adapter, const float *x, float *h, float *row) {
    const struct lora_args *a = &c->op->args.lora;
    for (int m = 0; m < a->n_modules; m++) {
        int64_t module = (int64_t)adapter * a->n_modules + m;
        float scale = call_floats(c, 2)[module];
        for (int r = 0; r < a->rank; r++) {
            weight_rows_f32(c->weight[0]->weight, module * a->rank + r, 1, row);
            *h++ = scale != 0 ? scale * dot_f32(row, x, c->in[1].width) : 0;
        }
    }
}

/* y += B h, in runs of columns of one module. */
static void expand(const struct call *c, int adapter, const float *h, float *y, float *row) {
    const struct lora_args *a = &c->op->args.lora;
    int64_t at = (int64_t)adapter * c->out[0].width;
    for (int i = 0; i < a->n_runs; i++)
        for (int k = 0; k < a->runs[i].width; k++) {
            weight_rows_f32(c->weight[1]->weight, at++, 1, row);
            *y++ += dot_f32(row, h + (int64_t)a->runs[i].module * a->rank, a->rank);
        }
}

struct need cpu_lora_need(const struct op *op) {
    const struct lora_args *a = &op->args.lora; // A x, a row of A or B
    return (struct need){.worker = (int64_t)a->n_modules * a->rank + MAX(op->in[1].width, a->rank)};
}

void cpu_lora(const struct call *c) {
    const struct lora_args *a = &c->op->args.lora;
    struct mat base = c->in[0], y = c->out[0];
    int64_t begin, end;
    call_share(c, y.rows, 1, &begin, &end);
    for (int64_t t = begin; t < end; t++) {
        int adapter = call_adapter(c, t);
        memcpy(mat_row(y, t), mat_row(base, t), (size_t)y.width * sizeof(float));
        if (adapter < 0)
            continue;
        float *h = c->scratch, *row = h + (int64_t)a->n_modules * a->rank;
        shrink(c, adapter, mat_row(c->in[1], t), h, row);
        expand(c, adapter, h, mat_row(y, t), row);
    }
}
