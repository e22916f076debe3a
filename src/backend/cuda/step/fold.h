/* fold.h - ops that need no node of their own (fold.c), and neighbours that may be one node (fuse.c). Seen in the
 * program alone. */
#pragma once

#include "backend/cuda/cuda.h"

enum fold fold_of(const struct program *p, const struct op *op);
/* The NORM that makes in[1] of this ADD_NORM and is done in its node; NULL: none. */
const struct op *norm_folded_into(const struct program *p, const struct op *add);
/* The GATED_ADD without a gate that makes in[1] of this ADD_NORM and is done in its node in steps of few rows; NULL:
 * none. */
const struct op *sum_folded_into(const struct program *p, const struct op *add);
/* The ALL_REDUCE that makes in[1] of this ADD_NORM, or what is normed into that, and is done in its node in steps of
 * few rows; NULL: none. */
const struct op *reduce_folded_into(const struct program *p, const struct op *add);
void fold_sums(struct executable *exe); // compiled_op.sum and reduce, once all ops are there
/* What this LINEAR reads of a step in order, where the TAKE_ROWS before it is folded; else NO_VAL. */
val rows_in_order(const struct program *p, const struct op *op);
/* Values [p->n_values] live as long as the nodes that folded ops went into need them. */
void fold_lives(const struct program *p, struct value *values);

/* Whether op i is a LINEAR that only the next reads, a GATED_ACT of its two halves. */
bool gated_act_follows(const struct program *p, int i);
/* Whether op i is a QKV_PREP that only the next reads, an ATTENTION over the cache that it writes. */
bool attention_follows(const struct program *p, int i);
/* Whether ops i, i + 1 and i + 2 are a SHORT_CONV, the DELTA_RULE that alone reads it, of the same cache, and the gated
 * NORM of heads that alone reads that. */
bool delta_layer_follows(const struct program *p, int i);
/* Values [p->n_values] live as long as fused nodes need them. */
void fuse_lives(const struct program *p, struct value *values);
