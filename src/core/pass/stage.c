/* stage.c - the program of one stage of a pipeline: see pass.h.
 *
 * Values that are made before a border and read behind it cross it: they are the stage's taps, side by side in the
 * order of the program, and the next stage's STATES, of which it reads the columns in their place. What only a later
 * stage reads is handed through. */
#include "core/pass/pass.h"
#include "core/pass/uses.h"

#include <stdlib.h>
#include <string.h>

struct staging {
    const struct program *from;
    struct uses uses;
    int *last_read; // [n_values]: op
    int first_layer, n_layers;
    int begin, end; // ops of this stage
    int stage, n_stages;
    val states;  // what came in, side by side; absent for the first stage
    int *column; // [n_values]: of states; -1: it did not come in
};

static int stage_of(const struct staging *s, const struct op *op) {
    int layer = s->from->sections[op->section].layer;
    if (layer < 0)
        return op->section < s->first_layer ? 0 : s->n_stages - 1;
    return (int)((int64_t)layer * s->n_stages / s->n_layers);
}

static void find_layers(struct staging *s) {
    s->first_layer = s->from->n_sections;
    for (int i = s->from->n_sections - 1; i >= 0; i--)
        if (s->from->sections[i].layer >= 0)
            s->first_layer = i, s->n_layers++;
}

static void find_range(struct staging *s) {
    s->begin = s->end = -1;
    for (int i = 0; i < s->from->n_ops; i++)
        if (stage_of(s, &s->from->ops[i]) == s->stage) {
            s->begin = s->begin < 0 ? i : s->begin;
            s->end = i + 1;
        }
}

static void find_reads(struct staging *s) {
    const struct program *p = s->from;
    uses_init(&s->uses, p);
    s->last_read = xcalloc((size_t)p->n_values + 1, sizeof *s->last_read);
    s->column = xcalloc((size_t)p->n_values + 1, sizeof *s->column);
    for (int v = 0; v < p->n_values; v++) {
        s->last_read[v] = uses_count(&s->uses, v) ? s->uses.readers[s->uses.first[v + 1] - 1] : -1;
        s->column[v] = -1;
    }
    if (val_given(p->hidden)) // kept to the end of a step
        s->last_read[p->hidden.id] = p->n_ops - 1;
}

static bool crosses(const struct staging *s, int v, int border) {
    return s->uses.made_by[v] < border && s->last_read[v] >= border && s->from->values[v].width > 0;
}

/* Ids of experts and rows of answers cross no layer. */
static enum status check_border(const struct staging *s, int border, int most, struct error *err) {
    int n = 0;
    for (int v = 0; v < s->from->n_values; v++) {
        const struct value *value = &s->from->values[v];
        if (!crosses(s, v, border))
            continue;
        if (value->dtype != DT_F32 || value->rows != ROWS_TOKENS || ++n > most)
            return fail(err, ERR_UNSUPPORTED, "%s: what its layers hand on cannot go from stage to stage",
                        s->from->name);
    }
    return OK;
}

// ---- caches -----------------------------------------------------------------------------------------------------

static bool writes_cache(const struct op *op) {
    bool reads_another = op->code == OP_QKV_PREP && op->args.qkv_prep.k_absent;
    return op->code != OP_ATTENTION && op->code != OP_MLA_ATTENTION && !reads_another;
}

/* A layer may read another's keys: both are in one stage, or the model cannot be cut there. */
static enum status check_caches(const struct staging *s, struct error *err) {
    const struct program *p = s->from;
    int *writer = xcalloc((size_t)p->n_caches + 1, sizeof *writer);
    enum status st = OK;
    for (int i = 0; i < p->n_ops && st == OK; i++) {
        int c = op_cache(&p->ops[i]), stage = stage_of(s, &p->ops[i]);
        if (c >= 0 && writes_cache(&p->ops[i]))
            writer[c] = 1 + stage;
        else if (c >= 0 && writer[c] && writer[c] != 1 + stage)
            st = fail(err, ERR_UNSUPPORTED,
                      "%s: layer %d reads the keys of a layer that would be in another of %d stages", p->name,
                      p->sections[p->ops[i].section].layer, s->n_stages);
    }
    free(writer);
    return st;
}

