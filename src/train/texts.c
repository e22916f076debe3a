/* texts.c - see texts.h. */
#include "train/texts.h"

#include <stdlib.h>
#include <string.h>

void texts_add(struct texts *t, const int32_t *ids, int64_t n) {
    int64_t used = texts_tokens(t);
    if (t->n == t->cap) {
        t->cap = t->cap ? 2 * t->cap : 64;
        t->start = xrealloc(t->start, (size_t)t->cap + 1, sizeof *t->start);
        t->start[0] = 0;
    }
    if (used + n > t->ids_cap) {
        t->ids_cap = MAX(2 * t->ids_cap, used + n);
        t->ids = xrealloc(t->ids, (size_t)t->ids_cap, sizeof *t->ids);
    }
    if (n > 0)
        memcpy(t->ids + used, ids, (size_t)n * sizeof *ids);
    t->start[++t->n] = used + n;
}

void texts_release(struct texts *t) {
    free(t->ids);
    free(t->start);
    *t = (struct texts){0};
}
