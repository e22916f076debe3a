/* grammar_cache.c - see grammar_cache.h. */
#include "grammar/grammar_cache.h"

#include "base/clock.h"

#include <pthread.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

enum { DIGEST_BYTES = 32, MOST_HELD = 4096 };
static const size_t DEFAULT_BYTES = 512u << 20;

struct entry {
    struct entry *next; // asked for earlier
    struct grammar *grammar;
    unsigned char digest[DIGEST_BYTES];
};

struct grammar_cache {
    pthread_mutex_t lock;
    struct entry *newest;
    size_t max_bytes;
    struct grammar_cache_state state;
};

struct grammar_cache *grammar_cache_open(size_t max_bytes) {
    struct grammar_cache *cache = xcalloc(1, sizeof *cache);
    BUG_IF(sodium_init() < 0);
    pthread_mutex_init(&cache->lock, NULL);
    cache->max_bytes = max_bytes > 0 ? max_bytes : DEFAULT_BYTES;
    return cache;
}

static void free_entry(struct entry *e) {
    grammar_release(e->grammar);
    free(e);
}

void grammar_cache_free(struct grammar_cache *cache) {
    if (!cache)
        return;
    while (cache->newest) {
        struct entry *next = cache->newest->next;
        free_entry(cache->newest);
        cache->newest = next;
    }
    pthread_mutex_destroy(&cache->lock);
    free(cache);
}

// ---- what a source is called ------------------------------------------------------------------------------------

static void hash_text(crypto_generichash_state *hash, struct str text) {
    uint64_t length = text.ptr ? text.len : UINT64_MAX; // none is not an empty one
    crypto_generichash_update(hash, (const unsigned char *)&length, sizeof length);
    if (text.ptr && text.len > 0)
        crypto_generichash_update(hash, (const unsigned char *)text.ptr, text.len);
}

static int hash_piece(const char *piece, size_t n, void *hash) {
    crypto_generichash_update(hash, (const unsigned char *)piece, n);
    return 0;
}

/* The order of an object's keys is part of it: texts are written in it. */
static void digest_of(const struct grammar_source *source, unsigned char out[DIGEST_BYTES]) {
    crypto_generichash_state hash;
    unsigned char head[] = {(unsigned char)source->kind, source->style.compact, source->value != NULL,
                            source->reasoning.is_open};
    crypto_generichash_init(&hash, NULL, 0, DIGEST_BYTES);
    crypto_generichash_update(&hash, head, sizeof head);
    hash_text(&hash, source->style.whitespace);
    hash_text(&hash, source->reasoning.begin);
    hash_text(&hash, source->reasoning.end);
    hash_text(&hash, source->reasoning.again);
    hash_text(&hash, source->reasoning.answer);
    hash_text(&hash, source->text);
    if (source->value)
        json_dump_callback(source->value, hash_piece, &hash, JSON_COMPACT | JSON_ENCODE_ANY);
    crypto_generichash_final(&hash, out, DIGEST_BYTES);
}

// ---- what is there ----------------------------------------------------------------------------------------------

/* Under the lock: a reference to the grammar, which was asked for now; NULL: it is not there. */
static struct grammar *find(struct grammar_cache *cache, const unsigned char digest[DIGEST_BYTES]) {
    for (struct entry **at = &cache->newest; *at; at = &(*at)->next) {
        struct entry *e = *at;
        if (memcmp(e->digest, digest, DIGEST_BYTES) != 0)
            continue;
        *at = e->next;
        e->next = cache->newest;
        cache->newest = e;
        return grammar_hold(e->grammar);
    }
    return NULL;
}

/* Under the lock: takes off the list what there is no room for, but never the newest. */
static struct entry *take_surplus(struct grammar_cache *cache) {
    size_t n_bytes = 0;
    int n = 0;
    for (struct entry *e = cache->newest; e; e = e->next) {
        n_bytes += e->next ? grammar_bytes(e->next->grammar) : 0;
        if (++n < MOST_HELD && n_bytes + grammar_bytes(cache->newest->grammar) <= cache->max_bytes)
            continue;
        struct entry *surplus = e->next;
        e->next = NULL;
        return surplus;
    }
    return NULL;
}

static void free_all(struct entry *e) {
    while (e) {
        struct entry *next = e->next;
        free_entry(e);
        e = next;
    }
}

/* Unless another thread was first. */
static void keep(struct grammar_cache *cache, const unsigned char digest[DIGEST_BYTES], struct grammar *grammar,
                 int64_t took_us) {
    struct entry *e = xcalloc(1, sizeof *e);
    pthread_mutex_lock(&cache->lock);
    cache->state.n_compiled++;
    cache->state.compile_us += took_us;
    struct grammar *other = find(cache, digest);
    if (!other) {
        *e = (struct entry){.next = cache->newest, .grammar = grammar_hold(grammar)};
        memcpy(e->digest, digest, DIGEST_BYTES);
        cache->newest = e;
        e = take_surplus(cache);
    }
    pthread_mutex_unlock(&cache->lock);
    grammar_release(other);
    free_all(e);
}

enum status grammar_cache_compile(struct grammar_cache *cache, const struct grammar_source *source,
                                  const struct grammar_limits *limits, struct grammar **out, struct error *err) {
    unsigned char digest[DIGEST_BYTES];
    digest_of(source, digest);
    pthread_mutex_lock(&cache->lock);
    *out = find(cache, digest);
    cache->state.n_hits += *out != NULL;
    pthread_mutex_unlock(&cache->lock);
    if (*out)
        return OK;
    int64_t start_us = clock_us();
    enum status st = grammar_compile(source, limits, out, err);
    if (st == OK) {
        keep(cache, digest, *out, clock_us() - start_us);
        return OK;
    }
    pthread_mutex_lock(&cache->lock);
    cache->state.n_refused++;
    cache->state.compile_us += clock_us() - start_us;
    pthread_mutex_unlock(&cache->lock);
    return st;
}

void grammar_cache_state(struct grammar_cache *cache, struct grammar_cache_state *out) {
    pthread_mutex_lock(&cache->lock);
    *out = cache->state;
    for (const struct entry *e = cache->newest; e; e = e->next) {
        out->n_held++;
        out->held_bytes += grammar_bytes(e->grammar);
    }
    pthread_mutex_unlock(&cache->lock);
}
