/* plan_block.h - a batch plan as one block of bytes, for another process. */
#pragma once

#include "base/buf.h"
#include "base/status.h"
#include "base/str.h"
#include "core/backend_types.h"
#include "core/program.h"

/* Appends it, with states_width floats a token of its states; n_groups of block tables. */
void plan_block_put(const struct batch_plan *plan, int n_groups, int64_t states_width, struct buf *out);

/* Bytes that it takes at most, with tables of so many entries a sequence. */
size_t plan_block_most(struct bucket bucket, int n_groups, const int *table_width, int64_t states_width);

/* Reads it into `plan`, made for the bucket (batch_plan_init, and add_states where there is a width). ERR_FORMAT: it is
 * none, or names tokens, blocks or slots that there are not. */
enum status plan_block_get(struct batch_plan *plan, struct bucket bucket, const struct program *p,
                           const struct cache_config *cache, int64_t states_width, struct str bytes, struct error *err);
