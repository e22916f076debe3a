/* cpu_cache.c - where a token's keys, values and states lie; the layout is drawn in cpu.h. */
#include "backend/cpu/cpu.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 64 }; // of the memory of caches: a line

int64_t cache_block_floats(const struct cache_group *g, int block_size, int n_back) {
    switch (g->kind) {
    case CACHE_KV: return (int64_t)g->n_heads * (g->k_dim + g->v_dim) * block_size;
    case CACHE_LATENT: return (int64_t)g->k_dim * block_size;
    case CACHE_STATE: return cache_state_floats(g, n_back);
    }
    bug(__FILE__, __LINE__, "a cache kind without a size");
}

static float *block_at(const struct call *c, const struct cache_layer *layer, int64_t block) {
    const struct cache *cache = &c->loaded->caches[layer->group];
    return cache->at + layer->index * cache->layer_floats + block * cache->block_floats;
}

static int64_t block_of(const struct call *c, const struct cache_layer *layer, int seq, int64_t position) {
    const struct batch_plan *plan = c->plan;
    int64_t entry = position >> c->loaded->block_shift;
    BUG_IF(entry >= plan->table_width[layer->group]);
    int64_t block = plan->block_table[layer->group][(int64_t)seq * plan->table_width[layer->group] + entry];
    BUG_IF(block < 0); // a visible position must have a block
    return block;
}

struct kv_block kv_block(const struct call *c, int cache, int seq, int64_t position, int head) {
    const struct cache_layer *layer = &c->program->caches[cache];
    const struct cache_group *g = &c->program->groups[layer->group];
    int64_t slots = c->loaded->block_size;
    float *block = block_at(c, layer, block_of(c, layer, seq, position));
    float *k = block, *v = block + g->n_heads * g->k_dim * slots;
    return (struct kv_block){k + head * g->k_dim * slots, v + head * g->v_dim * slots};
}

float *latent_row(const struct call *c, int cache, int seq, int64_t position) {
    const struct cache_layer *layer = &c->program->caches[cache];
    int64_t slot = position & (c->loaded->block_size - 1);
    return block_at(c, layer, block_of(c, layer, seq, position)) + slot * c->program->groups[layer->group].k_dim;
}

float *conv_state(const struct call *c, int cache, int seq) {
    return block_at(c, &c->program->caches[cache], c->plan->state_slot[seq]);
}

float *delta_state(const struct call *c, int cache, int seq) {
    const struct delta_args *a = &c->op->args.delta_rule;
    const struct cache_group *g = &c->program->groups[c->program->caches[cache].group];
    return conv_state(c, cache, seq) + (g->state_floats - (int64_t)a->n_value_heads * a->key_dim * a->value_dim);
}

int64_t cpu_cache_block_bytes(const struct loaded *l, int group, int block_size) {
    const struct cache_group *g = &l->program->groups[group];
    return cache_block_floats(g, block_size, l->n_back) * g->n_layers * (int64_t)sizeof(float);
}

enum status cpu_alloc_cache(struct loaded *l, const struct cache_config *config, struct error *err) {
    const struct program *p = l->program;
    BUG_IF(l->n_caches > 0 || p->n_groups > MAX_CACHE_GROUPS);
    if (config->block_size < 1 || (config->block_size & (config->block_size - 1)) != 0)
        return fail(err, ERR_ARG, "%s: a cache block of %d tokens is not a power of two", p->name, config->block_size);
    l->block_size = config->block_size;
    l->block_shift = __builtin_ctz((unsigned)config->block_size);
    for (int g = 0; g < p->n_groups; g++) {
        bool state = p->groups[g].kind == CACHE_STATE;
        int64_t n_blocks =
                    state ? config->n_states + config->n_host_states : config->n_blocks[g] + config->n_host_blocks[g],
                n_bytes;
        if (__builtin_mul_overflow(cpu_cache_block_bytes(l, g, l->block_size), n_blocks, &n_bytes) ||
            n_bytes > INT64_MAX - ALIGNMENT)
            return fail(err, ERR_MEMORY, "%s: the cache of group %d is larger than memory can be", p->name, g);
        // calloc: zero pages of the system are neither written nor resident until a sequence uses them.
        unsigned char *memory = calloc(1, (size_t)n_bytes + ALIGNMENT);
        if (!memory)
            return fail(err, ERR_MEMORY, "%s: no memory for a cache of %lld blocks, %lld bytes", p->name,
                        (long long)n_blocks, (long long)n_bytes);
        int64_t block_floats = cache_block_floats(&p->groups[g], l->block_size, l->n_back);
        float *at = (float *)(void *)(memory + (ALIGNMENT - (uintptr_t)memory % ALIGNMENT));
        l->caches[l->n_caches++] = (struct cache){memory, at, block_floats * n_blocks, block_floats};
    }
    return OK;
}

/* Layer by layer, as a block's parts lie. */
static void move_block(struct loaded *l, int group, int block, float *out, const float *in) {
    const struct cache *cache = &l->caches[group];
    BUG_IF(cache->layer_floats % cache->block_floats || block < 0 ||
           block >= cache->layer_floats / cache->block_floats);
    for (int i = 0; i < l->program->groups[group].n_layers; i++) {
        float *at = cache->at + i * cache->layer_floats + block * cache->block_floats;
        if (out)
            memcpy(out + i * cache->block_floats, at, (size_t)cache->block_floats * sizeof *at);
        else
            memcpy(at, in + i * cache->block_floats, (size_t)cache->block_floats * sizeof *at);
    }
}

int64_t cpu_handed_bytes(const struct loaded *l, int group) { return cpu_cache_block_bytes(l, group, l->block_size); }

enum status cpu_get_cache(struct loaded *l, int group, int block, void *out, struct error *err) {
    (void)err;
    move_block(l, group, block, out, NULL);
    return OK;
}

enum status cpu_put_cache(struct loaded *l, int group, int block, const void *in, struct error *err) {
    (void)err;
    move_block(l, group, block, NULL, in);
    return OK;
}

void cache_take(struct loaded *l, const struct loaded *owner) {
    if (!owner)
        return;
    memcpy(l->caches, owner->caches, sizeof l->caches);
    l->n_caches = owner->n_caches;
    l->block_size = owner->block_size;
    l->block_shift = owner->block_shift;
}
