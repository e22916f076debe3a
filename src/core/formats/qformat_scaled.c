/* qformat_scaled.c - 8-bit elements times a scale.
 *
 * w[r, c] = q[r, c] * s[r / block_rows, c / block_cols]. Per tensor: both blocks "all". Per channel:
 * block_rows 1, block_cols all (compressed-tensors, weight_scale [out, 1]). 128 x 128 blocks: DeepSeek and
 * Qwen FP8 (weight_scale_inv, which multiplies in spite of its name). The product is exact in float32 for
 * e4m3 with a bf16 scale. */
#include "core/weight.h"

static void row_to_f32(const struct weight_part *p, int64_t row, int64_t n_cols, float *out) {
    const char *at = (const char *)p->data + row * p->row_stride * (int64_t)dtype_bytes(p->dtype);
    dtype_to_f32(p->dtype, at, p->col_stride, n_cols, out);
    const struct qscale *s = &p->scale;
    int64_t block_row = s->block_rows ? (p->first_row + row) / s->block_rows : 0;
    int64_t width = s->block_cols ? s->block_cols : n_cols;
    const char *scales = (const char *)s->data + block_row * s->stride * (int64_t)dtype_bytes(s->dtype);
    for (int64_t c = 0, b = 0; c < n_cols; c += width, b++) {
        float scale;
        dtype_to_f32(s->dtype, scales + b * (int64_t)dtype_bytes(s->dtype), 1, 1, &scale);
        for (int64_t i = c; i < c + width && i < n_cols; i++)
            out[i] *= scale;
    }
}

const struct qformat qformat_scaled = {.id = QFORMAT_SCALED, .name = "scaled", .bits = 8, .row_to_f32 = row_to_f32};
