/* lm_head.c - the program's end: the LINEAR that makes logits, perhaps a SOFTCAP, and SAMPLE; see cuda.h.
 *
 * Greedy rows want the largest logit and no other. lm_head.cu leaves it, in parts, and writes logits only for rows that
 * ask for more, so those of a step that decodes greedily never see memory. It takes heads of 16 bits in steps of up to
 * HEAD_MAX_ROWS rows; all others are LINEARs like any, and SAMPLE reads their logits. In steps of such rows alone,
 * masked ones too, argmax_filter.cu may find their tokens first (argmax_filter.c). */
#include "backend/cuda/head/lm_head.h"
#include "backend/cuda/cuda.h"
#include "backend/cuda/device/device.h"
#include "backend/cuda/head/head.h"
#include "backend/cuda/linear/linear.h"
#include "backend/cuda/ranks/join.h"
#include "backend/cuda/sample/sample.h"
#include "backend/cuda/step/compile.h"
#include "backend/cuda/step/padded.h"
#include "backend/cuda/value.h"
#include "backend/cuda/weights/weights.h"

_Static_assert((int)MEETING_BEST_ROWS <= (int)HEAD_MAX_ROWS, "rows of which ranks tell the largest have room");
_Static_assert((int)MEETING_RANKS *(int)MEETING_BESTS <= (int)HEAD_BESTS, "and their parts");
_Static_assert(sizeof(struct dlargest) == sizeof(struct dbest), "as SAMPLE takes them");

static int maker_of(const struct program *p, val v) { return p->values[v.id].first_use; }

/* One op reads all of it, and nobody else any. */
static bool is_whole_for_one(const struct program *p, val v) {
    int n = 0;
    for (int i = 0; i < p->n_ops; i++)
        for (int k = 0; k < OP_MAX_IN; k++)
            n += val_given(p->ops[i].in[k]) && p->ops[i].in[k].id == v.id;
    return n == 1 && v.col == 0 && v.width == p->values[v.id].width && !program_keeps(p, v.id);
}

/* The SOFTCAP between the head and SAMPLE, or NULL. */
static const struct op *softcap_of(const struct program *p) {
    const struct op *maker = &p->ops[maker_of(p, p->ops[p->n_ops - 1].in[0])];
    return maker->code == OP_SOFTCAP ? maker : NULL;
}

const struct op *head_of(const struct program *p) {
    if (p->ops[p->n_ops - 1].code != OP_SAMPLE)
        return NULL;
    const struct op *cap = softcap_of(p);
    val logits = p->ops[p->n_ops - 1].in[0], made = cap ? cap->in[0] : logits;
    const struct op *head = &p->ops[maker_of(p, made)];
    return head->code == OP_LINEAR && is_whole_for_one(p, logits) && is_whole_for_one(p, made) ? head : NULL;
}

void head_lives(const struct program *p, struct value *values) {
    const struct op *head = head_of(p);
    if (head && softcap_of(p))
        values[head->in[0].id].last_use = MAX(values[head->in[0].id].last_use, (int)(softcap_of(p) - p->ops));
}

struct dlm_head dhead_of(const struct executable *exe, const struct compiled_op *c) {
    const struct op *cap = softcap_of(exe->program);
    return (struct dlm_head){c->matrix[0], c->floats[1].at, cap ? cap->args.softcap.cap : 0};
}

bool head_may_be_ours(const struct executable *exe) {
    const struct op *head = head_of(exe->program);
    if (!head || !exe->loaded->device->is_fast)
        return false;
    enum element e = weight_on_device(exe->loaded, head->weights[0])->matrix.element;
    return e != ELEMENT_E4M3 && e != ELEMENT_QUADS;
}

enum status head_alloc(struct executable *exe, struct error *err) {
    int64_t n_copies = sample_copies_bytes(padded_rows(MAX(exe->bucket.max_rows, 1)), exe->logits.width);
    if (n_copies > 0)
        TRY(device_alloc(exe, &exe->row_copies, n_copies, "copies of rows of logits", err));
    if (!head_may_be_ours(exe) && exe->program->n_ranks <= 1)
        return OK;
    int64_t rows = MIN(padded_rows(MAX(exe->bucket.max_rows, 1)), HEAD_MAX_ROWS);
    return device_alloc(exe, &exe->bests, rows * HEAD_BESTS * (int64_t)sizeof *exe->bests, "the largest logits", err);
}

bool head_compiled(const struct executable *exe, const struct compiled_op *c, struct dmat x) {
    struct dlm_head h = dhead_of(exe, c);
    if (!exe->bests || c->op != head_of(exe->program))
        return false;
    return head_takes(&h, x, exe->logits, 1) &&
           (c->convert.at || !c->in_order.at || head_takes(&h, c->in_order, exe->logits, 1));
}

const struct compiled_op *compiled_lm_head(const struct executable *exe) {
    const struct op *head = head_of(exe->program);
    return head ? &exe->ops[head - exe->program->ops] : NULL;
}

bool head_does(const struct executable *exe, int n_rows) {
    const struct compiled_op *c = compiled_lm_head(exe);
    return c && n_rows > 0 && linear_kernel(c, n_rows) == linear_by_lm_head;
}

enum status head_run(const struct executable *exe, const struct compiled_op *c, const struct launch *l, struct dmat x,
                     struct error *err) {
    struct dlm_head h = dhead_of(exe, c);
    const int32_t *done = filter_done(exe, l->n_rows);
    if (done)
        TRY(filter_run(exe, c, l, x, err));
    DEVICE_TRY(exe->loaded->device, err, launch_lm_head(l, l->n_rows, &h, x, exe->logits, exe->bests, done),
               "%s: the head of %d rows did not start", c->op->weights[0]->name, l->n_rows);
    return OK;
}

struct dbests head_bests(const struct executable *exe, int n_rows) {
    if (ranks_have_bests(exe, n_rows))
        return (struct dbests){exe->bests, exe->program->n_ranks * MEETING_BESTS, NULL};
    if (!head_does(exe, n_rows))
        return (struct dbests){0};
    struct dlm_head h = dhead_of(exe, compiled_lm_head(exe));
    return (struct dbests){exe->bests, head_parts(&h, n_rows), filter_done(exe, n_rows)};
}
