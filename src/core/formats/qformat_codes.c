/* qformat_codes.c - codes of 4 bits that stand for 16 values of a table, times a scale a run of elements (bitsandbytes'
 * nf4 and fp4).
 *
 *     w[r, c] = values[code e] * scale[e / block],   e = r * stored_cols + c
 *
 * Two codes to a byte, the first in the high half. Elements are counted through the rows, so that a run may begin in
 * one row and end in another. Scales are floats, or a byte each (nested):
 *
 *     scale[i] = outer_values[byte i] * outer[i / outer_block] + offset */
#include "core/weight.h"

#include "base/status.h"

static float f32_at(const void *floats, int64_t i) {
    float f;
    memcpy(&f, (const char *)floats + i * (int64_t)sizeof f, sizeof f);
    return f;
}

static float scale_of(const struct qcodes *k, int64_t i) {
    if (!k->outer)
        return f32_at(k->scales, i);
    float scale = k->outer_values[((const uint8_t *)k->scales)[i]] * f32_at(k->outer, i / k->outer_block);
    return scale + k->offset;
}

void codes_to_f32(const struct weight_part *p, int64_t row, int64_t col, int64_t n, float *out) {
    const struct qcodes *k = p->codes;
    const uint8_t *bytes = p->data;
    int64_t e = (p->first_row + row) * k->stored_cols + p->first_col + col, end = e + n;
    while (e < end) {
        int64_t block = e / k->block, until = MIN((block + 1) * k->block, end);
        for (float scale = scale_of(k, block); e < until; e++)
            *out++ = k->values[e % 2 ? bytes[e / 2] & 15 : bytes[e / 2] >> 4] * scale;
    }
}

static void row_to_f32(const struct weight_part *p, int64_t row, int64_t n_cols, float *out) {
    codes_to_f32(p, row, 0, n_cols, out);
}

const struct qformat qformat_codes4 = {.id = QFORMAT_CODES4, .name = "codes4", .bits = 4, .row_to_f32 = row_to_f32};
