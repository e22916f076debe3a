/* block_run.c - see block_run.h. */
#include "backend/cuda/cache/block_run.h"

#include "backend/cuda/cache/cache.h"
#include "backend/cuda/device/device.h"
#include "backend/cuda/value.h"

#include <string.h>

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

// ---- to and from another engine ---------------------------------------------------------------------------------

/* Of states, which may be able to go back. */
static int64_t tail_bytes(const struct loaded *loaded, int group) {
    return loaded->program->groups[group].kind == CACHE_STATE ? (int64_t)sizeof(int64_t) : 0;
}

static int64_t handed_bytes(const struct loaded *loaded, int group) {
    return cuda_cache_block_bytes(loaded, group, loaded->block_size) + tail_bytes(loaded, group);
}

/* Copies to and from memory that is not pinned end, or have taken what they copy, before they return; the stream is
 * waited for all the same, so that the next step may begin on another one. */
static enum status move(struct loaded *loaded, int group, int block, char *out, const char *in, struct error *err) {
    int n_layers = MAX(loaded->program->groups[group].n_layers, 1);
    size_t bytes = (size_t)(cuda_cache_block_bytes(loaded, group, loaded->block_size) / n_layers);
    struct block_run there = block_run_of(loaded, group, block);
    struct block_run here = {out ? out : (char *)(uintptr_t)in, bytes};
    if (loaded->device->fault.status != OK) {
        *err = loaded->device->fault;
        return err->status;
    }
    TRY(device_enter(loaded->device, err));
    TRY(out ? block_run_copy(loaded, group, there, here, bytes, err)
            : block_run_copy(loaded, group, here, there, bytes, err));
    DEVICE_TRY(loaded->device, err, cudaStreamSynchronize(loaded->device->stream), "handing over a block of group %d",
               group);
    return OK;
}

static enum status get(struct loaded *loaded, int group, int block, void *out, struct error *err) {
    TRY(move(loaded, group, block, out, NULL, err));
    if (tail_bytes(loaded, group) > 0) {
        int64_t base = loaded->state_base[block];
        memcpy((char *)out + cuda_cache_block_bytes(loaded, group, loaded->block_size), &base, sizeof base);
    }
    return OK;
}

static int64_t base_in(const struct loaded *loaded, int group, const void *in) {
    int64_t base = 0;
    if (tail_bytes(loaded, group) > 0)
        memcpy(&base, (const char *)in + cuda_cache_block_bytes(loaded, group, loaded->block_size), sizeof base);
    return base;
}

/* ERR_FORMAT: a state that can go back lags behind its n_tokens by less than nothing or more than its rows. So that a
 * step may begin there (step/plan.c, write_bases). */
static enum status check(const struct loaded *loaded, int group, int32_t n_tokens, const void *in, struct error *err) {
    int64_t base = base_in(loaded, group, in);
    if (loaded->n_back > 0 && (base < n_tokens - (int64_t)loaded->n_back || base > n_tokens || base < 0))
        return fail(err, ERR_FORMAT,
                    "a recurrent state that was handed over has %lld tokens; behind %d it may lag by %d",
                    (long long)base, n_tokens, loaded->n_back);
    return OK;
}

static enum status put(struct loaded *loaded, int group, int block, const void *in, struct error *err) {
    int64_t base = base_in(loaded, group, in);
    if (base < 0 || base > INT32_MAX)
        return fail(err, ERR_FORMAT, "a recurrent state that was handed over has %lld tokens", (long long)base);
    TRY(move(loaded, group, block, NULL, in, err));
    if (tail_bytes(loaded, group) > 0)
        loaded->state_base[block] = (int32_t)base;
    return OK;
}

const struct backend_handover cuda_handover = {.bytes = handed_bytes, .get = get, .put = put, .check = check};
