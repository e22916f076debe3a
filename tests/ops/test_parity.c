/* test_parity.c - a model's program walked op by op on two backends: the CPU's plain functions, and the backend under
 * test (its fast kernels when that is the CPU). What a fused or a fast kernel gets wrong shows at its own op and layer,
 * not somewhere in the logits.
 *
 * For each op the program is cut behind it and its result taken as logits: a prompt, then few tokens and single ones,
 * so that rows of both paths are seen. The CPU then computes that op alone from what the backend under test made of the
 * op's inputs, so an error is the op's own and no layer before has a part in it. ATTENTION comes with what fills its
 * cache, MOE_FFN with its MOE_ROUTE, GATED_ACT with its LINEAR, since those are one node by some paths and two by
 * others.
 *
 * The CPU reads what the device reads: rows of products rounded to 16 bits, or to e4m3 in each of the ways that a path
 * may (the nearest counts), keys and values rounded as the cache keeps them. `most` is the largest difference of a row,
 * relative to the row's largest value or, if that is more, to what the largest of a row is in the mean; `rms` and the
 * bounds are as op_judge.h has them. What eight bits themselves cost is held by a cosine, against what nothing was
 * rounded in.
 *
 *     GYRE_PARITY_MODEL=FOLDER    this model alone, with a line for every op
 *     GYRE_TEST_BACKEND, GYRE_TEST_DTYPE, GYRE_TEST_QUANTIZATION, GYRE_TEST_KV_DTYPE    what is tested */
#include "check.h"
#include "op_judge.h"
#include "op_oracle.h"
#include "op_rig.h"

#include "model/model.h"

#include <math.h>

enum { N_TOKENS = 45, BLOCK = 16, N_BLOCKS = 3, MAX_HEAD_DIM = 512 };
static const int chunks[] = {31, 8, 3, 2, 1}; // a prompt, few tokens as drafts have, and one

struct row_set {
    int width;
    float *at; // [N_TOKENS][width]
};

/* The program up to op `last`, whose result number `out` becomes the logits. Arrays are its own, what they point to is
 * not. */
static struct program cut_program(const struct program *p, int last, int out) {
    struct program c = *p;
    val v = p->ops[last].out[out];
    c.n_ops = last + 1;
    c.cap_ops = c.n_ops + 2;
    c.ops = calloc((size_t)c.cap_ops, sizeof *c.ops);
    memcpy(c.ops, p->ops, (size_t)c.n_ops * sizeof *c.ops);
    c.n_values = 0;
    for (int i = 0; i < c.n_ops; i++)
        for (int k = 0; k < OP_MAX_OUT; k++)
            c.n_values = MAX(c.n_values, p->ops[i].out[k].id + 1);
    c.cap_values = c.n_values + 2;
    c.values = calloc((size_t)c.cap_values, sizeof *c.values);
    memcpy(c.values, p->values, (size_t)c.n_values * sizeof *c.values);
    for (int i = 0; i < c.n_values; i++)
        c.values[i].last_use = MIN(c.values[i].last_use, last);
    while (c.sections[c.n_sections - 1].first_op > last)
        c.n_sections--;
    c.hidden = NO_VAL;
    op_sample(&c, p->values[v.id].rows == ROWS_TOKENS ? op_take_rows(&c, v) : v);
    return c;
}

static void fill_chunk(struct batch_plan *plan, struct sample_params *sample, const int32_t *tokens, int first, int n) {
    plan->n_tokens = plan->n_rows = n;
    plan->n_seqs = 1;
    plan->query_start[1] = n;
    plan->seq_len[0] = first + n;
    plan->n_known[0] = N_TOKENS;
    for (int i = 0; i < n; i++) {
        plan->token_id[i] = tokens[first + i];
        plan->position[i] = first + i;
        plan->out_row[i] = i;
        sample[i] = sample_params_default();
        sample[i].want_logits = true;
    }
}

