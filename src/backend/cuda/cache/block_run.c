/* block_run.c - see block_run.h. */
#include "backend/cuda/cache/block_run.h"

#include "backend/cuda/device/device.h"
#include "backend/cuda/value.h"

struct block_run block_run_of(const struct loaded *loaded, int group, int32_t id) {
    const struct group_cache *c = &loaded->caches[group];
    int64_t bytes = c->block_elements * element_bytes(c->element);
    BUG_IF(id < 0 || id >= c->n_blocks + c->n_host);
    if (id < c->n_blocks)
        return (struct block_run){(char *)c->at + cache_place(c, id) * bytes, (size_t)(c->piece_blocks * bytes)};
    return (struct block_run){(char *)c->host + (id - c->n_blocks) * bytes, (size_t)(c->n_host * bytes)};
}

enum status block_run_copy(struct loaded *loaded, int group, struct block_run from, struct block_run to, size_t bytes,
                           struct error *err) {
    int n_layers = loaded->program->groups[group].n_layers;
    if (n_layers == 0)
        return OK;
    bool at_once = MAX(from.pitch, to.pitch) <=
                   (size_t)loaded->device->most_pitch; // else layers of large caches lie too far apart for it
    for (int i = 0, n = at_once ? 1 : n_layers; i < n; i++)
        DEVICE_TRY(loaded->device, err,
                   at_once ? cudaMemcpy2DAsync(to.at, to.pitch, from.at, from.pitch, bytes, (size_t)n_layers,
                                               cudaMemcpyDefault, loaded->device->stream)
                           : cudaMemcpyAsync(to.at + (size_t)i * to.pitch, from.at + (size_t)i * from.pitch, bytes,
                                             cudaMemcpyDefault, loaded->device->stream),
                   "copying a block of cache group %d", group);
    return OK;
}
