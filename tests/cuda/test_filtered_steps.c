/* test_filtered_steps.c - which steps are screened, and what that changes: nothing. A program that is a head and no
 * more runs with a copy of the head in 8 bits and without one, captured and op by op; what steps leave on the device
 * tells how each ended.
 *
 *     build/cuda/test_filtered_steps     wants a GPU */
#include "backend/cuda/device/device.h"
#include "backend/cuda/head/argmax_filter.h"
#include "backend/cuda/value.h"
#include "check.h"
#include "on_device.h"
#include "reports.h"

#include "backend/cuda/cuda.h"
#include "base/random.h"

#include <math.h>
#include <stdlib.h>

extern const struct backend_ops backend_cuda;

enum { OUT = 5000, IN = 512, N_INPUTS = 64, ROWS = 130 };

static uint64_t counter;
static double uniform(void) { return philox_uniform(test_seed(), counter++, 83); }
static int below(int n) { return (int)(uniform() * n); }

/* Logits of token t are the head's of row t of a table. */
struct rig {
    float *inputs, *head; // [N_INPUTS][IN], [OUT][IN]
    const char *dtype;
    struct weight_part parts[2];
    struct weight weights[2];
    struct program *p;
    struct on_device at;
    struct batch_plan plan;
    struct sample_params sample[ROWS];
    struct sample_result got[ROWS];
};

static float *normal(int n) {
    float *x = xcalloc((size_t)n, sizeof *x);
    for (int i = 0; i < n; i++)
        x[i] = (float)(sqrt(-2 * log(1 - uniform())) * cos(6.283185307179586 * uniform()));
    return x;
}

static const struct weight *as_weight(struct rig *r, int i, const char *name, float *at, int out) {
    r->parts[i] = (struct weight_part){
        .format = &qformat_plain, .dtype = DT_F32, .data = at, .n_rows = out, .row_stride = IN, .col_stride = 1};
    r->weights[i] = (struct weight){.name = name, .out = out, .in = IN, .n_parts = 1, .parts = &r->parts[i]};
    return &r->weights[i];
}

/* screen: GYRE_ARGMAX_FILTER. is_flat: all rows of the head are one, so that none can be left out. */
static void rig_open(struct rig *r, const char *screen, bool eager, bool is_flat) {
    struct bucket bucket = {ROWS, ROWS, ROWS, 0};
    struct cache_config config = {.block_size = 16};
    for (int i = IN; i < OUT * IN && is_flat; i++)
        r->head[i] = r->head[i - IN];
    r->p = program_new("head");
    val rows = op_take_rows(r->p, op_embed(r->p, as_weight(r, 0, "inputs", r->inputs, N_INPUTS), 1));
    op_sample(r->p, op_linear(r->p, rows, as_weight(r, 1, "head", r->head, OUT), NULL));
    batch_plan_init(&r->plan, bucket, 0, NULL);
    setenv("GYRE_ARGMAX_FILTER", screen, 1);
    on_device_compile(&backend_cuda, (struct how){.eager = eager, .load.dtype = r->dtype}, r->p, &config, bucket,
                      &r->at);
}

static void rig_close(struct rig *r) {
    on_device_close(&r->at);
    program_free(r->p);
    batch_plan_release(&r->plan);
}

static void fill(struct rig *r) {
    *r = (struct rig){.inputs = normal(N_INPUTS * IN), .head = normal(OUT * IN), .dtype = "float16"};
}

static void rig_release(struct rig *r) {
    free(r->inputs);
    free(r->head);
}

