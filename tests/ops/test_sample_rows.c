/* test_sample_rows.c - SAMPLE of a backend against core/sample.c: rows of a table become logits, and every field of
 * every result is compared. Runs on the backend of $GYRE_TEST_BACKEND.
 *
 * Tokens, ranks and choices are the same, without exception: masses are integers (core/sample_weight.h).
 * Log-probabilities, whose sums are made in another order, agree to 1e-4. */
#include "check.h"
#include "op_rig.h"

#include "base/random.h"

#include <math.h>

static uint64_t counter;
static double uniform(void) { return philox_uniform(test_seed(), counter++, 78); }
static int below(int n) { return (int)(uniform() * n); }

enum { MOST_ROWS = 24, MOST_LISTED = 400, MOST_LOGITS = 262145 };

/* A program whose logits of a token are the token's row of a table. */
struct table {
    int n_rows, width;
    float *at; // [n_rows][width]
    struct arena arena;
    struct program *p;
    const struct backend_ops *ops;
    struct on_device on;
    struct batch_plan plans[2];
    struct sample_params sample[2][MOST_ROWS];
    struct sample_scratch scratch;
};

static void table_open(struct table *t, int n_rows, int width) {
    *t = (struct table){.n_rows = n_rows, .width = width, .ops = rig_backend()};
    t->at = arena_calloc(&t->arena, (size_t)n_rows * (size_t)width, sizeof *t->at);
    struct weight *w = arena_alloc(&t->arena, sizeof *w);
    w->parts = arena_alloc(&t->arena, sizeof *w->parts);
    *w->parts = (struct weight_part){.format = &qformat_plain,
                                     .dtype = DT_F32,
                                     .data = t->at,
                                     .n_rows = n_rows,
                                     .row_stride = width,
                                     .col_stride = 1};
    w->name = "table";
    w->out = n_rows;
    w->in = width;
    w->n_parts = 1;
    t->p = program_new("table");
    op_sample(t->p, op_take_rows(t->p, op_embed(t->p, w, 1)));
    sample_scratch_init(&t->scratch, width);
    for (int i = 0; i < 2; i++)
        batch_plan_init(&t->plans[i], (struct bucket){MOST_ROWS, MOST_ROWS, MOST_ROWS}, 0, NULL);
}

/* Once the table is filled. */
static void table_compile(struct table *t) {
    bool cpu = t->ops == &backend_cpu;
    struct how how = {.n_threads = 1,
                      .kernels = cpu ? "portable" : NULL,
                      .eager = rig_is_brief(),
                      .load.dtype = cpu ? NULL : "float32"};
    struct cache_config config = {.block_size = 16};
    on_device_compile(t->ops, how, t->p, &config, (struct bucket){MOST_ROWS, MOST_ROWS, MOST_ROWS}, &t->on);
}

static void table_close(struct table *t) {
    on_device_close(&t->on);
    program_free(t->p);
    sample_scratch_release(&t->scratch);
    for (int i = 0; i < 2; i++)
        batch_plan_release(&t->plans[i]);
    arena_release(&t->arena);
}

static struct batch_plan *new_plan(struct table *t, int which) {
    struct batch_plan *plan = &t->plans[which];
    plan->n_tokens = plan->n_seqs = plan->n_rows = 0;
    return plan;
}

/* A sequence of one token more, which gives a row. */
static void add_row(struct table *t, int which, int32_t token, int32_t from_row, const struct sample_params *p) {
    struct batch_plan *plan = &t->plans[which];
    int i = plan->n_tokens;
    plan->token_id[i] = token;
    plan->from_row[i] = from_row;
    plan->position[i] = 0;
    plan->query_start[i + 1] = i + 1;
    plan->seq_len[i] = plan->n_known[i] = 1;
    plan->out_row[i] = i;
    t->sample[which][i] = *p;
    plan->n_tokens = plan->n_seqs = plan->n_rows = i + 1;
}

// ---- random rows ------------------------------------------------------------------------------------------------

static const char *const shapes[] = {"spread", "coarse", "flat",     "spiky", "few",
                                     "normal", "NaN",    "infinite", "none",  "one"};