static struct row_set run_program(const struct backend_ops *ops, const struct how *how, const struct program *p,
                                  const int32_t *tokens) {
    struct row_set rows = {p->vocab_size, calloc((size_t)N_TOKENS * (size_t)p->vocab_size, sizeof(float))};
    struct cache_config config = {.block_size = BLOCK, .n_states = 1};
    struct bucket bucket = {chunks[0], 1, chunks[0], 0};
    static struct sample_params sample[N_TOKENS];
    static struct sample_result results[N_TOKENS];
    struct on_device at;
    struct batch_plan plan;
    struct error err;
    for (int g = 0; g < p->n_groups; g++)
        config.n_blocks[g] = config.table_width[g] = N_BLOCKS;
    on_device_compile(ops, *how, p, &config, bucket, &at);
    batch_plan_init(&plan, bucket, p->n_groups, config.table_width);
    for (int g = 0; g < p->n_groups; g++)
        for (int i = 0; i < N_BLOCKS; i++)
            plan.block_table[g][i] = N_BLOCKS - 1 - i;
    for (int c = 0, first = 0; c < (int)ARRAY_LEN(chunks); first += chunks[c++]) {
        fill_chunk(&plan, sample, tokens, first, chunks[c]);
        EXPECT_OK(ops->run(at.exe, &plan, sample, &err), err);
        EXPECT_OK(ops->collect(at.exe, results, &err), err);
        for (int i = 0; i < chunks[c]; i++) {
            const float *logits;
            EXPECT_OK(ops->logits(at.exe, i, &logits, &err), err);
            memcpy(rows.at + (size_t)(first + i) * (size_t)rows.width, logits, (size_t)rows.width * sizeof(float));
        }
    }
    on_device_close(&at);
    batch_plan_release(&plan);
    return rows;
}

struct closeness {
    double most, rms, cosine;
    int worst_row;
};

static double *as_doubles(const struct row_set *x, int n) {
    double *wide = calloc((size_t)n, sizeof *wide);
    for (int i = 0; i < n; i++)
        wide[i] = (double)x->at[i];
    return wide;
}

/* Not a number counts as infinitely far. */
static struct closeness compare(const struct row_set *got, const struct row_set *want) {
    struct closeness c = {0};
    double largest[N_TOKENS] = {0}, mean = 1e-6, both = 0, of_got = 1e-30, of_want = 1e-30, off = 0;
    int n = want->width;
    double *g = as_doubles(got, N_TOKENS * n), *w = as_doubles(want, N_TOKENS * n);
    for (int t = 0; t < N_TOKENS; t++) {
        for (int i = 0; i < n; i++)
            largest[t] = fmax(largest[t], fabs(w[t * n + i]));
        mean += largest[t] / N_TOKENS;
    }
    for (int i = 0; i < N_TOKENS * n; i++) {
        double error = isfinite(g[i]) ? fabs(g[i] - w[i]) : INFINITY, relative = error / fmax(largest[i / n], mean);
        both += g[i] * w[i];
        of_got += g[i] * g[i];
        of_want += w[i] * w[i];
        off += error * error;
        if (relative > c.most) {
            c.most = relative;
            c.worst_row = i / n;
        }
    }
    c.rms = sqrt(off / of_want);
    c.cosine = both / sqrt(of_got * of_want);
    free(g);
    free(w);
    return c;
}

static bool has_latents; // the model at hand: a cache of latents has the element of the products

/* Backends share keys with values in caches of other shapes each, and a query is multiplied by the norm's weight where
 * they do (core/pass.h). So that both have the same program, another backend and its oracle store whole keys. */
static bool stores_whole_keys(void) { return rig_backend() != &backend_cpu; }

static struct how tested(void) {
    bool cpu = rig_backend() == &backend_cpu;
    return (struct how){.n_threads = 1,
                        .whole_keys = stores_whole_keys(),
                        .load = {.dtype = cpu ? NULL : getenv("GYRE_TEST_DTYPE"),
                                 .kv_dtype = cpu || has_latents ? NULL : getenv("GYRE_TEST_KV_DTYPE"),
                                 .quantization = cpu ? NULL : getenv("GYRE_TEST_QUANTIZATION")}};
}

// ---- an op alone ------------------------------------------------------------------------------------------------

struct walk {
    const char *folder;
    const struct model *m;
    int32_t tokens[N_TOKENS];
    struct row_set *seen; // [n_values]: what the backend under test made of each
    double worst[N_OPCODES], worst_rms[N_OPCODES];
    bool tells_all;
    int n_bad;
};

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

