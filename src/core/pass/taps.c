/* taps.c - hidden states of chosen layers, kept: see pass.h. */
#include "core/pass/pass.h"

/* The residual stream behind layer l is what the first norm of the section after it adds up. NULL: there is none. */
static const struct op *first_norm_after(const struct program *p, int layer) {
    int s = 0;
    while (s < p->n_sections && p->sections[s].layer != layer)
        s++;
    if (s + 1 >= p->n_sections)
        return NULL;
    for (int i = p->sections[s + 1].first_op; i < p->n_ops; i++)
        if (p->ops[i].code == OP_ADD_NORM)
            return &p->ops[i];
    return NULL;
}

struct program *pass_taps(const struct program *from, const int *layers, int n) {
    if (n > MAX_TAPS)
        return NULL;
    struct program *p = program_copy(from);
    for (p->n_taps = 0; p->n_taps < n; p->n_taps++) {
        const struct op *norm = layers[p->n_taps] < 0 ? NULL : first_norm_after(p, layers[p->n_taps]);
        if (!norm) {
            program_free(p);
            return NULL;
        }
        p->taps[p->n_taps] = norm->out[0];
        p->values[norm->out[0].id].last_use = p->n_ops - 1;
    }
    return p;
}
