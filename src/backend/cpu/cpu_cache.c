/* cpu_cache.c - where a token's keys, values and states lie; the layout is drawn in cpu.h. */
#include "backend/cpu/cpu.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 64 }; // of the memory of caches: a line

enum status cpu_choose_cache(const struct program *p, const char *kv_dtype, bool *int4, struct error *err) {
    *int4 = kv_dtype && strcmp(kv_dtype, "int4") == 0;
    if (kv_dtype && !*int4 && strcmp(kv_dtype, "float32") != 0)
        return fail(err, ERR_UNSUPPORTED, "kv_cache_dtype: the CPU's cache is float32 or int4, not %s", kv_dtype);
    for (int g = 0; *int4 && g < p->n_groups; g++)
        if (p->groups[g].kind == CACHE_LATENT)
            return fail(err, ERR_UNSUPPORTED,
                        "kv_cache_dtype: %s has a latent cache (MLA), which the CPU keeps in float32, not in int4",
                        p->name);
    return OK;
}

/* Of one layer. */
static int64_t block_bytes(const struct loaded *l, const struct cache_group *g, int block_size) {
    int64_t element = sizeof(float);
    switch (g->kind) {
    case CACHE_KV:
        if (l->has_int4_cache)
            return kv_int4_block_bytes(g->n_heads, g->k_dim, g->v_dim, block_size);
        return (int64_t)g->n_heads * (g->k_dim + g->v_dim) * block_size * element;
    case CACHE_LATENT: return (int64_t)g->k_dim * block_size * element;
    case CACHE_STATE: return cache_state_floats(g, l->n_back) * element;
    }
    bug(__FILE__, __LINE__, "a cache kind without a size");
}

static void *block_at(const struct call *c, const struct cache_layer *layer, int64_t block) {
    const struct cache *cache = &c->loaded->caches[layer->group];
    return cache->at + layer->index * cache->layer_bytes + block * cache->block_bytes;
}

static int64_t block_of(const struct call *c, const struct cache_layer *layer, int seq, int64_t position) {
    const struct batch_plan *plan = c->plan;
    int64_t entry = position >> c->loaded->block_shift;
    BUG_IF(entry >= plan->table_width[layer->group]);
    int64_t block = plan->block_table[layer->group][(int64_t)seq * plan->table_width[layer->group] + entry];
    BUG_IF(block < 0); // a visible position must have a block
    return block;
}

bool next_keeper(const struct call *c, int64_t t, int *at, int *seq) {
    if ((*at)++ == 0) {
        *seq = c->seq_of_row[t];
        return true;
    }
    for (; *at - 2 < c->plan->n_also; (*at)++)
        if (c->plan->also[*at - 2].row == t) {
            *seq = c->plan->also[*at - 2].seq;
            return true;
        }
    return false;
}

struct kv_block kv_block(const struct call *c, int cache, int seq, int64_t position, int head) {
    const struct cache_layer *layer = &c->program->caches[cache];
    const struct cache_group *g = &c->program->groups[layer->group];
    int64_t slots = c->loaded->block_size;
    float *block = block_at(c, layer, block_of(c, layer, seq, position));
    float *k = block, *v = block + g->n_heads * g->k_dim * slots;
    return (struct kv_block){k + head * g->k_dim * slots, v + head * g->v_dim * slots};
}

struct kv_int4_block kv_int4_block(const struct call *c, int cache, int seq, int64_t position, int head) {
    const struct cache_layer *layer = &c->program->caches[cache];
    const struct cache_group *g = &c->program->groups[layer->group];
    int64_t slots = c->loaded->block_size, slot = position & (slots - 1);
    int64_t k_scales = kv_int4_groups(g->k_dim), v_scales = kv_int4_groups(g->v_dim);
    int64_t k_bytes = kv_int4_code_bytes(g->k_dim), v_bytes = kv_int4_code_bytes(g->v_dim);
    uint16_t *k_scale = block_at(c, layer, block_of(c, layer, seq, position));
    uint16_t *v_scale = k_scale + g->n_heads * k_scales * slots;
    uint8_t *k = (uint8_t *)(v_scale + g->n_heads * v_scales * slots), *v = k + g->n_heads * k_bytes * slots;
    return (struct kv_int4_block){
        {k_scale + head * k_scales * slots + slot, k + head * k_bytes * slots + slot, slots, slots},
        {v_scale + (head * slots + slot) * v_scales, v + (head * slots + slot) * v_bytes, 1, 1},
        g->k_dim,
        g->v_dim};
}

float *latent_row(const struct call *c, int cache, int seq, int64_t position) {
    const struct cache_layer *layer = &c->program->caches[cache];
    int64_t slot = position & (c->loaded->block_size - 1);
    float *block = block_at(c, layer, block_of(c, layer, seq, position));
    return block + slot * c->program->groups[layer->group].k_dim;
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
    return block_bytes(l, g, block_size) * g->n_layers;
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
            n_bytes > INT64_MAX - 2 * ALIGNMENT)
            return fail(err, ERR_MEMORY, "%s: the cache of group %d is larger than memory can be", p->name, g);
        // calloc: zero pages of the system are neither written nor resident until a sequence uses them.
        // A line more, which vectors that begin in the last block may reach into.
        unsigned char *memory = calloc(1, (size_t)n_bytes + 2 * ALIGNMENT);
        if (!memory)
            return fail(err, ERR_MEMORY, "%s: no memory for a cache of %lld blocks, %lld bytes", p->name,
                        (long long)n_blocks, (long long)n_bytes);
        int64_t block = block_bytes(l, &p->groups[g], l->block_size);
        unsigned char *at = memory + (ALIGNMENT - (uintptr_t)memory % ALIGNMENT);
        l->caches[l->n_caches++] = (struct cache){memory, at, block * n_blocks, block};
    }
    return OK;
}

/* Layer by layer, as a block's parts lie. */
static void move_block(struct loaded *l, int group, int block, unsigned char *out, const unsigned char *in) {
    const struct cache *cache = &l->caches[group];
    BUG_IF(cache->layer_bytes % cache->block_bytes || block < 0 || block >= cache->layer_bytes / cache->block_bytes);
    for (int i = 0; i < l->program->groups[group].n_layers; i++) {
        unsigned char *at = cache->at + i * cache->layer_bytes + block * cache->block_bytes;
        if (out)
            memcpy(out + i * cache->block_bytes, at, (size_t)cache->block_bytes);
        else
            memcpy(at, in + i * cache->block_bytes, (size_t)cache->block_bytes);
    }
}

static int64_t handed_bytes(const struct loaded *l, int group) {
    return cpu_cache_block_bytes(l, group, l->block_size);
}

static enum status get(struct loaded *l, int group, const int32_t *blocks, int n, void *out, size_t stride,
                       struct error *err) {
    (void)err;
    for (int i = 0; i < n; i++)
        move_block(l, group, blocks[i], (unsigned char *)out + (size_t)i * stride, NULL);
    return OK;
}

static enum status put(struct loaded *l, int group, const int32_t *blocks, int n, const void *in, size_t stride,
                       struct error *err) {
    (void)err;
    for (int i = 0; i < n; i++)
        move_block(l, group, blocks[i], NULL, (const unsigned char *)in + (size_t)i * stride);
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

const struct backend_handover cpu_handover = {.bytes = handed_bytes, .get = get, .put = put};
