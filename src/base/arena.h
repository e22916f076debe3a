/* arena.h - many small allocations that die together.
 *
 * An arena owns a chain of chunks; memory from it is never moved and is freed as a whole. Used for what
 * lives as long as a request, a model or a rendered template. Not thread-safe. */
#pragma once

#include "base/str.h"

struct arena_chunk;

struct arena {
    struct arena_chunk *chunk; // newest first
    size_t used;               // bytes handed out, for limits
};

/* No allocation until the first arena_alloc; `(struct arena){0}` is the same. */
static inline void arena_init(struct arena *a) { *a = (struct arena){0}; }

/* Frees everything that came from the arena; it may be used again. */
void arena_release(struct arena *a);

/* n_bytes of zeroed memory, aligned to 16. Never NULL. */
void *arena_alloc(struct arena *a, size_t n_bytes) __attribute__((returns_nonnull));

/* n * size bytes, zeroed; the product is checked. */
void *arena_calloc(struct arena *a, size_t n, size_t size) __attribute__((returns_nonnull));

/* A NUL-terminated copy. */
char *arena_strdup(struct arena *a, struct str s) __attribute__((returns_nonnull));
char *arena_printf(struct arena *a, const char *format, ...) __attribute__((format(printf, 2, 3), returns_nonnull));
