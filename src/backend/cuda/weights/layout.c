/* layout.c - see layout.h. */
#include "backend/cuda/weights/layout.h"

#include "backend/cuda/weights/blocks.h"
#include "base/status.h"

#include <string.h>

static void copy_rows(const struct layout_rows *r) {
    int64_t size = (int64_t)dtype_bytes(r->part->dtype), row_bytes = r->weight->in * size;
    const char *from = (const char *)r->part->data + r->row_in_part * r->part->row_stride * size;
    if (r->part->row_stride == r->weight->in) {
        memcpy(r->to, from, (size_t)(r->n * row_bytes));
        return;
    }
    for (int64_t i = 0; i < r->n; i++)
        memcpy(r->to + i * row_bytes, from + i * r->part->row_stride * size, (size_t)row_bytes);
}

/* Then the scales of these rows, a row of blocks after the other. */
static void copy_rows_and_scales(const struct layout_rows *r) {
    const struct qscale *s = &r->part->scale;
    int64_t n = layout_scales_a_row(r->part, r->placed, r->weight->in), size = (int64_t)dtype_bytes(s->dtype);
    float *to = (float *)(void *)(r->to + r->scales_at);
    copy_rows(r);
    for (int64_t i = 0; i < r->n; i++) {
        int64_t block_row = s->block_rows ? (r->part->first_row + r->row_in_part + i) / s->block_rows : 0;
        dtype_to_f32(s->dtype, (const char *)s->data + block_row * s->stride * size, 1, n, to + i * n);
    }
}

static void decode_rows(const struct layout_rows *r) {
    weight_rows_f32(r->weight, r->row, r->n, (float *)(void *)r->to);
}

/* Two columns to a byte, and the scales of these rows, a byte each. */
static void copy_packed(const struct layout_rows *r) {
    const struct qscale *s = &r->part->scale;
    int64_t row_bytes = r->weight->in / 2, n = layout_scales_a_row(r->part, r->placed, r->weight->in);
    for (int64_t i = 0; i < r->n; i++) {
        int64_t row = r->row_in_part + i;
        memcpy(r->to + i * row_bytes, (const char *)r->part->data + row * r->part->row_stride, (size_t)row_bytes);
        memcpy(r->to + r->scales_at + i * n, (const char *)s->data + (r->part->first_row + row) * s->stride, (size_t)n);
    }
}

#define FLOAT .may_be_e4m3 = true, .has_dummies = true
#define QUANTISED .has_dummies = true

static const struct layout layouts[] = {
    {QFORMAT_PLAIN, DT_F32, ELEMENT_F32, copy_rows, FLOAT, .wants_float32 = true},
    {QFORMAT_PLAIN, DT_F16, ELEMENT_F16, copy_rows, FLOAT},
    {QFORMAT_PLAIN, DT_BF16, ELEMENT_BF16, copy_rows, FLOAT},
    {QFORMAT_PLAIN, DT_F64, ELEMENT_F32, decode_rows, .may_be_e4m3 = true, .wants_float32 = true},
    {QFORMAT_PLAIN, DT_F8_E4M3, ELEMENT_F32, decode_rows},
    {QFORMAT_PLAIN, DT_F8_E5M2, ELEMENT_F32, decode_rows},
    {QFORMAT_SCALED, DT_F8_E4M3, ELEMENT_E4M3, copy_rows_and_scales, QUANTISED, .is_e4m3 = true},
    {QFORMAT_SCALED, DT_F8_E5M2, ELEMENT_F32, decode_rows, QUANTISED},
    {QFORMAT_SCALED, DT_I8, ELEMENT_F32, decode_rows, QUANTISED, .in_quads = true},
    {QFORMAT_SCALED, DT_F16, ELEMENT_F32, decode_rows, QUANTISED},
    {QFORMAT_SCALED, DT_BF16, ELEMENT_F32, decode_rows, QUANTISED},
    {QFORMAT_SCALED, DT_F32, ELEMENT_F32, decode_rows, QUANTISED},
    {QFORMAT_MXFP4, DT_U8, ELEMENT_F32, decode_rows, QUANTISED, .is_packed = true, .blocks = ELEMENT_MXFP4,
     .block_cols = 32, .in_quads = true},
    {QFORMAT_NVFP4, DT_U8, ELEMENT_F32, decode_rows, QUANTISED, .is_packed = true, .in_quads = true},
    {QFORMAT_INT2, DT_I32, ELEMENT_F32, decode_rows, QUANTISED, .is_packed = true},
    {QFORMAT_INT4, DT_I32, ELEMENT_F32, decode_rows, QUANTISED, .is_packed = true, .in_quads = true},
    {QFORMAT_INT8, DT_I32, ELEMENT_F32, decode_rows, QUANTISED, .is_packed = true, .in_quads = true},
    {QFORMAT_CODES4, DT_U8, ELEMENT_F32, decode_rows, .is_packed = true},
    {QFORMAT_Q4_0, DT_U8, ELEMENT_F32, decode_rows, .is_packed = true, .in_quads = true},
    {QFORMAT_Q8_0, DT_U8, ELEMENT_F32, decode_rows, .is_packed = true, .in_quads = true},
    {QFORMAT_Q4_K, DT_U8, ELEMENT_F32, decode_rows, .is_packed = true, .in_quads = true},
    {QFORMAT_Q6_K, DT_U8, ELEMENT_F32, decode_rows, .is_packed = true, .in_quads = true},
};
#undef FLOAT
#undef QUANTISED

