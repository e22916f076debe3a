/* imatrix.h - the importance of a matrix's columns: the mean square of what they read, in llama.cpp's GGUF layout.
 *
 *     NAME.in_sum2   f32 [cols, n]    sums of squares, of each of n matrices (experts; 1 where there are none)
 *     NAME.counts    f32 [1, n]       rows that were summed
 *     general.type   "imatrix";  imatrix.datasets, imatrix.chunk_count, imatrix.chunk_size
 *
 * NAME is the tensor's in a GGUF file ("blk.0.ffn_down.weight"), and where a model has no such name that of its
 * checkpoint. */
#pragma once

#include "quantize/calibrate/calibrate.h"

/* Measures by c (whose see is not looked at) and writes the file, whole or not at all; whether path can be
 * written is known before anything is measured. dataset: the text's name.
 * *n_matrices: those that were seen. */
enum status imatrix_write(const struct calibration *c, const char *dataset, const char *path, int *n_matrices,
                          struct error *err);

struct imatrix;
enum status imatrix_open(const char *path, struct imatrix **out, struct error *err);
void imatrix_free(struct imatrix *m); // NULL is fine

/* Means of n_matrices matrices of cols columns, [n_matrices][cols], and 1 throughout for one that nothing was sent to;
 * *out is NULL where the file has none of the name. ERR_FORMAT: it has another size. */
enum status imatrix_find(const struct imatrix *m, const char *name, int64_t cols, int64_t n_matrices, const float **out,
                         struct error *err);
