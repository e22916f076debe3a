/* test_parity.c - a model's program walked op by op on two backends: the CPU's plain functions, and the backend under test (its fast kernels
 * when that is the CPU). What a fused or a fast kernel gets wrong shows at its own op and layer, not somewhere in the logits.
 *
 * For each op the program is cut behind it and its result taken as logits: a prompt in two chunks, then single tokens, so that rows
 * of both paths are seen. The CPU then computes that op alone from what the backend under test made of the op's inputs, so an error is
 * the op's own and no layer before has a part in it. ATTENTION comes with what fills its cache, MOE_FFN with its MOE_ROUTE. An op's
 * error is the largest difference of a row, relative to the row's largest value or, if that is more, to what the largest of a row is in
 * the mean.
 *
 *     GYRE_PARITY_MODEL=FOLDER    this model alone, with a line for every op
 *     GYRE_TEST_BACKEND, GYRE_TEST_DTYPE, GYRE_TEST_QUANTIZATION, GYRE_TEST_KV_DTYPE    what is tested
 *
 * Bounds: those that the op tests have for products, queries, keys and values of that many bits (op_rig.h). */
#include "check.h"
#include "op_rig.h"

#include "model/model.h"

#include <math.h>

enum { N_TOKENS = 45, BLOCK = 16, N_BLOCKS = 3 };
static const int chunks[] = {33, 10, 1, 1};

struct row_set {
    int width;
    float *at; // [N_TOKENS][width]
};

/* The program up to op `last`, whose result number `out` becomes the logits. Arrays are its own, what they point to is not. */
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

static void fill_chunk(struct batch_plan *plan, const int32_t *tokens, int first, int n) {
    plan->n_tokens = plan->n_rows = n;
    plan->n_seqs = 1;
    plan->query_start[1] = n;
    plan->seq_len[0] = first + n;
    plan->n_known[0] = N_TOKENS;
    for (int i = 0; i < n; i++) {
        plan->token_id[i] = tokens[first + i];
        plan->position[i] = first + i;
        plan->out_row[i] = i;
        plan->sample[i] = sample_params_default();
        plan->sample[i].want_logits = true;
    }
}

static struct row_set run_program(const struct backend_ops *ops, const struct backend_options *options, const struct program *p,
                                  const int32_t *tokens) {
    struct row_set rows = {p->vocab_size, calloc((size_t)N_TOKENS * (size_t)p->vocab_size, sizeof(float))};
    struct cache_config config = {.block_size = BLOCK, .n_states = 1};
    struct bucket bucket = {chunks[0], 1, chunks[0], 0};
    static struct sample_result results[N_TOKENS];
    struct backend *b;
    struct executable *exe;
    struct batch_plan plan;
    struct error err;
    for (int g = 0; g < p->n_groups; g++)
        config.n_blocks[g] = config.table_width[g] = N_BLOCKS;
    EXPECT_OK(ops->open(options, &b, &err), err);
    EXPECT_OK(ops->place_weights(b, p, &err), err);
    EXPECT_OK(ops->alloc_cache(b, p, &config, &err), err);
    EXPECT_OK(ops->compile(b, p, bucket, &exe, &err), err);
    batch_plan_init(&plan, bucket, p->n_groups, config.table_width);
    for (int g = 0; g < p->n_groups; g++)
        for (int i = 0; i < N_BLOCKS; i++)
            plan.block_table[g][i] = N_BLOCKS - 1 - i;
    for (int c = 0, first = 0; c < (int)ARRAY_LEN(chunks); first += chunks[c++]) {
        fill_chunk(&plan, tokens, first, chunks[c]);
        EXPECT_OK(ops->run(exe, &plan, &err), err);
        EXPECT_OK(ops->collect(exe, results, &err), err);
        for (int i = 0; i < chunks[c]; i++)
            memcpy(rows.at + (size_t)(first + i) * (size_t)rows.width, ops->logits(exe, i), (size_t)rows.width * sizeof(float));
    }
    ops->free_executable(exe);
    ops->free(b);
    batch_plan_release(&plan);
    return rows;
}

/* Not a number counts as infinitely far. */
static double row_error(const struct row_set *got, const struct row_set *want, int *worst_row) {
    double worst = 0, largest[N_TOKENS] = {0}, mean = 1e-6;
    for (int t = 0; t < N_TOKENS; t++) {
        for (int i = 0; i < want->width; i++)
            largest[t] = fmax(largest[t], fabs((double)want->at[(size_t)t * (size_t)want->width + (size_t)i]));
        mean += largest[t] / N_TOKENS;
    }
    for (int t = 0; t < N_TOKENS; t++) {
        double off = 0;
        for (int i = 0; i < want->width; i++) {
            double w = (double)want->at[(size_t)t * (size_t)want->width + (size_t)i];
            double g = (double)got->at[(size_t)t * (size_t)want->width + (size_t)i];
            off = isfinite(g) ? fmax(off, fabs(g - w)) : INFINITY;
        }
        off /= fmax(largest[t], mean);
        if (off > worst) {
            worst = off;
            *worst_row = t;
        }
    }
    return worst;
}

static struct backend_options tested(void) {
    bool cpu = rig_backend() == &backend_cpu;
    return (struct backend_options){.n_threads = 1,
                                    .dtype = cpu ? NULL : getenv("GYRE_TEST_DTYPE"),
                                    .kv_dtype = cpu ? NULL : getenv("GYRE_TEST_KV_DTYPE"),
                                    .quantization = cpu ? NULL : getenv("GYRE_TEST_QUANTIZATION")};
}

// ---- an op alone ------------------------------------------------------------------------------------------------

