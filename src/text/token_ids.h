/* token_ids.h - a growing list of token ids. `(struct token_ids){0}` is empty and valid. */
#pragma once

#include "base/status.h"

#include <stdlib.h>

struct token_ids {
    int32_t *ids; // [n]
    size_t n, cap;
};

static inline void token_ids_release(struct token_ids *t) {
    free(t->ids);
    *t = (struct token_ids){0};
}

/* Makes room for `extra` more. */
static inline void token_ids_reserve(struct token_ids *t, size_t extra) {
    if (t->cap - t->n >= extra)
        return;
    t->cap = MAX(t->cap * 2, t->n + extra + 16);
    t->ids = xrealloc(t->ids, t->cap, sizeof *t->ids);
}

static inline void token_ids_push(struct token_ids *t, int32_t id) {
    token_ids_reserve(t, 1);
    t->ids[t->n++] = id;
}
