/* weight.h - a named constant of a model, in whatever format and place the checkpoint stores it.
 *
 * A weight is a matrix [out, in] (y = x W^T) made of parts: runs of rows, each a strided view of one
 * tensor of the file. Parts let a family ask for the matrix that its program wants without moving a byte:
 *
 *     q_proj [H*hd, D]  ┐                    parts 0..2 of `qkv`
 *     k_proj [G*hd, D]  ├─►  qkv [(H+2G)*hd, D]
 *     v_proj [G*hd, D]  ┘
 *
 * and the same with heads picked out of an interleaved projection (Qwen3.5: a head's query rows, then its
 * gate rows), a transposed tensor (GPT-OSS experts: col_stride > 1) or a stack of experts. A backend that
 * wants one contiguous block copies the parts when the weight is placed; the CPU reads them where they lie.
 *
 * A vector (norm weight, bias, sinks) of n elements is a weight with out == n and in == 1, so that the biases of
 * fused projections are parts too.
 * Parts point into the checkpoint's map and live as long as the checkpoint. */
#pragma once

#include "base/arena.h"
#include "core/axis.h"
#include "core/dtype.h"
#include "core/qformat.h"

struct weight_part {
    const struct qformat *format;
    enum dtype dtype; // of the elements at data; for packed formats that of the packed words
    const void
        *data; // the part's element (0, 0); never NULL but in a phantom checkpoint, and of dummies that a device makes
    int64_t n_rows;                 // rows of the weight that this part gives
    int64_t row_stride, col_stride; // in elements of data
    struct qscale scale;            // of quantised formats
    int64_t first_row;              // this part's row 0 in the stored tensor: scales are indexed from there
    int64_t first_col;              // likewise, of words of integers
    const struct qpacked *packed;   // of those, else NULL
    const struct qcodes *codes;     // of codes that a table explains, else NULL; first_col counts there too
    struct dim rows;                // what its rows belong to
    const char *module;             // of the checkpoint that it is of, "model.layers.3.self_attn.q_proj"; NULL: none
};

struct weight {
    const char *name; // of the first tensor, for messages: "model.layers.3.self_attn.q_proj.weight"
    int64_t out, in;
    int n_parts;
    struct weight_part *parts; // [n_parts], rows in order
    struct dim cols;           // what its columns belong to
};

/* Rows [row, row + n) of w, dequantised, to out [n, in]. The reference for every format. */
void weight_rows_f32(const struct weight *w, int64_t row, int64_t n, float *out);

/* All elements of a vector (in == 1), to out [w->out]. */
void weight_vector_f32(const struct weight *w, float *out);

/* The part that holds `row`, and the row within it. */
const struct weight_part *weight_part_of(const struct weight *w, int64_t row, int64_t *row_in_part);

/* The part's columns from `first` on, as a part. What is quantised in blocks of columns can be cut between blocks
 * alone: first is a multiple of weight_part_block. */
struct weight_part weight_part_cols(const struct weight_part *p, int64_t first);
int64_t weight_part_block(const struct weight_part *p); // 1 where columns have no blocks

/* Rows [first, first + n) of a part. */
struct weight_part weight_part_rows(const struct weight_part *p, int64_t first, int64_t n);

/* Bytes that the file stores for this weight, scales included. */
int64_t weight_stored_bytes(const struct weight *w);
