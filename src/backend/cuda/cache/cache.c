/* cache.c - the memory of caches: addresses for all blocks that there may ever be, memory behind those that are used.
 *
 * A KV or latent group is a range of addresses (virtual.h) that is mapped in pieces. A piece holds so many blocks of
 * every layer, so that a few calls make blocks usable in all layers at once, while blocks of a layer still lie side by
 * side:
 *
 *     piece 0                                                         piece 1
 *     [ layer 0: block 0 .. C-1 | layer 1: block 0 .. C-1 | ... | - ] [ layer 0: block C .. 2C-1 | ...
 *       <----------- C places ->                                  <-- P places in all: a piece is a multiple of 2 MiB
 *
 * Kernels know one step from block to block: block b of a layer stands at the layer's address plus place(b) times that,
 * with place(b) = b / C * P + b % C (cache_place), which the plan writes into its tables in place of b. Slots of
 * recurrent groups are few and all used at once: one allocation.
 *
 * Measured: docs/lab/cuda_memory.md. */
#include "backend/cuda/cache/cache.h"
#include "backend/cuda/cache/handover.h"
#include "backend/cuda/cuda.h"
#include "backend/cuda/device/device.h"
#include "backend/cuda/value.h"
#include "core/kv_int4.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LEAST_PIECE = 32 << 20, MOST_PIECE = 256 << 20 };

enum element kv_element(const struct loaded *loaded) { return loaded->kv_is_set ? loaded->kv : loaded->product; }

/* Floats of a layer's state that may be kept in 16 bits: the delta rule's. The convolution's inputs before them stay
 * float32. */
static int64_t delta_floats(const struct program *p, const struct cache_group *g) {
    for (int i = 0; i < p->n_ops; i++) {
        const struct delta_args *a = &p->ops[i].args.delta_rule;
        if (p->ops[i].code == OP_DELTA_RULE && &p->groups[p->caches[a->cache].group] == g)
            return (int64_t)a->n_value_heads * a->key_dim * a->value_dim;
    }
    return 0;
}

static enum element cache_element(const struct loaded *loaded, const struct cache_group *g) {
    if (g->kind == CACHE_STATE)
        return delta_floats(loaded->program, g) > 0 ? loaded->device->state : ELEMENT_F32;
    return g->kind == CACHE_KV ? kv_element(loaded) : loaded->product;
}

static int64_t state_elements(const struct loaded *loaded, const struct cache_group *g) {
    int64_t floats = (cache_state_floats(g, loaded->n_back) + 3) / 4 * 4; // slots lie in fours
    if (cache_element(loaded, g) == ELEMENT_F32)
        return floats;
    int64_t narrow = delta_floats(loaded->program, g);
    return 2 * (floats - narrow) + narrow; // elements of 16 bits
}

/* Of 8 bits there are a key's and a value's scale to every slot and head, or one of both, 4 elements each; see kv.cuh.
 */
static int64_t block_elements(const struct loaded *loaded, const struct cache_group *g, int block_size) {
    if (cache_element(loaded, g) == ELEMENT_KV_INT4)
        return kv_int4_block_bytes(g->n_heads, g->k_dim, g->v_dim, block_size);
    int scales = element_bytes(cache_element(loaded, g)) == 1 ? (g->shared_kv ? 1 : 2) * (int)sizeof(float) : 0;
    switch (g->kind) {
    case CACHE_KV: return (int64_t)g->n_heads * (g->k_dim + g->v_dim + scales) * block_size;
    case CACHE_LATENT: return (int64_t)g->k_dim * block_size;
    case CACHE_STATE: return state_elements(loaded, g);
    }
    BUG_IF(true);
}

int64_t cuda_cache_block_bytes(const struct loaded *loaded, int group, int block_size) {
    const struct cache_group *g = &loaded->program->groups[group];
    return block_elements(loaded, g, block_size) * g->n_layers * element_bytes(cache_element(loaded, g));
}

static enum status check_cache(const struct loaded *loaded, const struct program *p, const struct cache_group *g,
                               struct error *err) {
    if (g->kind == CACHE_LATENT && loaded->kv_is_set && loaded->kv != loaded->product)
        return fail(err, ERR_UNSUPPORTED,
                    "kv_cache_dtype: %s has a latent cache (MLA), which has the element of the products on CUDA",
                    p->name);
    if (g->kind == CACHE_KV && kv_element(loaded) == ELEMENT_F32 && loaded->product != ELEMENT_F32)
        return fail(err, ERR_UNSUPPORTED, "kv_cache_dtype: float32 goes with products in float32 (dtype) on CUDA");
    return OK;
}

// ---- how blocks are laid out ------------------------------------------------------------------------------------

/* C and P of the drawing. */
struct pieces {
    int64_t block_bytes; // of a layer, padded if its size fits no piece
    int64_t blocks, places;
};

static int64_t common_divisor(int64_t a, int64_t b) { return b == 0 ? a : common_divisor(b, a % b); }

/* The smallest number of places that fill whole grains with blocks of all layers and hardly anything else: from `least`
 * bytes on, at most MOST_PIECE unless not one block of all layers fits. */