static void fill_row(float *x, int n, int shape) {
    double scale = 1 + 8 * uniform();
    for (int i = 0; i < n; i++) {
        double u = 2 * uniform() - 1;
        switch (shape) {
        case 1: x[i] = (float)round(4 * u); break;
        case 2: x[i] = 0.25f; break;
        case 3: x[i] = (float)(u - 20); break;
        case 4: x[i] = below(100) ? -INFINITY : (float)u; break;
        case 5: x[i] = (float)(scale * (u + uniform() + uniform() + uniform() - 1.5)); break;
        case 8: x[i] = -INFINITY; break;
        case 9: x[i] = i == n / 2 ? -1e30f : -INFINITY; break;
        default: x[i] = (float)(scale * u); break;
        }
    }
    if (shape == 3)
        x[below(n)] = 5, x[below(n)] = 4;
    if (shape == 6)
        x[below(n)] = NAN;
    if (shape == 7)
        x[below(n)] = INFINITY;
}

/* What a row's parameters point to. */
struct lists {
    int32_t history[MOST_LISTED], banned[3], allowed[MOST_LISTED], tokens[4][3];
    struct logit_bias bias[5];
    struct bad_sequence bad[4];
    uint32_t mask[(MOST_LOGITS + 31) / 32];
};

/* Of each kind that grammars make: a few tokens, most of them, any, and at times none or all. What stands behind the
 * last token's bit is nobody's. */
static const uint32_t *some_mask(uint32_t *mask, int n) {
    int kind = below(6), n_words = (int)sample_mask_words(n);
    for (int i = 0; i < n_words; i++)
        mask[i] = kind < 2 ? 0 : kind < 4 ? UINT32_MAX : (uint32_t)below(1 << 16) << 16 | (uint32_t)below(1 << 16);
    for (int i = 0, flips = kind == 0 || kind == 2 ? 1 + below(10) : 0; i < flips; i++)
        mask[below(n) / 32] ^= 1u << below(32);
    return mask;
}

static void some_changes(struct sample_params *p, struct lists *l, int n) {
    if (below(2))
        p->repetition_penalty = below(2) ? 1.3f : 0.6f;
    if (below(2))
        p->presence_penalty = 0.7f;
    if (below(2))
        p->frequency_penalty = 0.3f;
    for (int i = 0; i < 3; i++)
        l->banned[i] = below(n);
    for (int i = 0; i < MOST_LISTED; i++)
        l->allowed[i] = below(n);
    for (int i = 0; i < 5; i++) // of different tokens: what a token named twice gets is rounded in either order
        l->bias[i] =
            (struct logit_bias){(int32_t)((int64_t)n * i / 5 + below((n + 4) / 5)), (float)(20 * uniform() - 10)};
    p->bias = l->bias, p->n_bias = n >= 10 ? below(6) : 0;
    p->banned = l->banned, p->n_banned = n > 3 ? below(4) : 0;
    p->allowed = l->allowed, p->n_allowed = below(3) ? 0 : 1 + below(MOST_LISTED);
    p->mask = below(2) ? some_mask(l->mask, n) : NULL;
    for (int i = 0; i < 4; i++) {
        l->bad[i] = (struct bad_sequence){l->tokens[i], 1 + below(3)};
        for (int j = 0; j < l->bad[i].n; j++) // half of them continue what was generated
            l->tokens[i][j] = below(2) && p->n_history >= 2 && j < l->bad[i].n - 1
                                  ? l->history[p->n_history - (l->bad[i].n - 1) + j]
                                  : below(n);
    }
    p->bad = l->bad, p->n_bad = below(3) ? 0 : below(5);
}

static struct sample_params some_params(struct lists *l, int n) {
    struct sample_params p = sample_params_default();
    p.temperature = below(4) ? (float)(0.05 + 2 * uniform() * uniform()) : 0;
    p.top_k = below(2) ? 1 + below(below(2) ? n + 20 : 50) : 0;
    p.top_p = below(2) ? (float)uniform() : 1;
    p.min_p = below(3) ? 0 : (float)(0.3 * uniform());
    p.n_history = below(MOST_LISTED);
    p.n_prompt = p.n_history ? below(p.n_history) : 0;
    for (int i = 0; i < p.n_history; i++)
        l->history[i] = below(below(2) ? n : MIN(n, 20));
    p.history = l->history;
    p.seed = (uint64_t)below(1 << 30), p.position = (uint64_t)below(1000);
    if (below(2))
        some_changes(&p, l, n);
    if (below(2)) {
        p.want_logprob = true;
        p.target = below(2) ? below(n) : -1;
        p.n_top_logprobs = below(2) ? below(MAX_TOP_LOGPROBS + 1) : 0;
    }
    return p;
}

