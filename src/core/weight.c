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
        if (p->format->id == QFORMAT_PLAIN)
            dtype_to_f32(p->dtype, p->data, p->row_stride, p->n_rows, out);
        else
            for (int64_t r = 0; r < p->n_rows; r++)
                p->format->row_to_f32(p, r, 1, out + r);
        out += p->n_rows;
    }
}

/* Where element (row, col) of the part lies. Packed formats store several columns in one element, or in a block. */
static const void *element_at(const struct weight_part *p, int64_t row, int64_t col) {
    if (p->packed || p->codes)
        return p->data;
    if (p->format->block_cols)
        return p->data ? (const char *)p->data + row * p->row_stride + block_row_bytes(p->format, col) : NULL;
    bool is_packed = p->format->bits && !dtype_is_float(p->dtype);
    int64_t bytes = (int64_t)dtype_bytes(p->dtype), per_element = is_packed ? bytes * 8 / p->format->bits : 1;
    return p->data ? (const char *)p->data + (row * p->row_stride + col / per_element * p->col_stride) * bytes : NULL;
}

int64_t weight_part_block(const struct weight_part *p) {
    return MAX(MAX(p->scale.block_cols, p->format->block_cols), 1);
}

struct weight_part weight_part_cols(const struct weight_part *p, int64_t first) {
    struct weight_part cut = *p;
    int64_t n_scales = first / weight_part_block(p);
    BUG_IF(first < 0 || first % weight_part_block(p));
    cut.data = element_at(p, 0, first);
    cut.first_col += first;
    if (p->scale.data && p->scale.block_cols && !p->packed)
        cut.scale.data = (const char *)p->scale.data + n_scales * (int64_t)dtype_bytes(p->scale.dtype);
    return cut;
}

struct weight_part weight_part_rows(const struct weight_part *p, int64_t first, int64_t n) {
    struct weight_part cut = *p;
    BUG_IF(first < 0 || n < 0 || first > p->n_rows - n);
    cut.data = element_at(p, first, 0);
    cut.n_rows = n;
    cut.first_row += first;
    return cut;
}

static int64_t up_to(int64_t n, int64_t of) { return (n + of - 1) / of; }

/* Of n elements; a phantom has no scales, and says whether they are nested. */
static int64_t scale_bytes(const struct qcodes *k, int64_t n) {
    int64_t blocks = up_to(n, k->block), width = (int64_t)sizeof(float);
    return k->outer_block ? blocks + up_to(blocks, k->outer_block) * width : blocks * width;
}

int64_t weight_stored_bytes(const struct weight *w) {
    int64_t total = 0;
    for (int i = 0; i < w->n_parts; i++) {
        const struct weight_part *p = &w->parts[i];
        if (p->format->block_cols) {
            total += p->n_rows * block_row_bytes(p->format, w->in);
            continue;
        }
        int64_t bits = p->format->bits ? p->format->bits : (int64_t)dtype_bytes(p->dtype) * 8;
        total += p->n_rows * w->in * bits / 8;
        if (p->packed) {
            int64_t scales = p->n_rows * p->packed->n_groups;
            total += scales * (int64_t)dtype_bytes(p->scale.dtype) + (p->packed->has_zeros ? scales * bits / 8 : 0);
        } else if (p->codes) {
            total += scale_bytes(p->codes, p->n_rows * w->in);
        } else if (p->format->id != QFORMAT_PLAIN) {
            int64_t rows = p->scale.block_rows ? up_to(p->n_rows, p->scale.block_rows) : 1;
            int64_t cols = p->scale.block_cols ? up_to(w->in, p->scale.block_cols) : 1;
            total += rows * cols * (int64_t)dtype_bytes(p->scale.dtype);
        }
    }
    return total;
}
