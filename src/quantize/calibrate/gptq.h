/* gptq.h - rounding of the second order: what rounding a column takes from a product, the columns behind it give back.
 *
 * Frantar et al., GPTQ (2023). With H = sum x x^T over the rows that a matrix reads, columns are rounded one after
 * another, those with the largest H[i][i] first, and the error of each is spread over those that are left, by the
 * Cholesky factor of the inverse of H (damped by a hundredth of its mean diagonal). Scales of groups are chosen before
 * any column is rounded, so groups are of neighbouring columns whatever the order ("static groups"). */
#pragma once

#include "base/status.h"
#include "quantize/round/codes.h"

struct gptq;

/* h [n][n], symmetric; borrowed for the call. A column that was never other than 0 is rounded by itself. O(n^3) time,
 * one thread; 8 n^2 bytes. ERR_MEMORY. */
enum status gptq_new(const float *h, int64_t n, struct gptq **out, struct error *err);
void gptq_free(struct gptq *g); // NULL is fine

/* A row of int4, as codes_write; work is n floats. Thread-safe. */
void gptq_row(const struct gptq *g, const struct codes *c, const float *x, float *work, uint8_t *codes, uint8_t *scales,
              float *y);
