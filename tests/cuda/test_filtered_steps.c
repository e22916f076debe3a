/* test_filtered_steps.c - which steps are screened, and what that changes: nothing. A program that is a head and no
 * more runs with a copy of the head in 8 bits and without one, captured and op by op; what steps leave on the device
 * tells how each ended.
 *
 *     build/cuda/test_filtered_steps     wants a GPU */
#include "backend/cuda/device/device.h"
#include "backend/cuda/head/argmax_filter.h"
#include "backend/cuda/step/padded.h"
#include "backend/cuda/value.h"
#include "check.h"
#include "on_device.h"
#include "reports.h"

#include "backend/cuda/cuda.h"
#include "base/random.h"

#include <math.h>
#include <stdlib.h>

extern const struct backend_ops backend_cuda;

enum { OUT = 5000, IN = 512, N_INPUTS = 64, ROWS = 130, WORDS = (OUT + 31) / 32 };

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
    uint32_t (*masks)[WORDS]; // [ROWS]
};

/* How a step is run: late, and then with the head behind the masks or before them. */
enum how_late { AT_ONCE, LATE_HEAD, LATE_DRAW, N_HOW_LATE };

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
    r->masks = xcalloc(ROWS, sizeof *r->masks);
}

static void rig_release(struct rig *r) {
    free(r->inputs);
    free(r->head);
    free(r->masks);
}

/* A sequence of a token each; `other`: a row of which more is asked, -1: none. */
static void fill_step(struct rig *r, int n, const int32_t *tokens, int other) {
    struct batch_plan *p = &r->plan;
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
}

static void run_filled(struct rig *r, enum how_late how) {
    struct error err;
    memset(r->got, 0xaa, sizeof r->got);
    r->plan.draws_best = how == LATE_HEAD;
    EXPECT_OK(on_device_step(&r->at, &r->plan, r->sample, how != AT_ONCE, r->got, &err), err);
}

static void run(struct rig *r, int n, const int32_t *tokens, int other) {
    fill_step(r, n, tokens, other);
    run_filled(r, AT_ONCE);
}

/* Most tokens may come, or few of them, or one, of most rows. */
static void some_masks(struct rig *r) {
    for (int i = 0; i < r->plan.n_rows; i++) {
        int kind = below(5), one = below(OUT);
        for (int k = 0; k < WORDS; k++) {
            uint32_t bits = (uint32_t)(uniform() * 4294967296.0), bit = 1u << bits % 32;
            r->masks[i][k] = kind == 1 ? bits : kind == 2 ? ~bit : kind == 3 && below(20) == 0 ? bit : 0;
        }
        r->masks[i][one / 32] |= 1u << one % 32;
        r->sample[i].mask = kind > 0 ? r->masks[i] : NULL;
    }
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
        if (a->got[i].token != b->got[i].token || a->got[i].not_finite != b->got[i].not_finite ||
            (a->got[i].argmax != b->got[i].argmax && !(a->sample[i].mask && a->got[i].argmax == a->got[i].token)))
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

/* Of a late step that was to be so, the part before the head is a graph of its own. */
static void expect_parts(const struct rig *r, int eager, enum how_late how) {
    const struct step_graphs *g = &r->at.exe->graphs[STEP_DECODES];
    int i = padded_index(r->plan.n_rows);
    if (how == LATE_HEAD)
        EXPECT(r->at.exe->drawn_from < r->p->n_ops - 1 && (eager || g->of[STEP_BODY][i]));
    if (how == LATE_DRAW)
        EXPECT(r->at.exe->drawn_from == r->p->n_ops - 1 && (eager || g->of[STEP_FORWARD][i]));
}

/* Where the head is not behind them, it has been read when masks come. */
static void steps_with_masks_are_screened_too(void **state) {
    (void)state;
    for (int eager = 0; eager < 2; eager++) {
        struct rig with, without;
        int32_t tokens[ROWS];
        fill(&with);
        without = with;
        rig_open(&with, "500", eager, false);
        rig_open(&without, "0", eager, false);
        uint32_t n_done = state_of(&with).n_done;
        int64_t n_filtered = 0;
        for (int i = 0; i < 40; i++) {
            int n = i < 8 ? 1 + i : 1 + below(ROWS), other = i % 5 == 4 ? below(n) : -1;
            enum how_late how = (enum how_late)(i % N_HOW_LATE);
            some_tokens(tokens);
            fill_step(&with, n, tokens, other);
            fill_step(&without, n, tokens, other);
            some_masks(&with);
            for (int k = 0; k < n; k++)
                without.sample[k] = with.sample[k];
            run_filled(&with, how);
            run_filled(&without, how == LATE_HEAD ? LATE_DRAW : how);
            expect_same(&with, &without, n);
            expect_parts(&with, eager, how);
            bool is_screened = other < 0 && how != LATE_DRAW;
            n_done += is_screened;
            n_filtered += is_screened;
            EXPECT_EQ(state_of(&with).n_done, n_done);
            EXPECT_EQ(state_of(&with).is_done != 0, is_screened);
            EXPECT_EQ(told_of(&with, "screened_steps_total"), n_filtered);
        }
        EXPECT_EQ(state_of(&with).n_left, 0);
        rig_close(&with);
        rig_close(&without);
        rig_release(&with);
    }
}

/* A token of a list is that of a mask; of a row to which nothing is left SAMPLE tells that. */
static void lists_are_masks_and_nothing_is_left_to_sample(void **state) {
    (void)state;
    struct rig r;
    int32_t tokens[ROWS], allowed[ROWS];
    fill(&r);
    rig_open(&r, "500", false, false);
    for (int i = 0; i < 6; i++) {
        uint32_t n_done = state_of(&r).n_done;
        int n = 1 + below(ROWS), none = i % 2 ? below(n) : -1;
        some_tokens(tokens);
        fill_step(&r, n, tokens, -1);
        for (int k = 0; k < n; k++) {
            allowed[k] = below(OUT);
            r.sample[k].allowed = &allowed[k], r.sample[k].n_allowed = 1;
            memset(r.masks[k], k == none ? 0 : 0xff, sizeof r.masks[k]);
            r.sample[k].mask = k == none || below(2) ? r.masks[k] : NULL;
        }
        run_filled(&r, i % 4 < 2 ? AT_ONCE : LATE_HEAD);
        for (int k = 0; k < n; k++)
            EXPECT(k == none ? r.got[k].nothing_left : r.got[k].token == allowed[k] && !r.got[k].nothing_left);
        EXPECT_EQ(state_of(&r).n_done, n_done + (none < 0));
    }
    rig_close(&r);
    rig_release(&r);
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
        cmocka_unit_test(steps_with_masks_are_screened_too),
        cmocka_unit_test(lists_are_masks_and_nothing_is_left_to_sample),
        cmocka_unit_test(what_cannot_be_screened_is_left_and_after_some_of_it_not_tried),
        cmocka_unit_test(steps_of_outlying_channels_are_screened_after_some),
        cmocka_unit_test(small_heads_have_no_copy),
        cmocka_unit_test(a_head_that_is_not_finite_is_not_screened),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
