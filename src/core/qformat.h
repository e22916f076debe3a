/* qformat.h - how a weight's numbers are stored: plain elements, or quantised with scales beside them.
 *
 * One row of `struct qformat` a format; its row_to_f32 is the reference that every kernel is tested
 * against. Layouts and formulas: docs/formats.md. A format knows nothing of models or devices. */
#pragma once

#include "core/dtype.h"

struct weight_part;

/* Multipliers of a quantised tensor. The scale of element (r, c) of the stored tensor is
 * scale[(r / block_rows) * stride + c / block_cols]; block sizes of 0 mean "all". */
struct qscale {
    const void *data;
    enum dtype dtype;
    int64_t block_rows, block_cols;
    int64_t stride;     // scales a block row
    float tensor_scale; // a second, whole-tensor multiplier (NVFP4); 1 elsewhere
};

/* Which format: a plugin has rows of its own at other addresses, so whoever chooses by format goes by this. */
enum qformat_id { QFORMAT_PLAIN, QFORMAT_SCALED, QFORMAT_MXFP4, QFORMAT_NVFP4, N_QFORMATS };

struct qformat {
    enum qformat_id id;
    const char *name; // "plain", "scaled", "mxfp4"
    int bits;         // an element, scales not counted; 0: that of the dtype
    /* Columns [0, n_cols) of row `row` of the part. */
    void (*row_to_f32)(const struct weight_part *part, int64_t row, int64_t n_cols, float *out);
};

extern const struct qformat qformat_plain;  // elements of any dtype, strided
extern const struct qformat qformat_scaled; // f8 or i8 elements times a scale: per tensor, channel or block
extern const struct qformat qformat_mxfp4;  // u8 pairs (low nibble first) times 2^(e-127) a 32-column block
extern const struct qformat qformat_nvfp4;  // u8 pairs times an e4m3 a 16-column block times tensor_scale
