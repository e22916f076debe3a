/* rows.h - rows.cu: embedding, rows taken, elements converted; ropes and their angles. */
#pragma once

#include "backend/cuda/value.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- rows.cu ---- */
struct drope { // core/rope.h with tables on the device
    int dim, pairing, by_length;
    const float *inv_freq, *inv_freq_long;
    float factor, factor_long;
    int64_t original_context;
    double theta, scaling;
    float *cos_sin; // [tokens][dim], of the step: cos [dim/2], then sin [dim/2]
};
enum { CUDA_MAX_ROPES = 4 };
struct dropes {
    int n;
    struct drope rope[CUDA_MAX_ROPES];
};
/* Largest sizes that a step gathers: n arrays, `pitch` rows apart. */
struct drow_absmax {
    uint32_t *at;
    int64_t pitch;
    int n;
};
/* The table's rows are those of tokens first, first + 1, ...; a token without one has zeros. And, in the same node, the
 * angles of all rows for the ropes given, and zeros for the step's rows in `mosts`. */
void launch_embed(const struct launch *l, struct dweight table, int first, float scale, struct dmat y,
                  const struct dropes *ropes, const struct drow_absmax *row_absmax);
/* STATES: row t of y is row row[t] of sources[*source], which may be at NULL; -1: zeros. */
struct dstates {
    const struct dmat *sources;
    const int32_t *row, *source;
};
/* The same as launch_embed otherwise. */
void launch_states(const struct launch *l, struct dstates from, struct dmat y, const struct dropes *ropes,
                   const struct drow_absmax *row_absmax);
void launch_concat(const struct launch *l, int n_rows, const struct dmat *x, int n, struct dmat y); // n <= 3
void launch_take_rows(const struct launch *l, struct dmat x, struct dmat y);
void launch_convert(const struct launch *l, int n_rows, struct dmat x, struct dmat y); // to y's element
/* The same with x's columns in another order: y[r, k] = x[r, order[k]]. */
void launch_order_columns(const struct launch *l, int n_rows, struct dmat x, const int32_t *order, struct dmat y);

#ifdef __cplusplus
}
#endif