/* A sequence of a token each; `other`: a row of which more is asked, -1: none. */
static void run(struct rig *r, int n, const int32_t *tokens, int other) {
    struct batch_plan *p = &r->plan;
    struct error err;
    p->n_tokens = p->n_seqs = p->n_rows = n;
    for (int i = 0; i < n; i++) {
        p->token_id[i] = tokens[i];
        p->from_row[i] = -1;
        p->position[i] = 0;
        p->query_start[i + 1] = i + 1;
        p->seq_len[i] = p->n_known[i] = 1;
        p->out_row[i] = i;
        r->sample[i] = sample_params_default();
        r->sample[i].want_logprob = i == other;
    }
    memset(r->got, 0xaa, sizeof r->got);
    EXPECT_OK(backend_cuda.run(r->at.exe, p, r->sample, &err), err);
    EXPECT_OK(backend_cuda.collect(r->at.exe, r->got, &err), err);
}

static struct dfilter_state state_of(const struct rig *r) {
    struct dfilter_state s;
    EXPECT(r->at.exe->filter.state != NULL);
    EXPECT_EQ(cudaMemcpy(&s, r->at.exe->filter.state, sizeof s, cudaMemcpyDeviceToHost), cudaSuccess);
    return s;
}

static int64_t told_of(const struct rig *r, const char *name) { return report_of(&backend_cuda, r->at.exe, name); }

static void some_tokens(int32_t *tokens) {
    for (int i = 0; i < ROWS; i++)
        tokens[i] = below(N_INPUTS);
}

static void expect_same(const struct rig *a, const struct rig *b, int n) {
    for (int i = 0; i < n; i++)
        if (a->got[i].token != b->got[i].token || a->got[i].argmax != b->got[i].argmax ||
            a->got[i].not_finite != b->got[i].not_finite)
            fail_msg("row %d of %d: token %d, without a copy %d", i, n, a->got[i].token, b->got[i].token);
}

static void greedy_steps_are_screened_and_others_are_not(void **state) {
    (void)state;
    for (int eager = 0; eager < 2; eager++) {
        struct rig with, without;
        int32_t tokens[ROWS];
        fill(&with);
        without = with;
        rig_open(&with, "500", eager, false);
        rig_open(&without, "0", eager, false);
        EXPECT(without.at.exe->filter.state == NULL);
        uint32_t n_done = state_of(&with).n_done;
        int64_t n_filtered = 0;
        for (int i = 0; i < 60; i++) {
            int n = i < 8 ? 1 + i : 1 + below(ROWS), other = i % 3 == 2 ? below(n) : -1;
            some_tokens(tokens);
            run(&with, n, tokens, other);
            run(&without, n, tokens, other);
            expect_same(&with, &without, n);
            n_done += other < 0;
            n_filtered += other < 0;
            EXPECT_EQ(told_of(&with, "screened_steps_total"), n_filtered);
            EXPECT_EQ(told_of(&without, "screened_steps_total"), 0);
            EXPECT_EQ(state_of(&with).n_done, n_done);
            EXPECT_EQ(state_of(&with).is_done != 0, other < 0);
        }
        EXPECT_EQ(state_of(&with).n_left, 0);
        EXPECT_EQ(told_of(&with, "screened_steps_left_total") + told_of(&with, "screened_steps_paused_total"), 0);
        rig_close(&with);
        rig_close(&without);
        rig_release(&with);
    }
}

/* Every row of the head may win, and the first does. */
static void what_cannot_be_screened_is_left_and_after_some_of_it_not_tried(void **state) {
    (void)state;
    struct rig r;
    int32_t tokens[ROWS];
    fill(&r);
    rig_open(&r, "500", false, true);
    uint32_t n_done = state_of(&r).n_done, n_left = 0;
    int n_paused = 0;
    for (int i = 0; i < 400; i++) {
        some_tokens(tokens);
        run(&r, 1 + below(ROWS), tokens, -1);
        for (int k = 0; k < r.plan.n_rows; k++)
            EXPECT_EQ(r.got[k].token, 0);
        struct dfilter_state s = state_of(&r);
        EXPECT_EQ(s.is_done, 0);
        n_paused += s.n_left == n_left;
        n_left = s.n_left;
        EXPECT_EQ(told_of(&r, "screened_steps_total"), i + 1);
        EXPECT_EQ(told_of(&r, "screened_steps_left_total"), n_left);
        EXPECT_EQ(told_of(&r, "screened_steps_paused_total"), n_paused);
    }
    EXPECT_EQ(state_of(&r).n_done, n_done);
    EXPECT(n_left > 4 && n_paused > 200);
    rig_close(&r);
    rig_release(&r);
}

