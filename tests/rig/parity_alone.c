/* parity_alone.c - see parity_alone.h. */
#include "parity_alone.h"

#include "op_rig.h"

/* Ops that are computed together, in order; columns of a table are what they read of others. */
enum { MOST_TOGETHER = 8 };
struct together {
    int ops[MOST_TOGETHER], n;
};

static void add_op(struct together *t, int op) {
    int at = t->n;
    for (int i = 0; i < t->n; i++)
        if (t->ops[i] == op)
            return;
    BUG_IF(t->n == MOST_TOGETHER);
    for (; at > 0 && t->ops[at - 1] > op; at--)
        t->ops[at] = t->ops[at - 1];
    t->ops[at] = op;
    t->n++;
}

int cache_read(const struct op *op) {
    return op->code == OP_ATTENTION ? op->args.attention.cache : op->code == OP_MLA_ATTENTION ? op->args.mla.cache : -1;
}
int cache_filled(const struct op *op) {
    if (op->code == OP_QKV_PREP && !op->args.qkv_prep.k_absent)
        return op->args.qkv_prep.cache;
    return op->code == OP_MLA_PREP ? op->args.mla.cache : -1;
}

/* The op, and what it cannot be without: who fills the cache that it reads, and who chose its experts. */
static struct together needed_by(const struct program *p, int op) {
    struct together t = {0};
    add_op(&t, op);
    for (int i = 0; i < op; i++)
        if (cache_read(&p->ops[op]) >= 0 && cache_filled(&p->ops[i]) == cache_read(&p->ops[op]))
            add_op(&t, i);
    for (int k = 0; k < OP_MAX_IN; k++) {
        val v = p->ops[op].in[k];
        if (val_given(v) && (p->values[v.id].dtype != DT_F32 || p->ops[op].code == OP_ATTENTION))
            add_op(&t, p->values[v.id].first_use);
    }
    return t;
}

/* Where a value of the model is in the program of few ops: its number there and its first column. */
struct place {
    int id, col;
};

/* Columns of the table, which is value 0, for what the ops read and do not make; returns how many. */
static int place_inputs(const struct program *p, const struct together *t, struct place *place) {
    int width = 0;
    for (int v = 0; v < p->n_values; v++)
        place[v] = (struct place){-1, 0};
    for (int i = 0; i < t->n; i++)
        for (int k = 0; k < OP_MAX_OUT; k++)
            if (val_given(p->ops[t->ops[i]].out[k]))
                place[p->ops[t->ops[i]].out[k].id].id = 1; // for now: not of the table
    for (int i = 0; i < t->n; i++)
        for (int k = 0; k < OP_MAX_IN; k++) {
            val v = p->ops[t->ops[i]].in[k];
            if (!val_given(v) || place[v.id].id >= 0)
                continue;
            place[v.id] = (struct place){0, width};
            width += p->values[v.id].width;
        }
    return width;
}

static float *fill_table(const struct seen *seen, const struct place *place, int width) {
    float *table = calloc((size_t)PARITY_TOKENS * (size_t)width, sizeof *table);
    for (int v = 0; v < seen->p->n_values; v++)
        for (int t = 0; place[v].id == 0 && t < PARITY_TOKENS; t++)
            memcpy(table + (size_t)t * (size_t)width + place[v].col,
                   seen->rows[v].at + (size_t)t * (size_t)seen->rows[v].width,
                   (size_t)seen->rows[v].width * sizeof *table);
    return table;
}

void few_begin(struct few *few, const struct program *model, float *table, int width) {
    few->p = *model;
    few->part = (struct weight_part){.format = &qformat_plain,
                                     .dtype = DT_F32,
                                     .data = table,
                                     .n_rows = PARITY_TOKENS,
                                     .row_stride = width,
                                     .col_stride = 1};
    few->table =
        (struct weight){.name = "inputs", .out = PARITY_TOKENS, .in = width, .parts = &few->part, .n_parts = 1};
    few->p.cap_ops = few->p.cap_values = MOST_TOGETHER * OP_MAX_OUT + 4;
    few->p.ops = calloc((size_t)few->p.cap_ops, sizeof *few->p.ops);
    few->p.values = calloc((size_t)few->p.cap_values, sizeof *few->p.values);
    few->p.n_ops = few->p.n_values = 0;
    few->p.n_sections = 1;
    few->p.hidden = NO_VAL;
    few->rows = op_embed(&few->p, &few->table, 1);
    few->p.values[few->rows.id].last_use = MOST_TOGETHER;
}

struct row_set few_end(struct few *few, val result) {
    int32_t rows[PARITY_TOKENS];
    struct how oracle = parity_reference();
    for (int i = 0; i < PARITY_TOKENS; i++)
        rows[i] = i;
    op_sample(&few->p, op_take_rows(&few->p, result));
    struct row_set made = program_rows(&backend_cpu, &oracle, &few->p, rows);
    free(few->p.ops);
    free(few->p.values);
    return made;
}

static void copy_op(const struct program *p, int op, struct place *place, struct program *few) {
    struct op copy = p->ops[op];
    for (int k = 0; k < OP_MAX_IN; k++)
        if (val_given(copy.in[k]))
            copy.in[k] = (val){place[copy.in[k].id].id, place[copy.in[k].id].col + copy.in[k].col, copy.in[k].width};
    for (int k = 0; k < OP_MAX_OUT; k++)
        if (val_given(copy.out[k])) {
            struct value made = p->values[copy.out[k].id];
            made.rows = ROWS_TOKENS;
            made.first_use = few->n_ops;
            made.last_use = few->n_ops + MOST_TOGETHER;
            place[copy.out[k].id] = (struct place){few->n_values, 0};
            copy.out[k].id = few->n_values;
            few->values[few->n_values++] = made;
        }
    copy.section = 0;
    few->ops[few->n_ops++] = copy;
}