/* Groups stay as they are, with the layers that this stage has. */
static void keep_caches(const struct staging *s, struct program *p) {
    bool *used = xcalloc((size_t)p->n_caches + 1, sizeof *used);
    for (int i = s->begin; i < s->end; i++)
        if (op_cache(&s->from->ops[i]) >= 0)
            used[op_cache(&s->from->ops[i])] = true;
    for (int g = 0; g < p->n_groups; g++)
        p->groups[g].n_layers = 0;
    for (int c = 0; c < p->n_caches; c++)
        p->caches[c].index = used[c] ? p->groups[p->caches[c].group].n_layers++ : 0;
    free(used);
}

// ---- the program ------------------------------------------------------------------------------------------------

static val here(const struct staging *s, val v) {
    if (!val_given(v) || s->column[v.id] < 0)
        return v;
    return (val){s->states.id, s->column[v.id] + v.col, v.width};
}

/* What crosses the border behind which the stage begins: columns of the new value. Returns their width. */
static int lay_out(struct staging *s) {
    int width = 0;
    for (int v = 0; v < s->from->n_values && s->stage > 0; v++)
        if (crosses(s, v, s->begin)) {
            s->column[v] = width;
            width += s->from->values[v].width;
        }
    return width;
}

static struct op states_op(const struct staging *s) {
    struct op op = {.code = OP_STATES, .section = s->from->ops[s->begin].section, .out = {s->states, NO_VAL}};
    for (int k = 0; k < OP_MAX_IN; k++)
        op.in[k] = NO_VAL;
    return op;
}

/* What it does not make takes no memory. */
static void forget_values(const struct staging *s, struct program *p) {
    for (int v = 0; v < s->from->n_values; v++)
        if (s->uses.made_by[v] < s->begin || s->uses.made_by[v] >= s->end)
            p->values[v].width = 0;
}

static struct program *record(struct staging *s) {
    int n = s->end - s->begin, at = 0, width = lay_out(s);
    struct op *ops = xcalloc((size_t)n + 1, sizeof *ops);
    struct value states = {.width = width, .rows = ROWS_TOKENS, .dtype = DT_F32};
    s->states = width ? (val){s->from->n_values, 0, width} : NO_VAL;
    if (width)
        ops[at++] = states_op(s);
    for (int i = s->begin; i < s->end; i++, at++) {
        ops[at] = s->from->ops[i];
        for (int k = 0; k < OP_MAX_IN; k++)
            ops[at].in[k] = here(s, ops[at].in[k]);
    }
    bool is_last = s->stage == s->n_stages - 1;
    struct program whole = *s->from; // with what is kept here
    whole.hidden = is_last ? here(s, s->from->hidden) : NO_VAL;
    whole.n_taps = 0;
    for (int v = 0; v < s->from->n_values && !is_last; v++)
        if (crosses(s, v, s->end))
            whole.taps[whole.n_taps++] = here(s, (val){v, 0, s->from->values[v].width});
    struct program *p = program_copy_with(&whole, ops, at, &states, width > 0);
    free(ops);
    forget_values(s, p);
    keep_caches(s, p);
    return p;
}

enum status pass_stage(const struct program *from, int stage, int n_stages, struct program **out, struct error *err) {
    BUG_IF(stage < 0 || stage >= n_stages || from->n_ranks > 1);
    struct staging s = {.from = from, .stage = stage, .n_stages = n_stages, .states = NO_VAL};
    find_layers(&s);
    if (from->n_taps > 0)
        return fail(err, ERR_UNSUPPORTED, "%s: hidden states for a draft are not kept by stages of a pipeline",
                    from->name);
    if (n_stages > s.n_layers)
        return fail(err, ERR_UNSUPPORTED, "%s: %d layers cannot be %d stages", from->name, s.n_layers, n_stages);
    find_range(&s);
    find_reads(&s);
    enum status st = check_caches(&s, err);
    if (st == OK)
        st = check_border(&s, stage > 0 ? s.begin : 0, MAX_TAPS, err);
    if (st == OK)
        st = check_border(&s, stage < n_stages - 1 ? s.end : 0, MAX_TAPS, err);
    *out = st == OK ? record(&s) : NULL;
    uses_release(&s.uses);
    free(s.last_read);
    free(s.column);
    return st;
}