static int cache_read(const struct op *op) {
    return op->code == OP_ATTENTION ? op->args.attention.cache : op->code == OP_MLA_ATTENTION ? op->args.mla.cache : -1;
}
static int cache_filled(const struct op *op) {
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

static float *fill_table(const struct walk *w, const struct place *place, int width) {
    float *table = calloc((size_t)N_TOKENS * (size_t)width, sizeof *table);
    for (int v = 0; v < w->m->program->n_values; v++)
        for (int t = 0; place[v].id == 0 && t < N_TOKENS; t++)
            memcpy(table + (size_t)t * (size_t)width + place[v].col,
                   w->seen[v].at + (size_t)t * (size_t)w->seen[v].width, (size_t)w->seen[v].width * sizeof *table);
    return table;
}

/* A program of the model's caches and ropes that begins with rows of a table, and what it makes of them on the CPU. */
struct few {
    struct program p;
    struct weight_part part;
    struct weight table;
    val rows;
};

static void few_begin(struct few *few, const struct program *model, float *table, int width) {
    few->p = *model;
    few->part = (struct weight_part){.format = &qformat_plain,
                                     .dtype = DT_F32,
                                     .data = table,
                                     .n_rows = N_TOKENS,
                                     .row_stride = width,
                                     .col_stride = 1};
    few->table = (struct weight){.name = "inputs", .out = N_TOKENS, .in = width, .parts = &few->part, .n_parts = 1};
    few->p.cap_ops = few->p.cap_values = MOST_TOGETHER * OP_MAX_OUT + 4;
    few->p.ops = calloc((size_t)few->p.cap_ops, sizeof *few->p.ops);
    few->p.values = calloc((size_t)few->p.cap_values, sizeof *few->p.values);
    few->p.n_ops = few->p.n_values = 0;
    few->p.n_sections = 1;
    few->p.hidden = NO_VAL;
    few->rows = op_embed(&few->p, &few->table, 1);
    few->p.values[few->rows.id].last_use = MOST_TOGETHER;
}

static struct how reference(void) {
    return (struct how){.n_threads = 1, .kernels = "reference", .whole_keys = stores_whole_keys()};
}

static struct row_set few_end(struct few *few, val result) {
    int32_t rows[N_TOKENS];
    struct how oracle = reference();
    for (int i = 0; i < N_TOKENS; i++)
        rows[i] = i;
    op_sample(&few->p, op_take_rows(&few->p, result));
    struct row_set made = run_program(&backend_cpu, &oracle, &few->p, rows);
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

/* What products are made in; a test model's 16 bits are bfloat16, whose products are in float16. */
static const char *product_dtype(void) {
    struct load_options o = tested().load;
    return rig_backend() == &backend_cpu ? "float32" : o.dtype ? o.dtype : "float16";
}

static bool is_exact(void) { return strcmp(product_dtype(), "float32") == 0; }
static bool by_e4m3(const struct weight *w) {
    return !is_exact() && w->out % 16 == 0 && w->in % 16 == 0 &&
           (tested().load.quantization || w->parts[0].dtype == DT_F8_E4M3);
}

static bool experts_by_e4m3(const struct op *op) {
    return op->code == OP_MOE_FFN && by_e4m3(op->weights[0]) && by_e4m3(op->weights[1]);
}

static void read_row(enum rig_reading how, float *x, int n) {
    double *wide = calloc((size_t)n, sizeof *wide);
    for (int i = 0; i < n; i++)
        wide[i] = (double)x[i];
    rig_read(product_dtype(), how, wide, n);
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

/* The LINEAR of a GATED_ACT that a device may compute with it, in one node and by another path than that LINEAR alone;
 * else -1. */
static int linear_before(const struct program *p, int op) {
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
    for (int t = 0; t < N_TOKENS; t++)
        read_row(how, table + (size_t)t * (size_t)width + place[x.id].col + x.col, x.width);
}

/* A LINEAR of the model on the CPU, from rows that are read in this way. */
static struct row_set multiply_on_cpu(const struct walk *w, const struct op *linear, const struct row_set *x,
                                      enum rig_reading how, bool rounds) {
    struct rounded_weight rounded = {0};
    const struct weight *weight = rounds ? round_weight(&rounded, linear->weights[0]) : linear->weights[0];
    size_t n = (size_t)N_TOKENS * (size_t)x->width;
    float *table = calloc(n, sizeof *table);
    memcpy(table, x->at, n * sizeof *table);
    for (int i = 0; i < N_TOKENS; i++)
        read_row(how, table + (size_t)i * (size_t)x->width, x->width);
    struct few few;
    few_begin(&few, w->m->program, table, x->width);
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

/* Result k of an op on the CPU, from what the backend under test made of its inputs: by a LINEAR, with a GATED_ACT
 * behind it or not, read in this way. */
static struct row_set alone_on_cpu(const struct walk *w, int op, int k, enum rig_reading how, bool rounds_weight) {
    const struct program *p = w->m->program;
    struct together t = needed_by(p, op);
    if (linear_before(p, op) >= 0)
        add_op(&t, linear_before(p, op));
    struct place *place = calloc((size_t)p->n_values, sizeof *place);
    int width = place_inputs(p, &t, place);
    float *table = fill_table(w, place, width);
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

// ---- attention --------------------------------------------------------------------------------------------------

/* Columns of every row, head by head, as the cache under test keeps them. */
static void keep_heads(float *table, int width, int col, int n_heads, int dim) {
    double head[MAX_HEAD_DIM];
    struct load_options o = tested().load;
    for (int t = 0; t < N_TOKENS; t++)
        for (int h = 0; h < n_heads; h++) {
            float *x = table + (size_t)t * (size_t)width + col + h * dim;
            for (int i = 0; i < dim; i++)
                head[i] = (double)x[i];
            rig_round_cached(product_dtype(), o.kv_dtype, head, dim);
            for (int i = 0; i < dim; i++)
                x[i] = (float)head[i];
        }
}

/* The QKV_PREP whose keys and values an ATTENTION reads. */
static const struct op *filler_of(const struct program *p, int op) {
    for (int i = op - 1; i >= 0; i--)
        if (cache_filled(&p->ops[i]) == cache_read(&p->ops[op]))
            return &p->ops[i];
    return NULL;
}

/* Keys of a QKV_PREP's rows, which its cache holds and nobody sees: normed and turned as if they were queries. */
static struct row_set keys_of(const struct walk *w, const struct op *prep) {
    struct qkv_args a = prep->args.qkv_prep;
    const struct row_set *x = &w->seen[prep->in[0].id];
    int width = a.n_kv_heads * a.head_dim;
    float *table = calloc((size_t)N_TOKENS * (size_t)width, sizeof *table);
    for (int t = 0; t < N_TOKENS; t++)
        memcpy(table + (size_t)t * (size_t)width,
               x->at + (size_t)t * (size_t)x->width + prep->in[0].col + a.n_heads * a.head_dim,
               (size_t)width * sizeof *table);
    a.n_heads = a.n_kv_heads;
    a.k_absent = true;
    struct few few;
    few_begin(&few, w->m->program, table, width);
    struct row_set made = few_end(&few, op_qkv_prep(&few.p, few.rows, prep->weights[1], NULL, a));
    free(table);
    return made;
}

static void copy_values(const struct walk *w, const struct op *prep, float *table, int width, int col) {
    const struct qkv_args *a = &prep->args.qkv_prep;
    const struct row_set *x = &w->seen[prep->in[0].id];
    int first = prep->in[0].col + (a->n_heads + (a->v_from_k ? 0 : a->n_kv_heads)) * a->head_dim, dim = a->v_head_dim;
    double from[MAX_HEAD_DIM], to[MAX_HEAD_DIM];
    for (int t = 0; t < N_TOKENS; t++)
        for (int h = 0; h < a->n_kv_heads; h++) {
            for (int i = 0; i < dim; i++)
                to[i] = from[i] = (double)x->at[(size_t)t * (size_t)x->width + (size_t)(first + h * dim + i)];
            if (a->v_norm)
                rig_rms_norm(from, NULL, dim, (double)a->eps, false, to);
            for (int i = 0; i < dim; i++)
                table[(size_t)t * (size_t)width + (size_t)(col + h * dim + i)] = (float)to[i];
        }
}

/* ATTENTION of the queries that the backend under test made, over keys and values rounded as its cache rounds them. */
static struct row_set attention_on_cpu(const struct walk *w, int op) {
    const struct program *p = w->m->program;
    const struct op *prep = filler_of(p, op);
    struct attention_args a = p->ops[op].args.attention;
    const struct row_set *q = &w->seen[p->ops[op].in[0].id];
    struct row_set keys = keys_of(w, prep);
    struct load_options o = tested().load;
    int n_q = a.n_heads * a.head_dim, n_k = a.n_kv_heads * a.head_dim, n_v = a.n_kv_heads * a.v_head_dim,
        width = n_q + n_k + n_v;
    float *table = calloc((size_t)N_TOKENS * (size_t)width, sizeof *table);
    const char *in = rig_query_dtype(product_dtype(), o.kv_dtype, &a, BLOCK);
    for (int t = 0; t < N_TOKENS; t++) {
        for (int i = 0; i < n_q; i++) {
            double x = (double)q->at[(size_t)t * (size_t)q->width + (size_t)(p->ops[op].in[0].col + i)];
            rig_round(in, &x, 1);
            table[(size_t)t * (size_t)width + (size_t)i] = (float)x;
        }
        memcpy(table + (size_t)t * (size_t)width + n_q, keys.at + (size_t)t * (size_t)n_k, (size_t)n_k * sizeof *table);
    }
    copy_values(w, prep, table, width, n_q + n_k);
    keep_heads(table, width, n_q, a.n_kv_heads, a.head_dim);
    keep_heads(table, width, n_q + n_k, a.n_kv_heads, a.v_head_dim);
    struct qkv_args plain = {.cache = a.cache,
                             .rope = -1,
                             .n_heads = a.n_heads,
                             .n_kv_heads = a.n_kv_heads,
                             .head_dim = a.head_dim,
                             .v_head_dim = a.v_head_dim};
    struct few few;
    few_begin(&few, p, table, width);
    val made = op_attention(&few.p, op_qkv_prep(&few.p, few.rows, NULL, NULL, plain), p->ops[op].weights[0], a);
    struct row_set out = few_end(&few, made);
    free(keys.at);
    free(table);
    return out;
}

// ---- walking ----------------------------------------------------------------------------------------------------

/* The op's LINEAR, if it is one or is computed with one. */
static const struct op *linear_of(const struct program *p, int op) {
    return p->ops[op].code == OP_LINEAR ? &p->ops[op]
           : linear_before(p, op) >= 0  ? &p->ops[linear_before(p, op)]
                                        : NULL;
}

/* How far an op may be off what is made of its inputs as they are read; of 8 bits, by cosine, off what is made of them
 * as they are. */
static struct closeness bounds_of(const struct program *p, int i) {
    const struct op *linear = linear_of(p, i);
    struct closeness exact = {.most = 1e-5, .rms = 1e-5};
    // Elements that were made by another program may have been rounded the other way.
    struct closeness other_way = {.most = RIG_F16_BOUND, .rms = RIG_F16_RMS};
    // Keys and values are the oracle's own, out of the same rows: one of them that is rounded the other way moves a row
    // of scores of trained heads by twice the bound of 16 bits (gemma4: one unit of one element of a key by up
    // to 2.1e-3).
    struct closeness other_key = {.most = 3e-3, .rms = 6e-4};
    if (is_exact())
        return exact;
    if (strcmp(product_dtype(), "bfloat16") == 0)
        other_key = other_way = (struct closeness){.most = 5e-3, .rms = 1.6e-3};
    if (linear && by_e4m3(linear->weights[0]))
        return (struct closeness){.most = RIG_F8_CHAIN_BOUND, .rms = RIG_F8_CHAIN_RMS, .cosine = RIG_F8_COSINE};
    switch (p->ops[i].code) {
    case OP_ATTENTION:
        if (tested().load.kv_dtype)
            return (struct closeness){.most = RIG_CACHE_READ_BOUND, .rms = RIG_CACHE_READ_RMS, .cosine = RIG_F8_COSINE};
        return other_key;
    case OP_MLA_PREP:
    case OP_MLA_ATTENTION: // its cache holds latents in 16 bits, which scores and values of all heads are made of
        return (struct closeness){.most = 6 * other_way.most, .rms = 6 * other_way.rms};
    case OP_LINEAR:
    case OP_GATED_ACT:
    case OP_MOE_FFN: return other_way;
    case OP_GATED_ADD: // of experts and a shared one, which a device may compute as one of them (pass_shared_expert)
        return p->ops[p->values[p->ops[i].in[0].id].first_use].code == OP_MOE_FFN ? other_way : exact;
    case OP_NORM: // a gated one ends a DeltaNet layer, whose chunks are products of pairs of bfloat16: 2^-17 a number
        return val_given(p->ops[i].in[1]) ? (struct closeness){.most = 8 * 0x1p-16, .rms = 2 * 0x1p-16} : exact;
    default: return exact;
    }
}

static void tell(const struct walk *w, int i, int k, const struct closeness *c, double cosine, struct closeness may) {
    const struct op *op = &w->m->program->ops[i];
    const struct section *s = &w->m->program->sections[op->section];
    char where[40];
    snprintf(where, sizeof where, s->layer >= 0 ? "%s %d" : "%s", s->name, s->layer);
    print_message(
        "%s: op %3d, %-10s %-13s result %d: off by %.2e in row %d (%.1e may be), rms %.2e (%.1e), cosine %.6f (%.6f)\n",
        w->folder, i, where, op_name(op->code), k, c->most, c->worst_row, may.most, c->rms, may.rms, cosine,
        may.cosine);
}

/* Of several ways to read a row the one that is nearest to what was got: a step's path is that of its size. */
static void take_nearer(struct row_set *want, const struct row_set *got, struct row_set other) {
    int n = got->width;
    for (int t = 0; t < N_TOKENS; t++) {
        double far = 0, other_far = 0;
        for (int i = t * n; i < (t + 1) * n; i++) {
            far += pow((double)want->at[i] - (double)got->at[i], 2);
            other_far += pow((double)other.at[i] - (double)got->at[i], 2);
        }
        if (other_far < far)
            memcpy(want->at + t * n, other.at + t * n, (size_t)n * sizeof *want->at);
    }
    free(other.at);
}

/* By e4m3: every way to read, and of what a gated product hands on, which may never have been written, every way to
 * make it. */
static void take_nearest_reading(const struct walk *w, int i, int k, const struct row_set *got, struct row_set *want) {
    const struct program *p = w->m->program;
    const struct op *op = &p->ops[i];
    bool rounds = linear_of(p, i)->weights[0]->parts[0].dtype != DT_F8_E4M3;
    int maker = op->code == OP_LINEAR ? p->values[op->in[0].id].first_use : -1;
    bool of_gated = maker >= 0 && linear_before(p, maker) >= 0 && op->in[0].width == p->values[op->in[0].id].width;
    int n_readings = of_gated ? N_GATED_READINGS : N_READINGS;
    for (int how = 0; how < n_readings; how++)
        take_nearer(want, got, alone_on_cpu(w, i, k, (enum rig_reading)how, rounds));
    if (!of_gated)
        return;
    bool maker_rounds = p->ops[linear_before(p, maker)].weights[0]->parts[0].dtype != DT_F8_E4M3;
    for (int how = 0; how < N_ROW_READINGS; how++) {
        struct row_set x = alone_on_cpu(w, maker, 0, (enum rig_reading)how, maker_rounds);
        for (int second = 0; second < n_readings; second++)
            take_nearer(want, got, multiply_on_cpu(w, op, &x, (enum rig_reading)second, rounds));
        free(x.at);
    }
}

static struct row_set wanted(const struct walk *w, int i, int k, const struct row_set *got) {
    const struct op *op = &w->m->program->ops[i], *linear = linear_of(w->m->program, i);
    if (op->code == OP_ATTENTION && !is_exact())
        return attention_on_cpu(w, i);
    struct row_set want = alone_on_cpu(w, i, k, READING_16, false);
    if (linear && by_e4m3(linear->weights[0]))
        take_nearest_reading(w, i, k, got, &want);
    return want;
}

/* Whether eight bits are read, so that a cosine with what is made of unrounded numbers says something. */
static bool is_of_8_bits(const struct program *p, int i) {
    const struct op *linear = linear_of(p, i);
    return p->ops[i].code == OP_ATTENTION ? tested().load.kv_dtype && !is_exact()
                                          : p->ops[i].code == OP_LINEAR && by_e4m3(linear->weights[0]);
}

static void walk_result(struct walk *w, int i, int k) {
    const struct program *p = w->m->program;
    const struct op *op = &p->ops[i];
    struct how options = tested(), plain = reference();
    struct program cut = cut_program(p, i, k);
    struct row_set *got = &w->seen[op->out[k].id], want;
    double cosine = 1, left = 1; // with what is made of unrounded numbers: of what was got, and of the oracle
    *got = run_program(rig_backend(), &options, &cut, w->tokens);
    if (op->code == OP_EMBED)
        want = run_program(&backend_cpu, &plain, &cut, w->tokens);
    else if (op->code == OP_TAKE_ROWS)
        want = run_program(rig_backend(), &options, &cut, w->tokens);
    else
        want = wanted(w, i, k, got);
    if (is_of_8_bits(p, i)) {
        struct row_set meant = alone_on_cpu(w, i, k, READING_AS_IT_IS, false);
        cosine = compare(got, &meant).cosine;
        left = compare(&want, &meant).cosine;
        free(meant.at);
    }
    struct closeness c = compare(got, &want), may = bounds_of(p, i);
    may.cosine = may.cosine > 0 ? RIG_F8_LEFT(left) : 0;
    bool bad = !(c.most <= may.most) || !(c.rms <= may.rms) || !(cosine >= may.cosine);
    if (w->tells_all || bad)
        tell(w, i, k, &c, cosine, may);
    w->n_bad += bad;
    w->worst[op->code] = fmax(w->worst[op->code], c.most);
    w->worst_rms[op->code] = fmax(w->worst_rms[op->code], c.rms);
    free(want.at);
    free(cut.ops);
    free(cut.values);
}

static void tell_worst(const struct walk *w) {
    char line[900];
    int n = 0;
    for (int code = 0; code < N_OPCODES; code++)
        if (w->worst[code] > 0)
            n += snprintf(line + n, sizeof line - (size_t)n, "  %s %.1e %.1e", op_name((enum opcode)code),
                          w->worst[code], w->worst_rms[code]);
    print_message("%s: off at most by%s\n", w->folder, n ? line : " nothing");
}

/* The number of results that are farther off than they may be, after a line about each. */
static int walk_model(const char *folder, bool tells_all) {
    struct model *m;
    struct error err;
    EXPECT_OK(model_open(folder, &(struct model_options){0}, &m, &err), err);
    struct walk w = {.folder = folder, .m = m, .tells_all = tells_all};
    has_latents = false;
    for (int g = 0; g < m->program->n_groups; g++)
        has_latents = has_latents || m->program->groups[g].kind == CACHE_LATENT;
    w.seen = calloc((size_t)m->program->n_values, sizeof *w.seen);
    for (int t = 0; t < N_TOKENS; t++)
        w.tokens[t] = (int32_t)((test_seed() >> 8) * 31 + (uint64_t)t * 7919 + (uint64_t)(t * t)) % m->spec->vocab_size;
    for (int t = 0; t < N_TOKENS; t++)
        w.tokens[t] = w.tokens[t] < 0 ? -w.tokens[t] : w.tokens[t];
    for (int i = 0; i < m->program->n_ops; i++)
        for (int k = 0; k < OP_MAX_OUT; k++) {
            val v = m->program->ops[i].out[k];
            if (val_given(v) && m->program->values[v.id].dtype == DT_F32)
                walk_result(&w, i, k);
        }
    tell_worst(&w);
    for (int v = 0; v < m->program->n_values; v++)
        free(w.seen[v].at);
    free(w.seen);
    model_free(m);
    return w.n_bad;
}

/* One of every family, or the models that this process is to take. */
static void every_op_of_every_model_is_the_references(void **state) {
    static const char *const all[] = {"gemma4",      "gemma3",  "gemma2",      "llama",     "mistral",
                                      "qwen2",       "qwen3",   "gpt_oss",     "diffllama", "qwen3_5",
                                      "deepseek_v3", "mixtral", "qwen3_5_moe", "qwen3_moe"};
    const char *one = getenv("GYRE_PARITY_MODEL");
    int n_bad = 0;
    (void)state;
    if (one)
        n_bad = walk_model(one, true);
    for (size_t i = 0; !one && i < ARRAY_LEN(all); i++) {
        char folder[64];
        if (!rig_takes_case())
            continue;
        snprintf(folder, sizeof folder, "tests/models/%s", all[i]);
        n_bad += walk_model(folder, false);
    }
    EXPECT_EQ(n_bad, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_op_of_every_model_is_the_references)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
