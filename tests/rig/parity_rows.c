/* parity_rows.c - see parity_rows.h. */
#include "parity_rows.h"

#include "op_rig.h"

#include <math.h>

enum { N_BLOCKS = 3 };
static const int chunks[] = {31, 8, 3, 2, 1}; // a prompt, few tokens as drafts have, and one

struct program program_cut(const struct program *p, int last, int out) {
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
    plan->n_known[0] = PARITY_TOKENS;
    for (int i = 0; i < n; i++) {
        plan->token_id[i] = tokens[first + i];
        plan->position[i] = first + i;
        plan->out_row[i] = i;
        sample[i] = sample_params_default();
        sample[i].want_logits = true;
    }
}

struct row_set program_rows(const struct backend_ops *ops, const struct how *how, const struct program *p,
                            const int32_t *tokens) {
    struct row_set rows = {p->vocab_size, calloc((size_t)PARITY_TOKENS * (size_t)p->vocab_size, sizeof(float))};
    struct cache_config config = {.block_size = PARITY_BLOCK, .n_states = 1};
    struct bucket bucket = {chunks[0], 1, chunks[0], 0};
    static struct sample_params sample[PARITY_TOKENS];
    static struct sample_result results[PARITY_TOKENS];
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

static double *as_doubles(const struct row_set *x, int n) {
    double *wide = calloc((size_t)n, sizeof *wide);
    for (int i = 0; i < n; i++)
        wide[i] = (double)x->at[i];
    return wide;
}

struct closeness rows_compare(const struct row_set *got, const struct row_set *want) {
    struct closeness c = {0};
    double largest[PARITY_TOKENS] = {0}, mean = 1e-6, both = 0, of_got = 1e-30, of_want = 1e-30, off = 0;
    int n = want->width;
    double *g = as_doubles(got, PARITY_TOKENS * n), *w = as_doubles(want, PARITY_TOKENS * n);
    for (int t = 0; t < PARITY_TOKENS; t++) {
        for (int i = 0; i < n; i++)
            largest[t] = fmax(largest[t], fabs(w[t * n + i]));
        mean += largest[t] / PARITY_TOKENS;
    }
    for (int i = 0; i < PARITY_TOKENS * n; i++) {
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

/* Backends share keys with values in caches of other shapes each, and a query is multiplied by the norm's weight where
 * they do (core/pass.h). So that both have the same program, another backend and its oracle store whole keys. */
static bool stores_whole_keys(void) { return rig_backend() != &backend_cpu; }

struct how parity_tested(const struct program *p) {
    bool cpu = rig_backend() == &backend_cpu, has_latents = false;
    for (int g = 0; g < p->n_groups; g++)
        has_latents = has_latents || p->groups[g].kind == CACHE_LATENT; // which have the element of the products
    return (struct how){.n_threads = 1,
                        .whole_keys = stores_whole_keys(),
                        .load = {.dtype = cpu ? NULL : getenv("GYRE_TEST_DTYPE"),
                                 .kv_dtype = cpu || has_latents ? NULL : getenv("GYRE_TEST_KV_DTYPE"),
                                 .quantization = cpu ? NULL : getenv("GYRE_TEST_QUANTIZATION")}};
}

struct how parity_reference(void) {
    return (struct how){.n_threads = 1, .kernels = "reference", .whole_keys = stores_whole_keys()};
}

const char *parity_dtype(void) {
    const char *dtype = getenv("GYRE_TEST_DTYPE");
    return rig_backend() == &backend_cpu ? "float32" : dtype ? dtype : "float16";
}

bool parity_is_exact(void) { return strcmp(parity_dtype(), "float32") == 0; }

bool parity_by_e4m3(const struct weight *w) {
    return !parity_is_exact() && w->out % 16 == 0 && w->in % 16 == 0 &&
           (getenv("GYRE_TEST_QUANTIZATION") || w->parts[0].dtype == DT_F8_E4M3);
}
