/* memory.c - the liveness planner: gives every value of a program a place in one block of memory.
 *
 * Largest first; each value takes the lowest place that no value alive at the same time overlaps
 * ("greedy by size", Pisarchyk and Lee, arXiv 2001.03288). A program has some 10 values a layer, nearly all
 * alive for two ops, so the quadratic search is a matter of milliseconds and the block is about the size of
 * the widest three neighbours. */
#include "core/program.h"

#include "base/status.h"

#include <stdlib.h>

enum { ALIGNMENT = 64 };

struct placed {
    int id;
    int64_t bytes, offset;
};

static int by_size(const void *a, const void *b) {
    const struct placed *x = a, *y = b;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? 1 : -1;
    return x->id - y->id;
}

static int by_offset(const void *a, const void *b) {
    const struct placed *x = a, *y = b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static bool alive_together(const struct value *a, const struct value *b) {
    return a->first_use <= b->last_use && b->first_use <= a->last_use;
}

int64_t program_plan_memory(const struct program *p, int64_t max_tokens, int64_t max_rows, int64_t *offset) {
    struct placed *order = xcalloc((size_t)p->n_values, sizeof *order);
    struct placed *beside = xcalloc((size_t)p->n_values, sizeof *beside);
    for (int i = 0; i < p->n_values; i++) {
        const struct value *v = &p->values[i];
        int64_t rows = v->rows == ROWS_TOKENS ? max_tokens : max_rows;
        bool is_made = v->last_use >= v->first_use;
        int64_t bytes = is_made ? rows * v->width * (int64_t)dtype_bytes(v->dtype) : 0;
        order[i] = (struct placed){i, (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT, 0};
    }
    qsort(order, (size_t)p->n_values, sizeof *order, by_size);
    int64_t total = 0;
    for (int i = 0; i < p->n_values; i++) {
        int n = 0;
        for (int j = 0; j < i; j++)
            if (alive_together(&p->values[order[i].id], &p->values[order[j].id]))
                beside[n++] = order[j];
        qsort(beside, (size_t)n, sizeof *beside, by_offset);
        int64_t at = 0;
        for (int j = 0; j < n && beside[j].offset < at + order[i].bytes; j++)
            at = MAX(at, beside[j].offset + beside[j].bytes);
        order[i].offset = at;
        offset[order[i].id] = at;
        total = MAX(total, at + order[i].bytes);
    }
    free(order);
    free(beside);
    return total;
}