static struct pieces cut_pieces(int64_t block_bytes, int n_layers, int64_t least) {
    struct pieces p = {.block_bytes = block_bytes};
    int64_t unit = VIRTUAL_GRAIN / common_divisor(VIRTUAL_GRAIN, p.block_bytes); // places that fill whole grains
    for (int64_t align = 2; unit * p.block_bytes > MOST_PIECE && align <= VIRTUAL_GRAIN; align *= 2) {
        p.block_bytes = (block_bytes + align - 1) / align * align;
        unit = VIRTUAL_GRAIN / common_divisor(VIRTUAL_GRAIN, p.block_bytes);
    }
    double best = 2;
    for (int64_t places = unit;; places += unit) {
        int64_t blocks = places / n_layers, n_bytes = places * p.block_bytes;
        if (p.blocks > 0 && n_bytes > MOST_PIECE)
            return p;
        double waste = (double)(places - blocks * n_layers) / (double)places;
        if (blocks == 0 || n_bytes < least || waste >= best)
            continue;
        best = waste, p.blocks = blocks, p.places = places;
        if (waste <= 1.0 / 32)
            return p;
    }
}

/* A stage of a pipeline may have no layer of a group: then its blocks are numbers alone. */
static bool is_by_need(const struct cache_group *g) { return g->kind != CACHE_STATE && g->n_layers > 0; }

static int64_t layer_block_bytes(const struct loaded *loaded, const struct cache_group *g, int block_size) {
    return block_elements(loaded, g, block_size) * element_bytes(cache_element(loaded, g));
}

int64_t cache_waste(const struct loaded *loaded, const struct program *p, int block_size, int64_t bytes) {
    int64_t waste = 0;
    double worst = 0;
    for (int g = 0; g < p->n_groups; g++) {
        if (!is_by_need(&p->groups[g]))
            continue;
        int64_t one = layer_block_bytes(loaded, &p->groups[g], block_size);
        struct pieces cut = cut_pieces(one, p->groups[g].n_layers, LEAST_PIECE);
        double used = (double)(cut.blocks * p->groups[g].n_layers * one) / (double)(cut.places * cut.block_bytes);
        worst = MAX(worst, 1 - used);
        waste += cut.places * cut.block_bytes; // the last piece is mapped whole
    }
    return waste + (int64_t)((double)bytes * worst);
}

// ---- allocating -------------------------------------------------------------------------------------------------

static enum status too_large(const struct loaded *loaded, const struct program *p, int g, struct error *err) {
    return fail(err, ERR_MEMORY, "%s: a cache of %lld blocks in group %d is larger than memory can be", p->name,
                (long long)loaded->caches[g].n_blocks, g);
}

/* A range for n_blocks. Small caches have small pieces. */
static enum status reserve(struct loaded *loaded, const struct program *p, int g, int block_size, struct error *err) {
    struct group_cache *c = &loaded->caches[g];
    int64_t one = layer_block_bytes(loaded, &p->groups[g], block_size), total, n_bytes;
    if (__builtin_mul_overflow(one * p->groups[g].n_layers, c->n_blocks, &total))
        return too_large(loaded, p, g, err);
    struct pieces cut = cut_pieces(one, p->groups[g].n_layers, MIN(LEAST_PIECE, total / 32));
    int64_t n = (c->n_blocks + cut.blocks - 1) / cut.blocks, piece_bytes = cut.places * cut.block_bytes;
    if (n <= 1) { // one piece, no larger than it must be
        cut.blocks = cut.places = MAX(c->n_blocks, 1);
        piece_bytes =
            (cut.blocks * p->groups[g].n_layers * cut.block_bytes + VIRTUAL_GRAIN - 1) / VIRTUAL_GRAIN * VIRTUAL_GRAIN;
    }
    if (n * cut.places > INT32_MAX || __builtin_mul_overflow(piece_bytes, n, &n_bytes))
        return too_large(loaded, p, g, err);
    c->is_mapped = true;
    c->block_elements = cut.block_bytes / element_bytes(c->element);
    c->piece_blocks = (int)cut.blocks;
    c->piece_places = (int)cut.places;
    c->layer_elements = c->block_elements * cut.blocks;
    TRY(virtual_reserve(loaded->device->index, (size_t)n_bytes, (size_t)piece_bytes, &c->map, err));
    c->at = (void *)(uintptr_t)c->map.at;
    return OK;
}

static enum status allocate(struct loaded *loaded, const struct program *p, int g, struct error *err) {
    struct group_cache *c = &loaded->caches[g];
    char what[60];
    int64_t n_bytes;
    c->block_elements = block_elements(loaded, &p->groups[g], loaded->block_size);
    c->layer_elements = c->block_elements * c->n_blocks;
    c->piece_blocks = c->piece_places = (int)MAX(c->n_blocks, 1);
    if (__builtin_mul_overflow(c->block_elements * p->groups[g].n_layers * element_bytes(c->element), c->n_blocks,
                               &n_bytes))
        return too_large(loaded, p, g, err);
    snprintf(what, sizeof what, "%lld slots of recurrent state", (long long)c->n_blocks); // or nothing
    TRY(memory_take(loaded->device, &c->at, n_bytes, what, err));
    DEVICE_TRY(loaded->device, err, cudaMemsetAsync(c->at, 0, (size_t)n_bytes, loaded->device->stream),
               "clearing %lld bytes of recurrent state", (long long)n_bytes);
    return OK;
}

