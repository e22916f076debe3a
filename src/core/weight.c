/* weight.c - see weight.h. */
#include "core/weight.h"

#include "base/status.h"

const struct weight_part *weight_part_of(const struct weight *w, int64_t row, int64_t *row_in_part) {
    BUG_IF(row < 0 || row >= w->out);
    const struct weight_part *p = w->parts;
    while (row >= p->n_rows)
        row -= p++->n_rows;
    *row_in_part = row;
    return p;
}

void weight_rows_f32(const struct weight *w, int64_t row, int64_t n, float *out) {
    for (int64_t i = 0; i < n; i++) {
        int64_t r;
        const struct weight_part *p = weight_part_of(w, row + i, &r);
        p->format->row_to_f32(p, r, w->in, out + i * w->in);
    }
}

void weight_vector_f32(const struct weight *w, float *out) {
    BUG_IF(w->in != 1);
    for (int i = 0; i < w->n_parts; i++) {
        const struct weight_part *p = &w->parts[i];
        if (p->format == &qformat_plain)
            dtype_to_f32(p->dtype, p->data, p->row_stride, p->n_rows, out);
        else
            for (int64_t r = 0; r < p->n_rows; r++)
                p->format->row_to_f32(p, r, 1, out + r);
        out += p->n_rows;
    }
}

int64_t weight_stored_bytes(const struct weight *w) {
    int64_t total = 0;
    for (int i = 0; i < w->n_parts; i++) {
        const struct weight_part *p = &w->parts[i];
        int64_t bits = p->format->bits ? p->format->bits : (int64_t)dtype_bytes(p->dtype) * 8;
        total += p->n_rows * w->in * bits / 8;
        if (p->format != &qformat_plain) {
            int64_t rows = p->scale.block_rows ? (p->n_rows + p->scale.block_rows - 1) / p->scale.block_rows : 1;
            int64_t cols = p->scale.block_cols ? (w->in + p->scale.block_cols - 1) / p->scale.block_cols : 1;
            total += rows * cols * (int64_t)dtype_bytes(p->scale.dtype);
        }
    }
    return total;
}
