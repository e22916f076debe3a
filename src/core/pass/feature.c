/* feature.c - what a draft reads of its target, computed by the target: see pass.h. */
#include "core/pass/pass.h"

#include <stdlib.h>
#include <string.h>

/* The taps side by side, each after its norm. */
static val join_taps(struct program *p, const val *taps, const struct feature *f) {
    struct norm_args norm = {.eps = f->eps};
    val all = NO_VAL;
    for (int i = 0; i < f->n_layers; i++) {
        val tap = f->tap_norm[i] ? op_norm(p, taps[i], NO_VAL, f->tap_norm[i], norm) : taps[i];
        all = val_given(all) ? op_concat(p, all, tap, NO_VAL) : tap;
    }
    return all;
}

static val record_feature(struct program *p, const val *taps, const struct feature *f) {
    struct norm_args norm = {.eps = f->eps};
    val x = join_taps(p, taps, f);
    if (f->all_norm)
        x = op_norm(p, x, NO_VAL, f->all_norm, norm);
    x = op_linear(p, x, f->fc, NULL);
    return f->out_norm ? op_norm(p, x, NO_VAL, f->out_norm, norm) : x;
}

struct program *pass_feature(const struct program *from, const struct feature *f) {
    struct program *p = pass_taps(from, f->layers, f->n_layers);
    if (!p)
        return NULL;
    int at = 0, n_ops = p->n_ops;
    while (at < n_ops && p->ops[at].code != OP_TAKE_ROWS)
        at++;
    BUG_IF(at == n_ops);
    struct op *ops = xcalloc((size_t)n_ops + 4 * MAX_TAPS, sizeof *ops);
    val taps[MAX_TAPS];
    memcpy(ops, p->ops, (size_t)at * sizeof *ops);
    memcpy(taps, p->taps, sizeof taps);
    p->taps[0] = record_feature(p, taps, f); // behind the others
    p->n_taps = 1;
    int n_new = p->n_ops - n_ops;
    memcpy(ops + at, p->ops + n_ops, (size_t)n_new * sizeof *ops);
    memcpy(ops + at + n_new, p->ops + at, (size_t)(n_ops - at) * sizeof *ops);
    struct program *out = program_copy_with(p, ops, p->n_ops, NULL, 0);
    free(ops);
    program_free(p);
    return out;
}
