/* qact.c - e4m3 qacts of values, and unscaled products of them; see cuda.h.
 *
 * A qact lives as long as its value and has a place of its own beside it: the elements of all rows, then a scale a row.
 * Columns of a value that a LINEAR reads alone have a qact of their own, since the scale is that of those columns. */
#include "backend/cuda/qact/qact.h"
#include "backend/cuda/cuda.h"
#include "backend/cuda/device/device.h"
#include "backend/cuda/qact/quantise.h"
#include "backend/cuda/rows/rows.h"
#include "backend/cuda/step/compile.h"
#include "backend/cuda/step/fold.h"
#include "backend/cuda/step/node.h"
#include "backend/cuda/step/padded.h"
#include "backend/cuda/value.h"
#include "backend/cuda/weights/weights.h"

#include <stdlib.h>

static bool may_read_qact(const struct loaded *loaded, const struct op *op) {
    return op->code == OP_LINEAR && weight_on_device(loaded, op->weights[0])->matrix.element == ELEMENT_E4M3;
}

struct qact *qact_of(const struct executable *exe, val v) {
    for (int i = 0; val_given(v) && i < exe->n_qacts; i++) {
        struct qact *t = &exe->qacts[i];
        if (t->of.id == v.id && t->of.col == v.col && t->of.width == v.width)
            return t;
    }
    return NULL;
}

void qacts_plan(struct executable *exe) {
    const struct program *p = exe->program;
    exe->qacts = xcalloc((size_t)p->n_ops + 1, sizeof *exe->qacts);
    exe->qact_states = xcalloc((size_t)p->n_ops + 1, sizeof *exe->qact_states);
    for (int i = 0; i < p->n_ops; i++)
        if (may_read_qact(exe->loaded, &p->ops[i]) && !qact_of(exe, p->ops[i].in[0]))
            exe->qacts[exe->n_qacts++] = (struct qact){.of = p->ops[i].in[0]};
}

// ---- unscaled products
// -----------------------------------------------------------------------------------------------

/* Which launchers take unscaled products, for which input. */
static bool takes_unscaled(const struct program *p, const struct op *op, int k) {
    switch (op->code) {
    case OP_ADD_NORM: return k == 1;
    case OP_NORM: return k == 1 || fold_of(p, op) == FOLD_ALWAYS; // by the ADD_NORM that it went into
    case OP_DELTA_RULE: return k > 0;
    case OP_SHORT_CONV:
    case OP_GATED_ADD: return k == 1;
    case OP_QKV_PREP:
    case OP_MLA_PREP:
    case OP_ALL_REDUCE:
    case OP_GATED_ACT: return true;
    default: return false;
    }
}

bool unscaled_will_be_read(const struct program *p, const struct op *linear) {
    const struct value *v = &p->values[linear->out[0].id];
    if (program_keeps(p, linear->out[0].id))
        return false;
    for (int i = v->first_use + 1; i <= v->last_use && i < p->n_ops; i++)
        for (int k = 0; k < OP_MAX_IN; k++)
            if (p->ops[i].in[k].id == linear->out[0].id && !takes_unscaled(p, &p->ops[i], k))
                return false;
    return v->last_use < p->n_ops;
}

struct dmat input_of(const struct executable *exe, const struct compiled_op *c, int k, int n_rows) {
    const struct op *norm = k == 1 ? norm_folded_into(exe->program, c->op) : NULL;
    val v = norm ? norm->in[0] : c->op->in[k];
    struct dmat x = c->in[k];
    if (!val_given(v))
        return x;
    const struct compiled_op *maker = &exe->ops[exe->program->values[v.id].first_use];
    if (!maker->unscaled_is_read || !linear_kernel(maker, n_rows)->makes_unscaled)
        return x;
    struct dmat raw = maker->unscaled;
    raw.at = (char *)raw.at + v.col * element_bytes(raw.element);
    raw.width = x.width;
    raw.col_scale += v.col;
    raw.bias = raw.bias ? raw.bias + v.col : NULL;
    return raw;
}

// ---- places -----------------------------------------------------------------------------------------------------

/* Its scales are read with the unscaled products as well. */
static int last_use_of(const struct executable *exe, const struct value *values, const struct qact *t) {
    const struct program *p = exe->program;
    int last = values[t->of.id].last_use;
    for (int i = 0; i < p->n_ops; i++)
        if (may_read_qact(exe->loaded, &p->ops[i]) && qact_of(exe, p->ops[i].in[0]) == t)
            last = MAX(last, values[p->ops[i].out[0].id].last_use);
    return last;
}

