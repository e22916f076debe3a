/* rings.c - see pass.h: windows as rings. */
#include "core/pass/pass.h"

enum { ROUND = 128, LEAST = 64 }; // tokens: whole tiles of any device; room of a window, and behind it

struct program *pass_rings(const struct program *from, int max_rows) {
    bool has_window = false, has_all = false;
    for (int g = 0; g < from->n_groups; g++) {
        has_window |= from->groups[g].kind == CACHE_KV && from->groups[g].window > 0;
        has_all |= from->groups[g].kind != CACHE_STATE && from->groups[g].window == 0;
    }
    if (!has_window || !has_all)
        return NULL;
    struct program *p = program_copy(from);
    for (int g = 0; g < p->n_groups; g++) {
        struct cache_group *group = &p->groups[g];
        if (group->kind != CACHE_KV || group->window == 0)
            continue;
        group->kind = CACHE_STATE;
        group->ring = (MAX(group->window, LEAST) + MAX(max_rows, LEAST) + ROUND - 1) / ROUND * ROUND;
    }
    return p;
}
