/* target.c - see target.h. */
#include "quantize/target.h"

#include <math.h>
#include <stdlib.h>

uint64_t target_bytes(const struct target *t) {
    const struct qformat *f = qformat_of_blocks(t->to.format);
    uint64_t row = f ? (uint64_t)block_row_bytes(f, t->cols) : (uint64_t)t->cols * dtype_bytes(t->to.dtype);
    return (uint64_t)t->rows * row;
}

/* ---- turned ---- */

/* Row (h, r) of the result is column r of rows [h * step, h * step + cols) of the part. */
enum status target_prepare(struct target *t, struct error *err) {
    if (!t->turn_heads)
        return OK;
    const struct weight_part *p = &t->parts[0];
    int64_t rank = t->rows / t->turn_heads;
    float *values = malloc((size_t)(t->rows * t->cols) * sizeof *values), *row = malloc((size_t)rank * sizeof *row);
    if (!values || !row) {
        free(values), free(row);
        return fail(err, ERR_MEMORY, "tensor %s: no memory for %lld numbers", t->name, (long long)(t->rows * t->cols));
    }
    for (int64_t h = 0; h < t->turn_heads; h++)
        for (int64_t j = 0; j < t->cols; j++) {
            p->format->row_to_f32(p, h * t->turn_step + j, rank, row);
            for (int64_t r = 0; r < rank; r++)
                values[(h * rank + r) * t->cols + j] = row[r];
        }
    free(row);
    t->values = values;
    return OK;
}

void target_done(struct target *t) {
    if (!t->turn_heads)
        return;
    free((void *)t->values);
    t->values = NULL;
}

/* ---- rows ---- */

static void vector_row(const struct target *t, int64_t row, float *out) {
    const struct weight_part *p = &t->parts[row];
    for (int64_t i = 0; i < t->cols; i++)
        p->format->row_to_f32(p, t->col_of ? t->col_of[i] : i, 1, out + i);
}

static void matrix_row(const struct target *t, int64_t row, float *out) {
    int64_t rows_each = t->parts[0].n_rows, at = t->row_of ? t->row_of[row] : row;
    const struct weight_part *p = &t->parts[at / rows_each];
    p->format->row_to_f32(p, at % rows_each, t->cols, out);
}

static void reorder(const struct target *t, float *row) {
    float *copy = xmalloc((size_t)t->cols * sizeof *copy);
    memcpy(copy, row, (size_t)t->cols * sizeof *copy);
    for (int64_t i = 0; i < t->cols; i++)
        row[i] = copy[t->col_of[i]];
    free(copy);
}

void target_row(const struct target *t, int64_t row, float *out) {
    if (t->values) {
        memcpy(out, t->values + row * t->cols, (size_t)t->cols * sizeof *out);
        return;
    }
    if (t->is_vector) {
        vector_row(t, row, out);
    } else {
        matrix_row(t, row, out);
        if (t->col_of)
            reorder(t, out);
    }
    for (int64_t i = 0; t->change == CHANGE_PLUS_ONE && i < t->cols; i++)
        out[i] += 1;
    for (int64_t i = 0; t->change == CHANGE_MINUS_EXP && i < t->cols; i++)
        out[i] = -expf(out[i]);
}
