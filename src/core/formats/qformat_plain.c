/* qformat_plain.c - elements as they are. */
#include "core/weight.h"

static void row_to_f32(const struct weight_part *p, int64_t row, int64_t n_cols, float *out) {
    const char *at = (const char *)p->data + row * p->row_stride * (int64_t)dtype_bytes(p->dtype);
    dtype_to_f32(p->dtype, at, p->col_stride, n_cols, out);
}

const struct qformat qformat_plain = {.id = QFORMAT_PLAIN, .name = "plain", .bits = 0, .row_to_f32 = row_to_f32};
