/* folds.h - scales that move from activations into weights: of what a set of matrices reads, column by column.
 *
 *     x W^T = (x / s) (W s)^T        the op before gives x / s: its vector, or the rows of its matrix, are divided
 *
 * norm -> q, k, v        norm -> gate, up        up -> down        v -> o, where no heads share values
 *
 * of families whose layers are just that: llama, mistral, qwen2, qwen3, smollm3. Others are refused, since something
 * else may read what the op before gives.
 *
 * AWQ (Lin et al., 2024): s = mean |x|^a, and a of 21 between 0 and 1 is the one whose rounded weights, on what was
 * read, give the least error. SmoothQuant (Xiao et al., 2023): s = max |x|^1/2 / max |W|^1/2, behind norms alone. */
#pragma once

#include "quantize/calibrate/stats.h"
#include "quantize/layers.h"

struct fold {
    const struct bound *before, *before_bias; // the vector, or the matrix whose rows are divided; its bias, or NULL
    size_t readers[3];                        // of layers.items
    int n_readers;
    float *scale; // [columns]
};

struct folds {
    struct fold *items; // [n]
    size_t n;
};

/* What can be folded in the model; with `all`, into matrices too. */
enum status folds_find(const struct model *m, const struct bound_list *taken, const struct layer_matrices *layers,
                       bool all, struct folds *out, struct error *err);
void folds_release(struct folds *f);

/* The scale of one fold, from the statistics of what its readers read. */
enum status fold_awq(struct fold *f, const struct layer_matrices *layers, const struct input_stats *stats,
                     struct error *err);
void fold_smooth(struct fold *f, const struct layer_matrices *layers, const struct input_stats *stats);

/* Row `row` of a matrix, or element `row` of a vector (n is 1), as the folds leave it, in place. */
void folds_apply(const struct folds *f, const struct layer_matrices *layers, const struct bound *b, int64_t row,
                 float *x, int64_t n);
bool folds_change(const struct folds *f, const struct bound *b); // a tensor that would only be copied otherwise