static bool experts_by_e4m3(const struct op *op) {
    return op->code == OP_MOE_FFN && parity_by_e4m3(op->weights[0]) && parity_by_e4m3(op->weights[1]);
}

static void read_row(enum rig_reading how, float *x, int n) {
    double *wide = calloc((size_t)n, sizeof *wide);
    for (int i = 0; i < n; i++)
        wide[i] = (double)x[i];
    rig_read(parity_dtype(), how, wide, n);
    for (int i = 0; i < n; i++)
        x[i] = (float)wide[i];
    free(wide);
}

/* A weight as products by e4m3 have it: with a scale a row, where it was not stored so. */
struct rounded_weight {
    struct weight w;
    struct weight_part part;
};

static const struct weight *round_weight(struct rounded_weight *r, const struct weight *w) {
    float *x = calloc((size_t)w->out * (size_t)w->in, sizeof *x);
    double *row = calloc((size_t)w->in, sizeof *row);
    weight_rows_f32(w, 0, w->out, x);
    for (int64_t o = 0; o < w->out; o++) {
        for (int64_t i = 0; i < w->in; i++)
            row[i] = (double)x[o * w->in + i];
        rig_round_weight_row(row, (int)w->in);
        for (int64_t i = 0; i < w->in; i++)
            x[o * w->in + i] = (float)row[i];
    }
    free(row);
    r->part = (struct weight_part){
        .format = &qformat_plain, .dtype = DT_F32, .data = x, .n_rows = w->out, .row_stride = w->in, .col_stride = 1};
    r->w = (struct weight){.name = w->name, .out = w->out, .in = w->in, .parts = &r->part, .n_parts = 1};
    return &r->w;
}

int linear_of_pair(const struct program *p, int op) {
    bool pair = p->ops[op].code == OP_GATED_ACT && op > 0 && p->ops[op - 1].code == OP_LINEAR &&
                p->ops[op].in[0].id == p->ops[op - 1].out[0].id && p->ops[op].in[1].id == p->ops[op - 1].out[0].id;
    return pair ? op - 1 : -1;
}

/* What a LINEAR or the experts read of the table; what they read of other ops is not of it. */
static void read_columns(const struct op *op, const struct place *place, enum rig_reading how, float *table,
                         int width) {
    val x = op->in[0];
    if ((op->code != OP_LINEAR && op->code != OP_MOE_FFN) || place[x.id].id != 0)
        return;
    for (int t = 0; t < PARITY_TOKENS; t++)
        read_row(how, table + (size_t)t * (size_t)width + place[x.id].col + x.col, x.width);
}

struct row_set linear_alone(const struct seen *seen, const struct op *linear, const struct row_set *x,
                            enum rig_reading how, bool rounds) {
    struct rounded_weight rounded = {0};
    const struct weight *weight = rounds ? round_weight(&rounded, linear->weights[0]) : linear->weights[0];
    size_t n = (size_t)PARITY_TOKENS * (size_t)x->width;
    float *table = calloc(n, sizeof *table);
    memcpy(table, x->at, n * sizeof *table);
    for (int i = 0; i < PARITY_TOKENS; i++)
        read_row(how, table + (size_t)i * (size_t)x->width, x->width);
    struct few few;
    few_begin(&few, seen->p, table, x->width);
    struct row_set made = few_end(&few, op_linear(&few.p, few.rows, weight, linear->weights[1]));
    free((void *)(uintptr_t)rounded.part.data);
    free(table);
    return made;
}

/* Matrices of the experts that end the program, if there are any, as e4m3 has them where they were not stored so. */
static void round_experts(struct program *p, struct rounded_weight *r) {
    struct op *op = &p->ops[p->n_ops - 1];
    for (int k = 0; k < 2 && experts_by_e4m3(op); k++)
        if (op->weights[k]->parts[0].dtype != DT_F8_E4M3)
            op->weights[k] = round_weight(&r[k], op->weights[k]);
}

struct row_set op_alone(const struct seen *seen, int op, int k, enum rig_reading how, bool rounds_weight) {
    const struct program *p = seen->p;
    struct together t = needed_by(p, op);
    if (linear_of_pair(p, op) >= 0)
        add_op(&t, linear_of_pair(p, op));
    struct place *place = calloc((size_t)p->n_values, sizeof *place);
    int width = place_inputs(p, &t, place);
    float *table = fill_table(seen, place, width);
    const struct op *first = &p->ops[t.ops[0]];
    struct rounded_weight rounded = {0}, of_experts[2] = {0};
    struct few few;
    for (int i = 0; i < t.n; i++)
        read_columns(&p->ops[t.ops[i]], place, how, table, width);
    few_begin(&few, p, table, width);
    for (int i = 0; i < t.n; i++)
        copy_op(p, t.ops[i], place, &few.p);
    if (rounds_weight)
        few.p.ops[1].weights[0] = round_weight(&rounded, first->weights[0]);
    if (how != READING_AS_IT_IS)
        round_experts(&few.p, of_experts);
    struct row_set made = few_end(&few, few.p.ops[few.p.n_ops - 1].out[k]);
    free((void *)(uintptr_t)rounded.part.data);
    for (int n = 0; n < 2; n++)
        free((void *)(uintptr_t)of_experts[n].part.data);
    free(table);
    free(place);
    return made;
}
