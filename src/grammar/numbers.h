/* numbers.h - hash tables of small numbers, for interning: a map from 64 bits to 32, and an index of things that are
 * numbered, by their hash. */
#pragma once

#include "base/status.h"

#include <stdlib.h>
#include <string.h>

/* qsort and memcmp may not be given NULL, as an empty array is. */
static inline void sort_items(void *items, size_t n, size_t size, int (*order)(const void *, const void *)) {
    if (n > 1)
        qsort(items, n, size, order);
}
static inline bool same_bytes(const void *a, const void *b, size_t n) { return n == 0 || memcmp(a, b, n) == 0; }

static inline uint64_t number_mix(uint64_t x) {
    x ^= x >> 32;
    x *= 0xD6E8FEB86659FD93u;
    x ^= x >> 32;
    x *= 0xD6E8FEB86659FD93u;
    return x ^ x >> 32;
}

/* Keys are not UINT64_MAX. */
struct number_map {
    struct {
        uint64_t key;
        uint32_t value;
    } * slots;
    uint32_t n, mask;
};

static inline uint32_t *number_map_find(const struct number_map *m, uint64_t key) {
    if (!m->slots)
        return NULL;
    for (uint64_t at = number_mix(key) & m->mask;; at = (at + 1) & m->mask) {
        if (m->slots[at].key == key)
            return &m->slots[at].value;
        if (m->slots[at].key == UINT64_MAX)
            return NULL;
    }
}

static inline void number_map_grow(struct number_map *m) {
    struct number_map old = *m;
    m->mask = old.slots ? old.mask * 2 + 1 : 63;
    m->slots = xmalloc(((size_t)m->mask + 1) * sizeof *m->slots);
    memset(m->slots, 0xFF, ((size_t)m->mask + 1) * sizeof *m->slots);
    for (size_t i = 0; old.slots && i <= old.mask; i++) {
        if (old.slots[i].key == UINT64_MAX)
            continue;
        uint64_t at = number_mix(old.slots[i].key) & m->mask;
        while (m->slots[at].key != UINT64_MAX)
            at = (at + 1) & m->mask;
        m->slots[at] = old.slots[i];
    }
    free(old.slots);
}

/* The key must not be in it. */
static inline void number_map_put(struct number_map *m, uint64_t key, uint32_t value) {
    if (!m->slots || (m->n + 1) * 2 > m->mask)
        number_map_grow(m);
    uint64_t at = number_mix(key) & m->mask;
    while (m->slots[at].key != UINT64_MAX)
        at = (at + 1) & m->mask;
    m->slots[at].key = key;
    m->slots[at].value = value;
    m->n++;
}
static inline size_t number_map_bytes(const struct number_map *m) {
    return m->slots ? ((size_t)m->mask + 1) * sizeof *m->slots : 0;
}

/* Things by hash: walk *at from number_index_begin on; each number has this hash, and is to be compared. */
struct number_index {
    struct {
        uint64_t hash;
        uint32_t number; // + 1; 0: free
    } * slots;
    uint32_t n, mask;
};

static inline uint64_t number_index_begin(const struct number_index *x, uint64_t hash) { return hash & x->mask; }
static inline uint32_t number_index_next(const struct number_index *x, uint64_t hash, uint64_t *at) {
    for (; x->slots && x->slots[*at].number; *at = (*at + 1) & x->mask)
        if (x->slots[*at].hash == hash) {
            uint32_t number = x->slots[*at].number;
            *at = (*at + 1) & x->mask;
            return number;
        }
    return 0;
}
static inline void number_index_put(struct number_index *x, uint64_t hash, uint32_t number_plus_1) {
    if (!x->slots || (x->n + 1) * 2 > x->mask) {
        struct number_index old = *x;
        x->mask = old.slots ? old.mask * 2 + 1 : 63;
        x->slots = xcalloc((size_t)x->mask + 1, sizeof *x->slots);
        for (size_t i = 0; old.slots && i <= old.mask; i++) {
            if (!old.slots[i].number)
                continue;
            uint64_t at = old.slots[i].hash & x->mask;
            while (x->slots[at].number)
                at = (at + 1) & x->mask;
            x->slots[at] = old.slots[i];
        }
        free(old.slots);
    }
    uint64_t at = hash & x->mask;
    while (x->slots[at].number)
        at = (at + 1) & x->mask;
    x->slots[at].hash = hash;
    x->slots[at].number = number_plus_1;
    x->n++;
}
static inline size_t number_index_bytes(const struct number_index *x) {
    return x->slots ? ((size_t)x->mask + 1) * sizeof *x->slots : 0;
}
