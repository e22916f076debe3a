/* cache.h - the arrays of caches on a device: their shapes, zeros at the start, copies among their blocks. */
#pragma once

#include "backend/xla/xla.h"

/* What each layer's cache is made of, from the program's ops: fills l->layers. */
void cache_list(struct loaded *l);
int64_t cache_block_bytes(const struct loaded *l, int group, int block_size); // of all layers

/* What the arrays will be: l->caches, without memory behind them. */
void cache_shape(struct loaded *l, const struct cache_config *config);
/* Makes the arrays, zeroed. */
enum status cache_alloc(struct loaded *l, const struct cache_config *config, struct error *err);
void cache_release(struct loaded *l);
int64_t cache_bytes(const struct loaded *l);

/* Does the copies of a plan, one after the other. */
enum status cache_copy_blocks(struct loaded *l, const struct cache_copy *copies, int n, struct error *err);
