/* dense_shape.h - shapes of dense copies of caches (dense.h), and the programs that make and fill them. */
#pragma once

#include "backend/xla/xla.h"

/* Blocks that a fill brings at once, or a drain: the fewer or the more. */
enum { FILL_FEW = 32, FILL_MANY = 512 };
enum { FILL_ROW, FILL_SLOT, FILL_BLOCK, FILL_TOKENS, FILL_INTS }; // [FILL_INTS][n]; of none: row n_seqs, block n_blocks

bool dense_is_paged(const struct loaded *l, int group); // has blocks, not states
bool dense_has(const struct loaded *l, int array);      // a copy: if it is of such a group
/* Whether a launch of this shape is given an array of the caches itself, or a copy of it in its place. */
bool dense_stands_for(const struct loaded *l, const struct launch_shape *s, int array);
/* Slots of a group, and the shape of an array's copy, for launches of this shape. */
int dense_width(const struct loaded *l, const struct launch_shape *s, int group);
struct shape dense_shape(const struct loaded *l, const struct launch_shape *s, int array);

/* ---- lower/lower_dense.c ---- */
void xla_lower_dense_zeros(const struct loaded *l, const struct launch_shape *s, struct buf *out);
/* Arguments: the group's arrays, their dense ones, ints. Those that are filled are given away, and are the results. */
void xla_lower_fill(const struct loaded *l, const struct launch_shape *s, int group, int n, struct buf *out);
void xla_lower_drain(const struct loaded *l, const struct launch_shape *s, int group, int n, struct buf *out);
