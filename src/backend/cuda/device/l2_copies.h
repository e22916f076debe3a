/* l2_copies.h - l2_copy.c: weights once more on either side of the L2. */
#pragma once

#include "backend/cuda/cuda.h"

enum status l2_copy_check(struct error *err); // whether GYRE_L2_COPIES, if it is set, is 0 or force
/* Bytes for all copies, once all weights have been counted; 0: there are none. */
enum status l2_copy_room(struct loaded *loaded, const struct program *p, int64_t *n_bytes, struct error *err);
enum status l2_copy_make(struct loaded *loaded, struct error *err); // once they are there
bool l2_copy_wanted(const struct device *d);
enum status l2_copy_sides(struct loaded *loaded, struct error *err); // finds b->l2_copy.sides, once
void l2_copy_release(struct loaded *loaded);