/* Four channels are two hundred times the others. As computed with 52 seeds, before the copy's columns are scaled at
 * least eight inputs have more than 90 rows of the head that may win, so that every step is left; then at most 35. */
static void steps_of_outlying_channels_are_screened_after_some(void **state) {
    (void)state;
    struct rig with, without;
    int32_t tokens[ROWS];
    fill(&with);
    for (int i = 0; i < N_INPUTS; i++)
        for (int k = 7; k < IN; k += 128)
            with.inputs[i * IN + k] *= 200;
    without = with;
    rig_open(&with, "60", false, false);
    rig_open(&without, "0", false, false);
    for (int i = 0; i < 120; i++) {
        int n = ROWS - below(10);
        some_tokens(tokens);
        run(&with, n, tokens, -1);
        run(&without, n, tokens, -1);
        expect_same(&with, &without, n);
    }
    struct dfilter_state s = state_of(&with);
    EXPECT_EQ(s.n_again, 1);
    EXPECT(s.n_left >= 5 && s.n_left < 20 && s.n_done > 60);
    EXPECT(s.is_done);
    rig_close(&with);
    rig_close(&without);
    rig_release(&with);
}

/* That of tests is set aside, and the head is small. */
static void small_heads_have_no_copy(void **state) {
    (void)state;
    struct rig r;
    fill(&r);
    rig_open(&r, "0", true, false);
    rig_close(&r);
    unsetenv("GYRE_ARGMAX_FILTER");
    r.p = program_new("head");
    val rows = op_take_rows(r.p, op_embed(r.p, as_weight(&r, 0, "inputs", r.inputs, N_INPUTS), 1));
    op_sample(r.p, op_linear(r.p, rows, as_weight(&r, 1, "head", r.head, OUT), NULL));
    struct error err;
    EXPECT_OK(on_device_load(&backend_cuda, (struct how){.load.dtype = "float16"}, r.p, &r.at, &err), err);
    EXPECT(r.at.loaded->filter.head == NULL && r.at.loaded->filter.copy == NULL);
    on_device_close(&r.at);
    program_free(r.p);
    rig_release(&r);
}

/* A head that is not a number somewhere has a copy that nobody looks at. */
static void a_head_that_is_not_finite_is_not_screened(void **state) {
    (void)state;
    struct rig with, without;
    int32_t tokens[ROWS];
    fill(&with);
    with.head[below(OUT * IN)] = INFINITY;
    with.dtype = "bfloat16"; // float16 would make it a number
    without = with;
    rig_open(&with, "500", false, false);
    rig_open(&without, "0", false, false);
    EXPECT(with.at.exe->filter.state == NULL);
    char warning[200] = "";
    EXPECT(backend_cuda.warning(with.at.exe, 0, warning, sizeof warning) && strstr(warning, "not finite"));
    EXPECT_EQ(told_of(&with, "head_screen_bytes"), 0);
    some_tokens(tokens);
    run(&with, 17, tokens, -1);
    run(&without, 17, tokens, -1);
    expect_same(&with, &without, 17);
    rig_close(&with);
    rig_close(&without);
    rig_release(&with);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_steps_are_screened_and_others_are_not),
        cmocka_unit_test(what_cannot_be_screened_is_left_and_after_some_of_it_not_tried),
        cmocka_unit_test(steps_of_outlying_channels_are_screened_after_some),
        cmocka_unit_test(small_heads_have_no_copy),
        cmocka_unit_test(a_head_that_is_not_finite_is_not_screened),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
