/* affinity.c - see affinity.h. */
#include "engine/lanes/affinity.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { ENTRIES = 1 << 16, MOST_BLOCKS = 4096 }; // an engine; of a prompt's beginning

struct affinity {
    pthread_mutex_t lock;
    int block_size;
    uint64_t n_entries;
    struct entry {
        uint64_t hash, engines; // a bit each
    } * entries;                // [n_entries]
};

/* Where a hash may stand. */
static struct entry *entry_of(const struct affinity *a, uint64_t h) { return &a->entries[h % a->n_entries]; }

struct affinity *affinity_new(int block_size, int n_engines) {
    struct affinity *a = xcalloc(1, sizeof *a);
    a->block_size = block_size;
    a->n_entries = (uint64_t)ENTRIES * (uint64_t)n_engines;
    a->entries = xcalloc(a->n_entries, sizeof *a->entries);
    pthread_mutex_init(&a->lock, NULL);
    return a;
}

void affinity_free(struct affinity *a) {
    if (!a)
        return;
    pthread_mutex_destroy(&a->lock);
    free(a->entries);
    free(a);
}

static uint64_t mixed(uint64_t h, uint64_t x) {
    h = (h ^ x) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

/* Requests share no cache across these. */
static uint64_t seed_of(const struct gyre_request *r) {
    uint64_t h = mixed((uint64_t)(uint32_t)r->tenant + 1, (uint64_t)(uint32_t)r->adapter);
    for (const char *c = r->cache_salt; c && *c; c++)
        h = mixed(h, (unsigned char)*c);
    return h;
}

static int n_blocks_of(const struct affinity *a, const struct gyre_request *r) {
    return (int)MIN(r->n_prompt / a->block_size, (int64_t)MOST_BLOCKS);
}

static uint64_t with_block(const struct affinity *a, const struct gyre_request *r, int block, uint64_t h) {
    for (int i = block * a->block_size; i < (block + 1) * a->block_size; i++)
        h = mixed(h, (uint32_t)r->prompt[i]);
    return h;
}

void affinity_look(struct affinity *a, const struct gyre_request *r, int n_engines, int64_t *known) {
    uint64_t h = seed_of(r), left = ~(uint64_t)0;
    memset(known, 0, (size_t)n_engines * sizeof *known);
    pthread_mutex_lock(&a->lock);
    for (int b = 0; b < n_blocks_of(a, r) && left; b++) {
        h = with_block(a, r, b, h);
        left &= entry_of(a, h)->hash == h ? entry_of(a, h)->engines : 0;
        for (int i = 0; i < n_engines; i++)
            if (left >> i & 1)
                known[i] = (int64_t)(b + 1) * a->block_size;
    }
    pthread_mutex_unlock(&a->lock);
}

void affinity_note(struct affinity *a, const struct gyre_request *r, int engine) {
    uint64_t h = seed_of(r);
    pthread_mutex_lock(&a->lock);
    for (int b = 0; b < n_blocks_of(a, r); b++) {
        h = with_block(a, r, b, h);
        struct entry *e = entry_of(a, h);
        if (e->hash != h)
            *e = (struct entry){.hash = h};
        e->engines |= (uint64_t)1 << engine;
    }
    pthread_mutex_unlock(&a->lock);
}
