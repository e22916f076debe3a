/* target.h - a tensor that is to be written: where its numbers come from, and how they are stored.
 *
 * Numbers are read as float32, row by row, through the storage that the checkpoint has, and changed as converters to
 * GGUF change them: rows and columns in another order, 1 + w, -exp(w), a matrix turned. */
#pragma once

#include "base/arena.h"
#include "base/status.h"
#include "core/weight.h"
#include "quantize/mix.h"

enum target_change { CHANGE_NONE, CHANGE_PLUS_ONE, CHANGE_MINUS_EXP };

struct target {
    const char *name;
    int n_dims;
    uint64_t dims[4];                // innermost first
    const struct weight_part *parts; // [n_parts], one under another, each of as many rows; of vectors each is a row
    int n_parts;
    bool is_vector;
    int64_t rows, cols;             // of all parts together
    const int32_t *row_of, *col_of; // where a row, and a column, is among the parts' own; NULL: where it is here
    enum target_change change;
    const float *values; // [rows, cols] in place of parts; NULL: none
    /* Of DeepSeek's kv_b_proj: the keys' rows of each head, turned. values are made when they are needed. */
    int turn_heads;
    int64_t turn_step; // rows of a head in parts
    struct storage to;
    uint64_t offset; // of its data
};

uint64_t target_bytes(const struct target *t);

/* Row `row`, to out [cols]. Thread-safe after target_prepare, between which and target_done values may be held. */
enum status target_prepare(struct target *t, struct error *err);
void target_done(struct target *t);
void target_row(const struct target *t, int64_t row, float *out);
