/* stats.h - what the matrices of layers read of a text, as methods that are calibrated want it: sizes of columns, and
 * the sums of products of pairs of columns.
 *
 * Matrices that read the same rows share one. Sums of pairs take 4 n^2 bytes for n columns, so that a model is gone
 * through several times where all of them would take more than may be kept at once. */
#pragma once

#include "quantize/calibrate/calibrate.h"

struct input_stats {
    float *mean, *most; // [n]: mean and largest |x|
    float *h;           // [n][n]: sum x x^T; NULL: not wanted
    int64_t n, n_rows;
};

struct stats;

/* matrices [n]: of which statistics are wanted, in the order in which they will be asked for. max_bytes: of pairs. */
struct stats *stats_new(const struct calibration *c, const struct bound *const *matrices, size_t n, bool pairs,
                        size_t max_bytes);
void stats_free(struct stats *s); // NULL is fine

/* Of matrix i; runs the model where they are not there. They live until the next call. n_rows is 0, and everything 0,
 * for a matrix that read nothing. */
enum status stats_of(struct stats *s, size_t i, const struct input_stats **out, struct error *err);
