/* op_oracle.h - what oracles of ops are written with: pieces of formulas in double precision, and what a device rounds.
 */
#pragma once

#include "op_rig.h"

/* ---- pieces of formulas ---- */

#define EPS 0x1p-24 // half a unit of float32

double *rig_wide_input(struct rig *rig, int i, int seq, int row);
double rig_sigmoid(double x);

/* y [out] = W [out, in] x. Returns the largest root of a sum of squared terms: the size that a sum without
 * cancellation would have. */
double rig_multiply(const double *w, int64_t out, int64_t in, const double *x, double *y);

/* y = x / rms(x) * w (+ 1 with plus_one); w NULL: 1 */
void rig_rms_norm(const double *x, const double *w, int n, double eps, bool plus_one, double *y);

/* ---- what a device rounds ----
 *
 * Tables, caches and what products read are kept in 16 bits or e4m3 (the rig's own table holds what it becomes there);
 * sums, and what else ops make, are float32. An oracle that rounds what is read, as it is defined to be read, leaves
 * the arithmetic alone to be judged. On the CPU and in float32 nothing is rounded. */

/* How a product may read a row of its input, by which path timing chose and who wrote it. */
enum rig_reading {
    READING_AS_IT_IS = -1, // nothing rounded
    READING_16,            // the element that products are made in
    READING_E4M3, // where the weight is e4m3: elements with a scale a row, the largest becoming 28; of the value itself
    READING_E4M3_OF_16,    // of the value as it is kept in 16 bits
    READING_E4M3_AFTER_16, // elements of that, with the scale of the value itself
    N_ROW_READINGS,
    READING_BLOCKS =
        N_ROW_READINGS, // six more: a scale for each 32, 64 or 128 columns, of the value itself or of 16 bits
    N_READINGS = READING_BLOCKS + 6,
    READING_POWERS = N_READINGS, // five more, of a gated product: e4m3 of 16 bits by one of the powers of two for which
                                 // the largest is 1 to 28
    N_GATED_READINGS = READING_POWERS + 5,
};

void rig_round(const char *dtype, double *x, int64_t n); // to "float16" or "bfloat16"; in others (NULL too) as it is
void rig_read(const char *dtype, enum rig_reading how, double *x, int n);
double rig_distance(const double *a, const double *b, int n); // sum (a - b)^2
/* To e4m3 with a scale of their own, as rows of caches are kept. */
void rig_round_e4m3(double *x, int n);
/* A row of a weight: of eight scales the one that leaves least off, times a power of two (place.cu). */
void rig_round_weight_row(double *x, int n);
/* As a row of keys or values is kept by a cache of kv_dtype ("fp8", "int8"); NULL: of what products are made in,
 * `dtype`. */
void rig_round_cached(const char *dtype, const char *kv_dtype, double *x, int n);
/* Likewise of "int4" (core/kv_int4.h, said once more). False: whether one number or another is stored turns on so
 * little that float32 may see it otherwise. */
bool rig_round_int4(double *x, int n);
bool rig_is_int4(const char *kv_dtype);
/* The element in which ATTENTION reads queries: 16 bits where a device's fast kernels take the heads, else "float32".
 */
const char *rig_query_dtype(const char *dtype, const char *kv_dtype, const struct attention_args *a, int block_size);
