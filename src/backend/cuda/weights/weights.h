/* weights.h - weights on the device: which element and place each gets, and how they come there. */
#pragma once

#include "backend/cuda/cuda.h"

enum status weights_place(struct loaded *loaded, struct error *err);
const struct placed *weight_on_device(const struct loaded *loaded, const struct weight *w); // NULL for NULL
size_t placed_slot(const struct loaded *loaded, const struct weight *w); // where it is in the table, or would be
struct placed *placed_on_device(const struct loaded *loaded, const struct weight *w);
struct dexpert { // of a matrix of experts in quads, each for itself
    int64_t rows, bytes;
};
struct dexpert placed_expert(const struct placed *p); // rows 0: the matrix is one
int64_t placed_matrix_bytes(const struct placed *p);  // without scales a row
void weights_release(struct loaded *loaded);

/* Matrices that take an eighth more bytes on the device than in the checkpoint, or more: how many, and as what most of
 * their bytes are stored and placed. */
struct grown {
    int n, bits;                        // on the device, an element
    const char *format;                 // "mxfp4"
    int64_t stored_bytes, placed_bytes; // of all
};
struct grown weights_grown(const struct loaded *loaded);

/* ---- quads.c ---- */
/* Whether the LINEAR's weight is kept in four bits, and how: on fast devices, where products are in float16, and all
 * its parts have one format that tiles keep (quads.h); or are numbers, and may become such a format: made, of
 * load_options.
 */
bool quads_of(const struct loaded *loaded, const struct program *p, const struct op *op, bool made, struct dquads *out);
/* Likewise, where its parts are of several kinds and no GATED_ACT follows: runs of rows of one kind each. How many; 0:
 * it is not kept so. */
enum { MOST_RUNS = 3 }; // q, k and v: placed.rest holds the others
struct quads_run {
    struct dquads kind;
    int64_t rows;
};
int quads_runs(const struct loaded *loaded, const struct program *p, const struct op *op, bool made,
               struct quads_run out[MOST_RUNS]);
/* Likewise both matrices of a MOE_FFN as they are stored; of the one in the slot. Each expert's is a matrix of its own
 * (placed.blocks). */
bool quads_of_experts(const struct loaded *loaded, const struct op *op, int slot, struct dquads *out);

/* Columns in the order of their groups, where the checkpoint sorted them by something else (act-order); NULL: they are.
 * The caller frees it. */
int32_t *quads_column_order(const struct weight *w);

/* ---- upload.c ---- */
/* All that has a place goes there; counts [n_slots] on the device, in the order of b->placed. */
enum status upload_weights(struct loaded *loaded, struct dplaced *counts, struct error *err);