static bool close_to(float a, float b) { return a == b || fabsf(a - b) <= 1e-4f * fmaxf(1, fabsf(b)); }

static void expect_same(const struct table *t, int r, const struct sample_params *p, const struct sample_result *got,
                        const struct sample_result *want, const char *what) {
    EXPECT_EQ(got->not_finite, want->not_finite);
    if (want->not_finite)
        return;
    if (got->nothing_left != want->nothing_left || got->argmax != want->argmax ||
        (!want->nothing_left && got->token != want->token))
        fail_msg("%d logits, row %d (%s): T %g top_k %d top_p %g min_p %g, %d seen: token %d, argmax %d, left %d, "
                 "wanted %d, %d, %d",
                 t->width, r, what, (double)p->temperature, p->top_k, (double)p->top_p, (double)p->min_p, p->n_history,
                 got->token, got->argmax, !got->nothing_left, want->token, want->argmax, !want->nothing_left);
    if (!p->want_logprob)
        return;
    if (!want->nothing_left && !close_to(got->logprob, want->logprob))
        fail_msg("%d logits, row %d (%s): log-probability %g, wanted %g", t->width, r, what, (double)got->logprob,
                 (double)want->logprob);
    if (p->target >= 0) {
        EXPECT_EQ(got->target_rank, want->target_rank);
        EXPECT(close_to(got->target_logprob, want->target_logprob));
    }
    for (int k = 0; k < MIN(p->n_top_logprobs, t->width); k++) {
        EXPECT_EQ(got->top_token[k], want->top_token[k]);
        EXPECT(close_to(got->top_logprob[k], want->top_logprob[k]));
    }
}

static void every_row_gives_what_the_reference_gives(void **state) {
    (void)state;
    static const int widths[] = {1, 2, 7, 63, 300, 1000, 4099, 32000, 152064, MOST_LOGITS};
    static struct lists lists[MOST_ROWS];
    size_t only = 2 + test_seed() % 4; // in brief, one of the small ones, and few rows
    for (size_t w = 0; w < ARRAY_LEN(widths); w++) {
        struct table t;
        struct error err;
        int n_shapes = (int)ARRAY_LEN(shapes), n_trials = rig_is_brief() ? 2 : widths[w] > 10000 ? 4 : 30;
        if (rig_is_brief() && w != only)
            continue;
        table_open(&t, n_shapes, widths[w]);
        for (int i = 0; i < n_shapes; i++)
            fill_row(t.at + (size_t)i * (size_t)t.width, t.width, i);
        table_compile(&t);
        for (int trial = 0; trial < n_trials; trial++) {
            struct batch_plan *plan = new_plan(&t, trial & 1);
            struct sample_result got[MOST_ROWS], want;
            int n = 1 + below(rig_is_brief() ? 6 : MOST_ROWS);
            for (int r = 0; r < n; r++) {
                struct sample_params p = some_params(&lists[r], t.width);
                add_row(&t, trial & 1, below(n_shapes), -1, &p);
            }
            memset(got, 0xaa, sizeof got);
            const struct sample_params *sample = t.sample[trial & 1];
            EXPECT_OK(on_device_step(&t.on, plan, sample, trial % 3 == 2, got, &err), err);
            for (int r = 0; r < n; r++) {
                sample_row(t.at + (size_t)plan->token_id[r] * (size_t)t.width, t.width, &sample[r], &t.scratch, &want);
                expect_same(&t, r, &sample[r], &got[r], &want, shapes[plan->token_id[r]]);
            }
        }
        table_close(&t);
    }
}

/* Thousands of candidates within a factor of 20, ties among them, and cuts anywhere: what min_p leaves out stands close
 * behind what it leaves, and a cut may be at the very last. */