static enum status allocate_host(struct loaded *loaded, const struct program *p, int g, struct error *err) {
    struct group_cache *c = &loaded->caches[g];
    int64_t n_bytes = c->block_elements * p->groups[g].n_layers * element_bytes(c->element) * c->n_host;
    return n_bytes > 0 ? pinned_take(loaded->device, &c->host, n_bytes, "swap space", err) : OK;
}

static int usable_blocks(const struct group_cache *c) {
    return (int)MIN((int64_t)c->map.n_mapped * c->piece_blocks, c->n_blocks);
}

enum status cuda_commit_cache(struct loaded *loaded, int group, int *n, struct error *err) {
    struct group_cache *c = &loaded->caches[group];
    if (!is_by_need(&loaded->program->groups[group]))
        return OK;
    BUG_IF(!c->is_mapped || *n < 0 || *n > c->n_blocks);
    if (loaded->device->fault.status != OK) {
        *n = usable_blocks(c);
        *err = loaded->device->fault;
        return err->status;
    }
    TRY(device_enter(loaded->device, err));
    int before = c->map.n_mapped, wanted = (int)(((int64_t)*n + c->piece_blocks - 1) / c->piece_blocks);
    enum status st = virtual_map(&c->map, loaded->device->index, wanted, err);
    if (st == ERR_DEVICE && loaded->device->fault.status == OK)
        loaded->device->fault = *err;
    if (c->map.n_mapped > before)
        DEVICE_TRY(loaded->device, err,
                   cudaMemsetAsync((char *)c->at + (size_t)before * c->map.piece_bytes, 0,
                                   (size_t)(c->map.n_mapped - before) * c->map.piece_bytes, loaded->device->stream),
                   "clearing %d pieces of %zu MiB of cache", c->map.n_mapped - before, c->map.piece_bytes >> 20);
    if (c->map.n_mapped > before)
        TRY(handover_note_cleared(loaded, err));
    *n = usable_blocks(c);
    return st;
}

static enum status commit_all(struct loaded *loaded, const struct program *p, int g, struct error *err) {
    int n = (int)loaded->caches[g].n_blocks;
    struct error why;
    enum status st = cuda_commit_cache(loaded, g, &n, &why);
    if (st == ERR_MEMORY)
        return fail(err, ERR_MEMORY, "%s: the device has no room for a cache of %lld blocks, %lld bytes", p->name,
                    (long long)loaded->caches[g].n_blocks, (long long)loaded->caches[g].map.n_bytes);
    if (st != OK)
        *err = why;
    return st;
}

enum status cuda_alloc_cache(struct loaded *loaded, const struct cache_config *config, struct error *err) {
    const struct program *p = loaded->program;
    BUG_IF(loaded->n_caches > 0);
    TRY(device_enter(loaded->device, err));
    loaded->block_size = config->block_size;
    memcpy(loaded->table_width, config->table_width, sizeof loaded->table_width);
    loaded->state_base = xcalloc((size_t)(config->n_states + config->n_host_states) + 1, sizeof *loaded->state_base);
    for (int g = 0; g < p->n_groups; g++) {
        bool state = p->groups[g].kind == CACHE_STATE;
        TRY(check_cache(loaded, p, &p->groups[g], err));
        loaded->caches[g].element = cache_element(loaded, &p->groups[g]);
        loaded->caches[g].n_blocks = state ? config->n_states : config->n_blocks[g];
        loaded->caches[g].n_host = state ? config->n_host_states : config->n_host_blocks[g];
        loaded->n_caches = g + 1;
        bool by_need = is_by_need(&p->groups[g]);
        TRY(by_need ? reserve(loaded, p, g, loaded->block_size, err) : allocate(loaded, p, g, err));
        TRY(allocate_host(loaded, p, g, err));
        if (by_need && !config->by_need)
            TRY(commit_all(loaded, p, g, err));
    }
    return OK;
}

void caches_share(struct loaded *loaded) {
    const struct loaded *of = loaded->caches_of;
    if (!of)
        return;
    memcpy(loaded->caches, of->caches, sizeof loaded->caches);
    memcpy(loaded->table_width, of->table_width, sizeof loaded->table_width);
    loaded->block_size = of->block_size;
}

void caches_release(struct loaded *loaded) {
    handover_release(loaded);
    for (int g = 0; g < loaded->n_caches; g++) {
        if (loaded->caches[g].is_mapped)
            virtual_release(&loaded->caches[g].map);
        else
            cudaFree(loaded->caches[g].at);
        cudaFreeHost(loaded->caches[g].host);
    }
    free(loaded->state_base);
}