const struct layout *layout_of(const struct weight_part *part) {
    for (size_t i = 0; i < ARRAY_LEN(layouts); i++)
        if (layouts[i].format == part->format->id && layouts[i].dtype == part->dtype)
            return layouts[i].is_packed && part->col_stride != 1 ? NULL : &layouts[i];
    return NULL;
}

/* Of what lies in strides nothing goes as it is stored. */
static bool is_decoded(const struct weight_part *part) { return part->col_stride != 1; }

static bool goes_packed(const struct weight_part *part, enum element placed) {
    if (placed == ELEMENT_QUADS)
        return part->data && layout_of(part)->in_quads;
    return part->data && is_in_blocks(placed) && layout_of(part)->blocks == placed;
}

enum element layout_sent(const struct weight_part *part, enum element placed) {
    const struct layout *l = layout_of(part);
    if (!part->data && l->format != QFORMAT_PLAIN)
        return ELEMENT_BF16; // a dummy that would be stored in fewer bits
    return goes_packed(part, placed) ? placed : is_decoded(part) ? ELEMENT_F32 : l->sent;
}

void layout_fill(const struct layout_rows *r) {
    if (goes_packed(r->part, r->placed))
        (r->placed == ELEMENT_QUADS ? quads_fill : copy_packed)(r);
    else if (is_decoded(r->part))
        decode_rows(r);
    else
        layout_of(r->part)->fill(r);
}

int64_t layout_scales_a_row(const struct weight_part *part, enum element placed, int64_t in) {
    enum element sent = layout_sent(part, placed);
    if (sent == ELEMENT_QUADS)
        return quads_groups_a_row(part, in);
    if (sent != ELEMENT_E4M3 && !is_in_blocks(sent))
        return 0;
    return part->scale.block_cols ? (in + part->scale.block_cols - 1) / part->scale.block_cols : 1;
}

int64_t layout_elements_bytes(const struct weight_part *part, enum element placed, int64_t in, int64_t n) {
    enum element sent = layout_sent(part, placed);
    if (sent == ELEMENT_QUADS)
        return n * quads_codes_bytes_a_row(part, in);
    return is_in_blocks(sent) ? n * (in / 2) : n * in * element_bytes(sent);
}

int64_t layout_row_bytes(const struct weight_part *part, enum element placed, int64_t in) {
    if (layout_sent(part, placed) == ELEMENT_QUADS)
        return layout_elements_bytes(part, placed, in, 1) + quads_scales_bytes_a_row(part, in);
    int64_t scale_bytes = is_in_blocks(layout_sent(part, placed)) ? 1 : (int64_t)sizeof(float);
    return layout_elements_bytes(part, placed, in, 1) + layout_scales_a_row(part, placed, in) * scale_bytes;
}