static void places_far_down_are_found(void **state) {
    (void)state;
    enum { N = 9000, ROWS = 4 };
    struct table t;
    struct error err;
    table_open(&t, ROWS, N);
    for (int i = 0; i < ROWS * N; i++)
        t.at[i] = (float)(i / N % 2 ? floor(3000 * uniform()) / 1000 : 3 * uniform());
    table_compile(&t);
    int n_rows = rig_is_brief() ? 3 : MOST_ROWS;
    for (int trial = 0; trial < (rig_is_brief() ? 1 : 20); trial++) {
        struct batch_plan *plan = new_plan(&t, 0);
        struct sample_result got[MOST_ROWS], want;
        for (int r = 0; r < n_rows; r++) {
            struct sample_params p = sample_params_default();
            p.temperature = (float)(0.3 + uniform());
            p.min_p = below(3) ? (float)(0.05 + 0.8 * uniform()) : 0;
            p.top_k = below(2) ? 1 + below(N + 1000) : 0;
            p.top_p = below(2) ? (float)(0.5 + 0.5 * uniform()) : 1;
            p.seed = (uint64_t)below(1 << 30);
            add_row(&t, 0, r % ROWS, -1, &p);
        }
        EXPECT_OK(on_device_step(&t.on, plan, t.sample[0], trial & 1, got, &err), err);
        for (int r = 0; r < n_rows; r++) {
            sample_row(t.at + (size_t)(r % ROWS) * N, N, &t.sample[0][r], &t.scratch, &want);
            expect_same(&t, r, &t.sample[0][r], &got[r], &want, "far down");
        }
    }
    table_close(&t);
}

/* Each sequence's next logits are the row of its last token; the host learns a token a step late. A late step is told
 * what its rows ask for when that token is known: it is in the history, and may not come again, as a grammar might have
 * it. */
static void a_step_reads_what_the_one_before_drew(void **state) {
    (void)state;
    enum { N = 300, STEPS = 40, SEQS = 5 };
    static struct lists lists[SEQS];
    static int32_t known[SEQS][STEPS + 2];
    int n_steps = rig_is_brief() ? 3 : STEPS;
    bool late[STEPS];
    struct table t;
    struct error err;
    struct sample_params params[SEQS], asked[STEPS][SEQS];
    struct sample_result got[SEQS], want;
    table_open(&t, N, N);
    for (int i = 0; i < N; i++)
        fill_row(t.at + (size_t)i * N, N, 5);
    table_compile(&t);
    for (int s = 0; s < SEQS; s++) {
        params[s] = some_params(&lists[s], N);
        params[s].allowed = NULL, params[s].n_allowed = 0;
        params[s].repetition_penalty = 1.2f, params[s].presence_penalty = 0.5f, params[s].frequency_penalty = 0.25f;
        params[s].n_prompt = 1, params[s].history = known[s], params[s].seed = (uint64_t)s;
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 3; j++)
                lists[s].tokens[i][j] = below(N);
        known[s][0] = below(N);
    }
    for (int step = 0; step <= n_steps; step++) {
        if (step < n_steps) {
            struct batch_plan *plan = new_plan(&t, step & 1);
            for (int i = 0; i < SEQS; i++) {
                int s = (i + step) % SEQS, before = (s - (step - 1) % SEQS + SEQS) % SEQS; // rows change places
                struct sample_params *p = &asked[step][s];
                *p = params[s];
                p->position = (uint64_t)step + 1;
                p->has_newest = step > 0;
                p->newest_row = step > 0 ? before : 0;
                p->n_history = step > 0 ? step : 1;
                add_row(&t, step & 1, step > 0 ? 0 : known[s][0], step > 0 ? before : -1, p);
            }
            late[step] = below(2);
            EXPECT_OK(t.ops->run(t.on.exe, plan, late[step] ? NULL : t.sample[step & 1], &err), err);
        }
        if (step > 0)
            EXPECT_OK(t.ops->collect(t.on.exe, got, &err), err);
        for (int i = 0; i < SEQS && step > 0; i++) {
            int s = (i + step - 1) % SEQS, done = step - 1;
            struct sample_params p = asked[done][s];
            p.has_newest = false;
            p.n_history = done + 1;
            sample_row(t.at + (size_t)known[s][done] * N, N, &p, &t.scratch, &want);
            expect_same(&t, i, &p, &got[i], &want, "chain");
            known[s][done + 1] = want.token;
        }
        for (int i = 0; i < SEQS && step < n_steps && late[step]; i++) {
            int s = (i + step) % SEQS;
            struct sample_params *p = &asked[step][s];
            p->has_newest = false;
            p->n_history = step + 1;
            p->banned = &known[s][step], p->n_banned = 1;
            t.sample[step & 1][i] = *p;
        }
        if (step < n_steps && late[step])
            EXPECT_OK(t.ops->draw(t.on.exe, t.sample[step & 1], &err), err);
    }
    table_close(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_gives_what_the_reference_gives),
        cmocka_unit_test(places_far_down_are_found),
        cmocka_unit_test(a_step_reads_what_the_one_before_drew),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
