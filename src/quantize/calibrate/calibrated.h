/* calibrated.h - what a text is good for when a folder of safetensors is written: GPTQ, AWQ, SmoothQuant. */
#pragma once

#include "quantize/calibrate/folds.h"
#include "quantize/calibrate/gptq.h"

enum method {
    METHOD_NEAREST, // no text is needed
    METHOD_GPTQ,    // gptq.h
    METHOD_AWQ,     // folds.h
    METHOD_SMOOTH,  // folds.h
};

struct calibrated {
    enum method method;
    const struct layer_matrices *layers;
    const struct bound **matrices; // [layers->n]
    struct stats *stats;
    struct folds folds;
    struct gptq *gptq; // of the matrix that was prepared last
    int n_unread;      // matrices that read nothing of the text, and are rounded to the nearest
};

/* Runs the model over the text where the method wants it. c, layers: borrowed. */
enum status calibrated_begin(struct calibrated *k, enum method method, const struct calibration *c,
                             const struct layer_matrices *layers, struct error *err);
void calibrated_release(struct calibrated *k);

/* Before the rows of matrix i. */
enum status calibrated_prepare(struct calibrated *k, size_t i, struct error *err);

/* A row of a matrix: x [cols] as stored becomes as it is quantised, y what is read back; work is cols floats.
 * Thread-safe after calibrated_prepare. */
void calibrated_row(const struct calibrated *k, const struct layer_matrix *m, int64_t row, float *x, float *work,
                    uint8_t *codes, uint8_t *scales, float *y);

/* The bytes of a vector that a fold changes, the caller's; NULL: t is copied. */
void *calibrated_vector(const struct calibrated *k, const struct bound_list *taken, const struct stored_tensor *t);
