/* cache.h - caches: addresses for all blocks, memory behind those that are used. */
#pragma once

#include "backend/cuda/cuda.h"

enum element kv_element(const struct loaded *loaded); // once the weights are placed
int64_t cuda_cache_block_bytes(const struct loaded *loaded, int group, int block_size);
/* Of `bytes` for blocks of all groups, what pieces that are not full waste at most. */
int64_t cache_waste(const struct loaded *loaded, const struct program *p, int block_size, int64_t bytes);
enum status cuda_alloc_cache(struct loaded *loaded, const struct cache_config *config, struct error *err);
enum status cuda_commit_cache(struct loaded *loaded, int group, int *n, struct error *err);
/* Those of load_options.caches_of, if there is one; memory that is mapped later has its addresses already. */
void caches_share(struct loaded *loaded);
void caches_release(struct loaded *loaded);
