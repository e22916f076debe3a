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
    int64_t row, row_in_part, n;
    char *to;
    int64_t scales_at;
};

struct layout {
    enum qformat_id format;
    enum dtype dtype;  // of what is stored
    enum element sent; // as; what the host decodes goes as float32
    void (*fill)(const struct layout_rows *r);
    bool has_dummies;   // random weights can take its place
    bool is_packed;     // several values to a stored word: columns lie one after the other
    bool is_e4m3;       // LINEARs and experts multiply by it as it is stored
    bool may_be_e4m3;   // or by e4m3 that it is made, if `quantization` asks
    bool wants_float32; // what most weights want decides what products are made in
};

/* NULL: the device has no way to take the part. Of others it does: */
const struct layout *layout_of(const struct weight_part *part);

enum element layout_sent(const struct weight_part *part); // what its rows are sent as, and a dummy is made in
void layout_fill(const struct layout_rows *r);
int64_t layout_scales_a_row(const struct weight_part *part, int64_t in); // that are sent
int64_t layout_row_bytes(const struct weight_part *part, int64_t in);    // sent, scales among them
