/* cpu_rows.c - EMBED, STATES, CONCAT, TAKE_ROWS, SAMPLE: tokens to rows, rows to outputs, rows to tokens. */
#include "backend/cpu/cpu.h"

#include <string.h>

void cpu_embed(const struct call *c) {
    const struct weight *table = c->weight[0]->weight;
    struct mat y = c->out[0];
    int64_t begin, end;
    call_share(c, y.rows, 1, &begin, &end);
    for (int64_t t = begin; t < end; t++) {
        int64_t row = c->plan->token_id[t] - c->op->args.embed.first;
        if (row < 0 || row >= table->out) {
            memset(mat_row(y, t), 0, (size_t)y.width * sizeof(float));
            continue;
        }
        weight_rows_f32(table, row, 1, mat_row(y, t));
        for (int64_t i = 0; i < y.width; i++)
            mat_row(y, t)[i] *= c->op->args.embed.scale;
    }
}

void cpu_states(const struct call *c) {
    struct mat y = c->out[0];
    int64_t begin, end;
    call_share(c, y.rows, 1, &begin, &end);
    for (int64_t t = begin; t < end; t++)
        memcpy(mat_row(y, t), c->plan->states + t * y.width, (size_t)y.width * sizeof(float));
}

void cpu_concat(const struct call *c) {
    struct mat y = c->out[0];
    int64_t begin, end;
    call_share(c, y.rows, 1, &begin, &end);
    for (int64_t t = begin; t < end; t++) {
        float *at = mat_row(y, t);
        for (int i = 0; i < OP_MAX_IN && c->in[i].at; at += c->in[i].width, i++)
            memcpy(at, mat_row(c->in[i], t), (size_t)c->in[i].width * sizeof(float));
    }
}

void cpu_take_rows(const struct call *c) {
    struct mat x = c->in[0], y = c->out[0];
    int64_t begin, end;
    call_share(c, y.rows, 1, &begin, &end);
    for (int64_t r = begin; r < end; r++)
        memcpy(mat_row(y, r), mat_row(x, c->plan->out_row[r]), (size_t)y.width * sizeof(float));
}

void cpu_sample(const struct call *c) {
    struct mat x = c->in[0];
    for (int64_t r = c->worker; r < x.rows; r += c->n_workers)
        sample_row(mat_row(x, r), x.width, &c->sample[r], c->sample_scratch, &c->results[r]);
}
