/* calibrate.h - what projections read while a model reads a text.
 *
 * The text is cut into chunks of the same number of tokens, each a sequence of its own from position 0, and computed on
 * the CPU in float32. Whoever listens is told the rows that each matrix is about to multiply: all of a chunk's, and of
 * an expert those of the tokens that were sent to it, for its way down too. The head is not among them. */
#pragma once

#include "model/model.h"

/* n rows of `width` numbers, `stride` apart at x, or those that `rows` names; b: the matrix that reads them. */
struct calibration_input {
    const struct bound *b;
    const float *x;
    int64_t stride, width, n;
    const int32_t *rows; // [n]; NULL: the first n
    int64_t reading;     // the same number for matrices that read the same rows, which are told one after another
};

static inline const float *calibration_row(const struct calibration_input *in, int64_t i) {
    return in->x + (in->rows ? in->rows[i] : i) * in->stride;
}

struct calibration {
    const struct model *model;
    const struct bound_list *taken; // what model_open noted
    const int32_t *tokens;          // [n_tokens], at least one chunk
    int64_t n_tokens;
    int chunk, n_threads;
    void (*see)(void *see_context, const struct calibration_input *in);
    void *see_context;
    bool (*step)(void *context, int64_t done, int64_t total); // tokens; false: stop; NULL: nobody asks
    void *context;
};

/* ERR_ARG: less than a chunk of tokens. What is behind the last whole chunk is left out. */
enum status calibrate(const struct calibration *c, struct error *err);
