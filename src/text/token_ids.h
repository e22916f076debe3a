/* token_ids.h - a growing list of token ids. `(struct token_ids){0}` is empty and valid.
 *
 * With a budget, what there is no room for is dropped, and the budget says so (base/budget.h). */
#pragma once

#include "base/budget.h"

#include <stdlib.h>

struct token_ids {
    int32_t *ids; // [n]
    size_t n, cap;
    struct budget *budget; // NULL: none; borrowed, and kept by token_ids_release
};

static inline void token_ids_release(struct token_ids *t) {
    budget_free(t->budget, t->ids, t->cap * sizeof *t->ids);
    *t = (struct token_ids){.budget = t->budget};
}

/* Makes room for `extra` more; false where the budget has none. */
static inline bool token_ids_reserve(struct token_ids *t, size_t extra) {
    if (t->cap - t->n >= extra)
        return true;
    size_t cap = MAX(t->cap * 2, t->n + extra + 16);
    void *grown = t->ids;
    if (cap > SIZE_MAX / sizeof *t->ids ||
        !budget_resize(t->budget, &grown, t->cap * sizeof *t->ids, cap * sizeof *t->ids))
        return false;
    t->ids = grown;
    t->cap = cap;
    return true;
}

static inline void token_ids_push(struct token_ids *t, int32_t id) {
    if (token_ids_reserve(t, 1))
        t->ids[t->n++] = id;
}
