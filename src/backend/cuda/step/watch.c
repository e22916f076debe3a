/* watch.c - whether values were too large for half precision.
 *
 * What is larger than 65504 becomes that where it is stored in float16 (device.cuh, to_half), as an infinity would
 * spoil all that it is summed into. But what comes of it is not the checkpoint's answer, and bfloat16 has the range: so
 * somebody must be told. To count in every kernel that stores would be code at the end of each, so a sample is looked
 * at, of the steps that are no graphs, which are those with prompts: the first, as texts begin with the tokens for
 * which models have their largest values, and one in so many from then on.
 *
 * Looked at is what LINEARs and GATED_ACTs read in float16, or, where only a qact of it was written, the qact's scales.
 * Keys and values in caches, and what experts have between their products, are not. */
#include "backend/cuda/step/watch.h"
#include "backend/cuda/cuda.h"
#include "backend/cuda/device/device.h"
#include "backend/cuda/qact/qact.h"
#include "backend/cuda/step/node.h"
#include "backend/cuda/step/step.h"
#include "backend/cuda/value.h"

#include <math.h>

enum { WATCH_EVERY = 16 };
static const float LARGEST = 65504;

bool watch_begins(struct loaded *loaded) {
    bool begins = loaded->product == ELEMENT_F16 && loaded->n_not_captured++ % WATCH_EVERY == 0;
    loaded->n_watched += begins;
    return begins;
}

static enum status put_watch(const struct node *n, const struct launch *l, struct error *err) {
    bool of_tokens = n->exe->program->values[n->c->op->in[0].id].rows == ROWS_TOKENS;
    (void)err; // what does not start shows as cudaGetLastError
    launch_watch(l, n->n_rows, &n->args.watch,
                 (struct dcounter){&n->exe->loaded->counts->rows_cut, l->plan.counts + (of_tokens ? 0 : 2)});
    return OK;
}
static const struct node_kernel by_watch = {"watch", "watch.cu", put_watch};

void lower_watch(struct lowering *w, const struct compiled_op *c, int n_rows, struct dmat x, const struct qact *t) {
    struct dwatch watch = {.x = x};
    if (!w->launch->watches || x.element != ELEMENT_F16)
        return;
    if (t && qact_state_of(w, t)->written) { // by whom x may have been kept to himself; scales as e4m3_scale has them
        watch.sizes = t->q.scale;
        watch.least = watch.most = LARGEST * (1.0f / (float)E4M3_FULL);
    } else if (t && qact_state_of(w, t)->folded) { // x need not be whole (dmat.untold_only)
        watch.sizes = (const float *)(const void *)t->absmax;
        watch.least = LARGEST, watch.most = INFINITY;
    }
    lower_node(w, &by_watch, c, n_rows)->args.watch = watch;
}