struct walk {
    const char *folder;
    const struct model *m;
    int32_t tokens[N_TOKENS];
    struct row_set *seen; // [n_values]: what the backend under test made of each
    double worst[N_OPCODES];
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
            memcpy(table + (size_t)t * (size_t)width + place[v].col, w->seen[v].at + (size_t)t * (size_t)w->seen[v].width,
                   (size_t)w->seen[v].width * sizeof *table);
    return table;
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

/* Result k of an op on the CPU, from what the backend under test made of its inputs. */
static struct row_set alone_on_cpu(const struct walk *w, int op, int k) {
    const struct program *p = w->m->program;
    struct together t = needed_by(p, op);
    struct place *place = calloc((size_t)p->n_values, sizeof *place);
    struct program few = *p;
    int width = place_inputs(p, &t, place);
    float *table = fill_table(w, place, width);
    struct weight_part part = {
        .format = &qformat_plain, .dtype = DT_F32, .data = table, .n_rows = N_TOKENS, .row_stride = width, .col_stride = 1};
    struct weight weight = {.name = "inputs", .out = N_TOKENS, .in = width, .parts = &part, .n_parts = 1};
    int32_t rows[N_TOKENS];
    for (int i = 0; i < N_TOKENS; i++)
        rows[i] = i;
    few.cap_ops = few.cap_values = MOST_TOGETHER * OP_MAX_OUT + 4;
    few.ops = calloc((size_t)few.cap_ops, sizeof *few.ops);
    few.values = calloc((size_t)few.cap_values, sizeof *few.values);
    few.n_ops = few.n_values = 0;
    few.n_sections = 1;
    few.hidden = NO_VAL;
    val all = op_embed(&few, &weight, 1);
    few.values[all.id].last_use = MOST_TOGETHER;
    for (int i = 0; i < t.n; i++)
        copy_op(p, t.ops[i], place, &few);
    op_sample(&few, op_take_rows(&few, few.ops[few.n_ops - 1].out[k]));
    struct row_set made = run_program(&backend_cpu, &(struct backend_options){.n_threads = 1, .kernels = "reference"}, &few, rows);
    free(few.ops);
    free(few.values);
    free(table);
    free(place);
    return made;
}

// ---- walking ----------------------------------------------------------------------------------------------------

/* How far an op may be off. */
static double bound_of(const struct op *op) {
    struct backend_options o = tested();
    bool exact = rig_backend() == &backend_cpu || (o.dtype && strcmp(o.dtype, "float32") == 0);
    double bound = exact ? 1e-5 : o.dtype && strcmp(o.dtype, "bfloat16") == 0 ? RIG_BF16_BOUND : RIG_F16_BOUND;
    if (op->code == OP_LINEAR && !exact && (o.quantization || op->weights[0]->parts[0].dtype == DT_F8_E4M3))
        return fmax(bound, RIG_F8_BOUND);
    if (op->code == OP_ATTENTION && o.kv_dtype && strcmp(o.kv_dtype, "fp8") == 0)
        return fmax(bound, RIG_FP8_CACHE_BOUND);
    if (op->code == OP_ATTENTION && o.kv_dtype && strcmp(o.kv_dtype, "int8") == 0)
        return fmax(bound, RIG_INT8_CACHE_BOUND);
    return bound;
}

static void tell(const struct walk *w, int i, int k, double error, int row) {
    const struct op *op = &w->m->program->ops[i];
    const struct section *s = &w->m->program->sections[op->section];
    char where[40];
    snprintf(where, sizeof where, s->layer >= 0 ? "%s %d" : "%s", s->name, s->layer);
    print_message("%s: op %3d, %-10s %-13s result %d: off by %.2e in row %d, %.2e may be\n", w->folder, i, where, op_name(op->code), k,
                  error, row, bound_of(op));
}

static void walk_result(struct walk *w, int i, int k) {
    const struct program *p = w->m->program;
    const struct op *op = &p->ops[i];
    struct backend_options options = tested();
    struct program cut = cut_program(p, i, k);
    struct row_set *got = &w->seen[op->out[k].id], want;
    *got = run_program(rig_backend(), &options, &cut, w->tokens);
    if (op->code == OP_EMBED || op->code == OP_TAKE_ROWS)
        want = run_program(op->code == OP_EMBED ? &backend_cpu : rig_backend(),
                           op->code == OP_EMBED ? &(struct backend_options){.n_threads = 1, .kernels = "reference"} : &options, &cut,
                           w->tokens);
    else
        want = alone_on_cpu(w, i, k);
    int row = 0;
    double error = row_error(got, &want, &row);
    bool bad = !(error <= bound_of(op));
    if (w->tells_all || bad)
        tell(w, i, k, error, row);
    w->n_bad += bad;
    w->worst[op->code] = fmax(w->worst[op->code], error);
    free(want.at);
    free(cut.ops);
    free(cut.values);
}

static void tell_worst(const struct walk *w) {
    char line[600];
    int n = 0;
    for (int code = 0; code < N_OPCODES; code++)
        if (w->worst[code] > 0)
            n += snprintf(line + n, sizeof line - (size_t)n, "  %s %.1e", op_name((enum opcode)code), w->worst[code]);
    print_message("%s: off at most by%s\n", w->folder, n ? line : " nothing");
}

/* The number of results that are farther off than they may be, after a line about each. */
static int walk_model(const char *folder, bool tells_all) {
    struct model *m;
    struct error err;
    EXPECT_OK(model_open(folder, &(struct model_options){0}, &m, &err), err);
    struct walk w = {.folder = folder, .m = m, .tells_all = tells_all};
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
    static const char *const all[] = {"gemma4",  "gemma3",    "gemma2",  "llama",       "mistral", "qwen2",       "qwen3",
                                      "gpt_oss", "diffllama", "qwen3_5", "deepseek_v3", "mixtral", "qwen3_5_moe", "qwen3_moe"};
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
