/* arena.c - see arena.h. */
#include "base/arena.h"

#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { CHUNK_BYTES = 32 * 1024, ALIGNMENT = 16 };

struct arena_chunk {
    struct arena_chunk *next;
    size_t used, size;
    _Alignas(ALIGNMENT) unsigned char bytes[];
};

void arena_release(struct arena *a) {
    for (struct arena_chunk *c = a->chunk; c;) {
        struct arena_chunk *next = c->next;
        free(c);
        c = next;
    }
    *a = (struct arena){0};
}

static struct arena_chunk *add_chunk(struct arena *a, size_t at_least) {
    size_t size = at_least > CHUNK_BYTES ? at_least : CHUNK_BYTES;
    struct arena_chunk *c = xcalloc(1, sizeof *c + size);
    c->used = 0;
    c->size = size;
    // A large allocation gets a chunk of its own behind the current one, which keeps its free space.
    if (a->chunk && at_least > CHUNK_BYTES / 4) {
        c->next = a->chunk->next;
        a->chunk->next = c;
    } else {
        c->next = a->chunk;
        a->chunk = c;
    }
    return c;
}

void *arena_alloc(struct arena *a, size_t n_bytes) {
    BUG_IF(n_bytes > SIZE_MAX / 2);
    n_bytes = (n_bytes + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1);
    struct arena_chunk *c = a->chunk;
    if (!c || c->size - c->used < n_bytes)
        c = add_chunk(a, n_bytes);
    void *p = c->bytes + c->used;
    c->used += n_bytes;
    a->used += n_bytes;
    return p; // zeros, as all of a chunk; pages of a large one are there when they are written
}

void *arena_calloc(struct arena *a, size_t n, size_t size) {
    size_t n_bytes;
    BUG_IF(!size_mul(n, size, &n_bytes));
    return arena_alloc(a, n_bytes);
}

char *arena_strdup(struct arena *a, struct str s) {
    char *p = arena_alloc(a, s.len + 1);
    if (s.len)
        memcpy(p, s.ptr, s.len);
    return p;
}

char *arena_printf(struct arena *a, const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    BUG_IF(n < 0);
    char *p = arena_alloc(a, (size_t)n + 1);
    vsnprintf(p, (size_t)n + 1, format, again);
    va_end(again);
    return p;
}
