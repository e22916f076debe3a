/* place.h - place.cu: when weights are loaded; not nodes of a step. */
#pragma once

#include "backend/cuda/value.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- place.cu: when weights are loaded; not nodes of a step ---- */
/* Rows of a matrix as stored, one after another; a value is its element times the scale of its row and columns. */
struct dstored {
    const void *at;
    int64_t in;
    enum element element; // F32, F16, BF16 or E4M3; or MXFP4: two codes to a byte, the low nibble first
    const float *scale;   // [rows][n_scales], each of scale_cols columns; NULL: none
    int64_t n_scales, scale_cols;
    const uint8_t *byte_scale; // likewise, of MXFP4: e8m0
};
/* What the placing of a matrix did to it. */
struct dplaced {
    unsigned long long n_unreal;  // values that are not numbers
    unsigned long long n_beyond;  // values that the element does not reach: over its largest in f16, not finite in e4m3
    unsigned long long n_lost;    // not zero as stored, zero as placed
    unsigned long long n_present; // not zero as stored
    double squared_error, squared;
};
/* Rows [first_row, first_row + n_rows) of `to`, whose memory they are written to; counts on the device, added to, or
 * NULL. Rows of e4m3 with a scale each become e4m3 with nothing but their exponents changed, if need be. */
void launch_place_rows(cudaStream_t stream, const struct dstored *x, int64_t n_rows, struct dweight to,
                       int64_t first_row, struct dplaced *counts);

/* Random elements of a weight: N(0, deviation), or uniform in [0.9, 1.1]. */
struct ddummy {
    uint64_t key;
    float deviation;
    bool around_one;
};
void launch_fill_dummy(cudaStream_t stream, const struct ddummy *d, int64_t first, int64_t n, void *at, enum element e);

#ifdef __cplusplus
}
#endif