struct value qact_as_value(const struct executable *exe, const struct value *values, const struct qact *t) {
    struct value v = values[t->of.id];
    v.last_use = last_use_of(exe, values, t);
    v.width = t->of.width + (int)sizeof(float);
    v.dtype = DT_I8; // a byte
    return v;
}

void qact_place(struct executable *exe, struct qact *t, void *at) {
    BUG_IF(t->of.width % 16 != 0); // scales behind the last row are aligned
    int64_t rows = padded_rows(exe->program->values[t->of.id].rows == ROWS_TOKENS ? exe->bucket.max_tokens
                                                                                  : MAX(exe->bucket.max_rows, 1));
    float *scale = (float *)(void *)((char *)at + rows * t->of.width);
    t->q = (struct dmat){at, t->of.width, t->of.width, ELEMENT_E4M3, scale};
}

enum status qacts_alloc(struct executable *exe, struct error *err) {
    int64_t rows = padded_rows(exe->bucket.max_tokens);
    exe->row_absmax = (struct drow_absmax){.pitch = rows, .n = exe->n_qacts};
    TRY(device_alloc(exe, &exe->row_absmax.at, exe->n_qacts * rows * (int64_t)sizeof *exe->row_absmax.at,
                     "largest sizes", err));
    size_t meeting_bytes = (size_t)exe->n_qacts * REQUANT_MEETINGS * sizeof *exe->barriers;
    TRY(device_alloc(exe, &exe->barriers, (int64_t)meeting_bytes, "meetings of blocks", err));
    if (exe->only_sized)
        return OK;
    for (int i = 0; i < exe->n_qacts; i++) {
        exe->qacts[i].absmax = exe->row_absmax.at + i * rows;
        exe->qacts[i].of_tokens = exe->barriers + i * REQUANT_MEETINGS;
    }
    DEVICE_TRY(exe->loaded->device, err, cudaMemsetAsync(exe->barriers, 0, meeting_bytes, exe->loaded->device->stream),
               "clearing %zu bytes", meeting_bytes);
    size_t n_bytes = (size_t)(exe->n_qacts * rows) * sizeof *exe->row_absmax.at;
    DEVICE_TRY(exe->loaded->device, err, cudaMemsetAsync(exe->row_absmax.at, 0, n_bytes, exe->loaded->device->stream),
               "clearing %zu bytes", n_bytes);
    return OK;
}

/* Whether a LINEAR that reads v, in the columns of the qact, takes the path in a step of so many rows. */
static bool taken_by(const struct compiled_op *reader, const struct qact *t, int n_rows) {
    return reader->in_qact == t && linear_kernel(reader, n_rows)->reads_qact;
}

static bool is_wanted(const struct executable *exe, const struct qact *t, int n_rows) {
    const struct value *v = &exe->program->values[t->of.id];
    for (int i = v->first_use; i <= v->last_use && i < exe->program->n_ops; i++)
        if (taken_by(&exe->ops[i], t, n_rows))
            return true;
    return false;
}

struct qact_state *qact_state_of(const struct lowering *w, const struct qact *t) {
    return &w->qacts[t - w->exe->qacts];
}

struct dmat qact_to_write(struct lowering *w, const struct compiled_op *c, int k, int n_rows) {
    const struct qact *t = c->out_qact[k];
    if (!t || !is_wanted(w->exe, t, n_rows))
        return (struct dmat){0};
    qact_state_of(w, t)->written = true;
    return t->q;
}

struct dmat output_with_absmax(struct lowering *w, const struct compiled_op *c, int k, int n_rows) {
    const struct qact *t = c->out_qact[k];
    struct dmat y = c->out[k];
    if (t && is_wanted(w->exe, t, n_rows)) {
        qact_state_of(w, t)->folded = true;
        y.absmax = t->absmax;
    }
    return y;
}

struct dmat qact_static(struct lowering *w, const struct compiled_op *c, int k) {
    const struct qact *t = c->out_qact[k];
    if (!t || !qact_state_of(w, t)->folded || t->q.static_scale == 0)
        return (struct dmat){0};
    qact_state_of(w, t)->has_static_scale = true;
    return t->q;
}

bool value_is_read(const struct executable *exe, const struct compiled_op *c, int k, int n_rows) {
    val out = c->op->out[k];
    if (!c->out_qact[k] || program_keeps(exe->program, out.id))
        return true;
    const struct value *v = &exe->program->values[out.id];
    for (int i = v->first_use; i <= v->last_use && i < exe->program->n_ops; i++)
        for (int n = 0; n < OP_MAX_IN; n++)
            if (exe->ops[i].op->in[n].id == out.id && !taken_by(&exe->ops[i], c->out_qact[k], n_rows))
                return true;
    return false;
}
