/* qformat_fp4.c - pairs of 4-bit floats (e2m1) with a scale a block of columns.
 *
 *   byte b of a row = columns 2b (low nibble) and 2b + 1 (high nibble)
 *   MXFP4 (GPT-OSS blocks and scales): w = e2m1 * 2^(s - 127), 32 columns a scale
 *   NVFP4 (modelopt): w = e2m1 * e4m3 * tensor_scale, 16 columns a scale
 * row_stride counts bytes. */
#include "core/weight.h"

#include "base/status.h"

static void row_to_f32(const struct weight_part *p, int64_t row, int64_t n_cols, float *out) {
    const uint8_t *packed = (const uint8_t *)p->data + row * p->row_stride;
    const struct qscale *s = &p->scale;
    const uint8_t *scales = (const uint8_t *)s->data + (p->first_row + row) * s->stride;
    for (int64_t c = 0, b = 0; c < n_cols; b++) {
        float scale, tensor_scale = s->tensor_scale;
        dtype_to_f32(s->dtype, scales + b, 1, 1, &scale);
        for (int64_t end = MIN((b + 1) * s->block_cols, n_cols); c < end; c++)
            out[c] = e2m1_to_f32(c & 1 ? packed[c / 2] >> 4 : packed[c / 2] & 15) * scale * tensor_scale;
    }
}

const struct qformat qformat_mxfp4 = {.id = QFORMAT_MXFP4, .name = "mxfp4", .bits = 4, .row_to_f32 = row_to_f32};
const struct qformat qformat_nvfp4 = {.id = QFORMAT_NVFP4, .name = "nvfp4", .bits = 4, .row_to_f32 = row_to_f32};
