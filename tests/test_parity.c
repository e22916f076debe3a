/* test_parity.c - a model's program walked op by op on two backends: the CPU's plain functions, and the backend under test (its fast kernels
 * when that is the CPU). What a fused or a fast kernel gets wrong shows at its own op and layer, not somewhere in the logits.
 *
 * For each op the program is cut behind it and its result taken as logits: a prompt in two chunks, then single tokens, so that rows
 * of both paths are seen. An op's error is the largest difference of a row, relative to that row's largest value.
 *
 *     GYRE_PARITY_MODEL=FOLDER    this model alone, with a line for every op
 *     GYRE_TEST_BACKEND, GYRE_TEST_DTYPE, GYRE_TEST_QUANTIZATION, GYRE_TEST_KV_DTYPE    what is tested
 *
 * Bounds: errors grow through layers as rounding does, so an op may be WORSE times as far off as the worst before it, and no farther
 * than the type of products allows. */
#include "check.h"
#include "op_rig.h"

#include "model/model.h"

#include <glob.h>
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
    double worst = 0;
    for (int t = 0; t < N_TOKENS; t++) {
        double largest = 1e-6, off = 0;
        for (int i = 0; i < want->width; i++) {
            double w = (double)want->at[(size_t)t * (size_t)want->width + (size_t)i];
            double g = (double)got->at[(size_t)t * (size_t)want->width + (size_t)i];
            largest = fmax(largest, fabs(w));
            off = isfinite(g) ? fmax(off, fabs(g - w)) : INFINITY;
        }
        if (off / largest > worst) {
            worst = off / largest;
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

/* How far an op may be off at most, and beside the worst before it. Experts, once chosen otherwise, are other numbers. */
static double most(void) {
    struct backend_options o = tested();
    bool exact = rig_backend() == &backend_cpu || (o.dtype && strcmp(o.dtype, "float32") == 0);
    if (o.quantization || o.kv_dtype)
        return 1; // models this small multiply every error: what diverges at once is what shows
    return exact ? 5e-3 : o.dtype && strcmp(o.dtype, "float16") == 0 ? 3e-2 : 0.2;
}
/* A product of e4m3 with e4m3 is some per cent off at once: each has three bits behind the first. */
static double to_begin_with(void) { return tested().quantization ? 0.12 : most() / 8; }
enum { WORSE = 8 };

struct walk {
    const char *folder;
    const struct model *m;
    int32_t tokens[N_TOKENS];
    double worst_before;
    bool tells_all;
    int n_bad;
};

static void tell(const struct walk *w, int i, int k, double error, int row) {
    const struct section *s = &w->m->program->sections[w->m->program->ops[i].section];
    char where[40];
    snprintf(where, sizeof where, s->layer >= 0 ? "%s %d" : "%s", s->name, s->layer);
    print_message("%s: op %3d, %-10s %-13s result %d: off by %.2e in row %d, %.2e before\n", w->folder, i, where,
                  op_name(w->m->program->ops[i].code), k, error, row, w->worst_before);
}

static void walk_op(struct walk *w, int i, int k) {
    const struct program *p = w->m->program;
    struct backend_options options = tested();
    struct program cut = cut_program(p, i, k);
    struct row_set want = run_program(&backend_cpu, &(struct backend_options){.n_threads = 1, .kernels = "reference"}, &cut, w->tokens);
    struct row_set got = run_program(rig_backend(), &options, &cut, w->tokens);
    int row = 0;
    double error = row_error(&got, &want, &row);
    bool bad = !(error <= most() && error <= fmax(to_begin_with(), WORSE * w->worst_before));
    if (w->tells_all || (bad && w->n_bad == 0))
        tell(w, i, k, error, row);
    w->n_bad += bad;
    w->worst_before = fmax(w->worst_before, error);
    free(want.at);
    free(got.at);
    free(cut.ops);
    free(cut.values);
}

/* The number of ops that diverge, after a line about the first. */
static int walk_model(const char *folder, bool tells_all) {
    struct model *m;
    struct error err;
    EXPECT_OK(model_open(folder, &(struct model_options){0}, &m, &err), err);
    struct walk w = {.folder = folder, .m = m, .tells_all = tells_all};
    for (int t = 0; t < N_TOKENS; t++)
        w.tokens[t] = (int32_t)((test_seed() >> 8) * 31 + (uint64_t)t * 7919 + (uint64_t)(t * t)) % m->spec->vocab_size;
    for (int t = 0; t < N_TOKENS; t++)
        w.tokens[t] = w.tokens[t] < 0 ? -w.tokens[t] : w.tokens[t];
    for (int i = 0; i < m->program->n_ops; i++)
        for (int k = 0; k < OP_MAX_OUT; k++) {
            val v = m->program->ops[i].out[k];
            if (val_given(v) && m->program->values[v.id].dtype == DT_F32)
                walk_op(&w, i, k);
        }
    model_free(m);
    return w.n_bad;
}

static void every_op_of_every_dense_model_is_the_references(void **state) {
    static const char *const dense[] = {"llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "gemma4"};
    const char *one = getenv("GYRE_PARITY_MODEL");
    int n_bad = 0;
    (void)state;
    if (one)
        n_bad = walk_model(one, true);
    for (size_t i = 0; !one && i < ARRAY_LEN(dense); i++) {
        char folder[64];
        snprintf(folder, sizeof folder, "tests/models/%s", dense[i]);
        n_bad += walk_model(folder, false);
    }
    EXPECT_EQ(n_bad, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_op_of_every_dense_model_is_the_references)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
