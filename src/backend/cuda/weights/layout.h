/* layout.h - the formats of a checkpoint that the device takes: how each is sent, and what products are made with it.
 * One row of layout.c a format and type of elements; a new one is a row there, and in place.cu or a kernel of its own
 * what reads it as it is sent. */
#pragma once

#include "backend/cuda/value.h"
#include "core/weight.h"

/* Rows [row, row + n) of the weight, which are rows [row_in_part, ...) of the part, to `to`: one after the other in the
 * element `sent`, and behind them, from scales_at on, their scales. */
struct layout_rows {
    const struct weight *weight;
    const struct weight_part *part;
    enum element placed;         // as what the device keeps the weight
    const int32_t *column_order; // of ELEMENT_QUADS, struct placed; NULL: columns as they are
    int64_t row, row_in_part, n;
    char *to;
    int64_t scales_at;
};

struct layout {
    enum qformat_id format;
    enum dtype dtype;  // of what is stored
    enum element sent; // as; what the host decodes goes as float32
    void (*fill)(const struct layout_rows *r);
    bool has_dummies;    // random weights can take its place
    bool is_packed;      // several values to a stored word: columns lie one after the other
    bool is_e4m3;        // LINEARs and experts multiply by it as it is stored
    bool may_be_e4m3;    // or by e4m3 that it is made, if `quantization` asks
    bool wants_float32;  // what most weights want decides what products are made in
    enum element blocks; // experts multiply by it as it is stored, in blocks of this element; 0: they do not
    int block_cols;      // of a scale, if so
    bool in_quads;       // tiles may keep it as it is stored (quads.h)
};

/* NULL: the device has no way to take the part. Of others it does: */
const struct layout *layout_of(const struct weight_part *part);

/* Of rows of a weight that is placed as `placed`, with `in` columns: what they are sent as, and a dummy is made in; how
 * many scales of a row are sent; bytes of n rows' elements; of a row with its scales. */
enum element layout_sent(const struct weight_part *part, enum element placed);
void layout_fill(const struct layout_rows *r);
int64_t layout_scales_a_row(const struct weight_part *part, enum element placed, int64_t in);
int64_t layout_elements_bytes(const struct weight_part *part, enum element placed, int64_t in, int64_t n);
int64_t layout_row_bytes(const struct weight_part *part, enum element placed, int64_t in);

/* ---- quads.c: of rows that are placed as ELEMENT_QUADS, which are sent as struct dstored_quads has them: codes, and
 * behind them, from scales_at on, scales of all rows as float32 and then their zero points; GGUF's blocks as they are
 * (struct dstored_gguf) ---- */
struct dstored_quads;
int64_t quads_codes_bytes_a_row(const struct weight_part *part, int64_t in);
int64_t quads_groups_a_row(const struct weight_part *part, int64_t in);
int64_t quads_scales_bytes_a_row(const struct weight_part *part, int64_t in);
void quads_fill(const struct layout_rows *r);
struct dstored_quads quads_stored(const struct weight_part *part, struct dquads q, int64_t in, int64_t n_rows,
                                  const char *staged, int64_t scales_at);
