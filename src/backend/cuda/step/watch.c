/* watch.c - whether values were too large for half precision.
 *
 * What is larger than 65504 becomes that where it is stored in float16 (device.cuh, to_half), as an infinity would spoil all that it is
 * summed into. But what comes of it is not the checkpoint's answer, and bfloat16 has the range: so somebody must be told. To count in every
 * kernel that stores would be code at the end of each, so a sample is looked at, of the steps that are no graphs, which are those with
 * prompts: the first, as texts begin with the tokens for which models have their largest values, and one in so many from then on.
 *
 * Looked at is what LINEARs and GATED_ACTs read in float16, or, where only a qact of it was written, the qact's scales. Keys and values in caches, and what experts have
 * between their products, are not. */
#include "backend/cuda/step/watch.h"
#include "backend/cuda/cuda.h"
#include "backend/cuda/value.h"

#include <math.h>

enum { WATCH_EVERY = 16 };
static const float LARGEST = 65504;

bool watch_begins(struct loaded *loaded) {
    bool begins = loaded->product == ELEMENT_F16 && loaded->n_not_captured++ % WATCH_EVERY == 0;
    loaded->n_watched += begins;
    return begins;
}

void watch_input(const struct executable *exe, const struct compiled_op *c, const struct launch *l, int n_rows, struct dmat x,
                 const struct qact *t) {
    if (!l->watches || x.element != ELEMENT_F16)
        return;
    bool of_tokens = exe->program->values[c->op->in[0].id].rows == ROWS_TOKENS;
    struct dcounter cut = {&exe->loaded->counts->rows_cut, l->plan.counts + (of_tokens ? 0 : 2)};
    struct dwatch w = {.x = x};
    if (t && t->written) { // by whom x may have been kept to himself; scales as e4m3_scale has them
        w.sizes = t->q.scale;
        w.least = w.most = LARGEST * (1.0f / (float)E4M3_FULL);
    } else if (t && t->folded) { // x need not be whole (dmat.untold_only)
        w.sizes = (const float *)(const void *)t->absmax;
        w.least = LARGEST, w.most = INFINITY;
    }
    launch_watch(l, n_rows, &w, cut);
}
