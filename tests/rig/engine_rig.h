/* engine_rig.h - engines over the toy backend, whose next token is a hash of its context; what requests are told. */
#pragma once

#include "check.h"
#include "on_device.h"

#include "backend/toy/toy.h"
#include "base/guard.h"
#include "base/random.h"
#include "engine/fit.h"
#include "engine/memory_plan.h"
#include "letters.h"
#include "sched/kv_pool_internal.h"

#include <math.h>

enum { VOCAB = 40, EOS = 1, LONGEST = 96, MAX_EVENTS = 200 };

static uint64_t counter;
static inline int below(int n) { return (int)(philox_uniform(test_seed(), counter++, 1) * n); }
static inline bool one_in(int n) { return below(n) == 0; }

// ---- engines over toys ------------------------------------------------------------------------------------------

/* Steps in flight: every test runs with one at a time, and with the next one started before the first is collected. */
static int depth;

/* The toy as a device of that depth; as long as the process. */
static inline const struct backend_ops *toy_of_depth(int n) {
    static struct backend_ops toys[1 + MAX_STEPS_IN_FLIGHT];
    toys[n] = backend_toy;
    toys[n].max_in_flight = n;
    return &toys[n];
}

struct world {
    struct program *program;
    struct gyre *g;
};

static inline struct world world_open(struct toy_shape shape, struct gyre_options options) {
    static const int32_t eos[] = {EOS};
    shape.vocab_size = VOCAB;
    struct world w = {.program = toy_program(&shape)};
    struct engine_model model = {w.program, LONGEST, -1, eos, 1};
    options.backend = toy_of_depth(depth);
    struct error err;
    EXPECT_OK(engine_open(&options, &model, &w.g, &err), err);
    return w;
}

static inline void world_close(struct world w) {
    gyre_close(w.g);
    program_free(w.program);
}

/* All that a request was told. */
struct record {
    int32_t tokens[LONGEST], positions[LONGEST];
    float logprobs[LONGEST];
    int32_t prompt_best[LONGEST];
    float prompt_logprobs[LONGEST];
    int n_tokens, n_prompt, n_done;
    double logits_sum;
    enum gyre_finish finish;
    char error[200];
    struct gyre_timing timing;
};

static inline void record_event(struct record *r, const struct gyre_event *e) {
    EXPECT_EQ(r->n_done, 0);
    switch (e->kind) {
    case GYRE_PROMPT:
        r->prompt_best[r->n_prompt] = e->token;
        r->prompt_logprobs[r->n_prompt++] = e->logprob;
        for (int v = 0; e->logits && v < VOCAB; v++)
            r->logits_sum += (double)e->logits[v] * (v + 1);
        break;
    case GYRE_TOKEN:
        r->positions[r->n_tokens] = (int32_t)e->position;
        r->logprobs[r->n_tokens] = e->logprob;
        r->tokens[r->n_tokens++] = e->token;
        break;
    case GYRE_DONE:
        r->n_done++;
        r->finish = e->finish;
        r->timing = e->timing;
        if (e->error)
            snprintf(r->error, sizeof r->error, "%s", e->error);
        break;
    }
}

static inline int poll_once(struct gyre *g) {
    struct gyre_event events[7];
    int n = gyre_poll(g, events, 1 + below(7));
    for (int i = 0; i < n; i++)
        record_event(events[i].user, &events[i]);
    const char *wrong = scheduler_check(&g->scheduler);
    if (wrong)
        fail_msg("%s", wrong);
    return n;
}

static inline uint64_t submit(struct gyre *g, struct gyre_request q, struct record *r) {
    struct gyre_error err;
    uint64_t id = 0;
    q.user = r;
    EXPECT_OK(gyre_submit(g, &q, &id, &err), err);
    return id;
}

static inline void finish_all(struct gyre *g) {
    while (gyre_busy(g))
        poll_once(g);
    EXPECT_EQ(poll_once(g), 0);
}

/* Where requests run alone: one step at a time, and nothing is remembered of the last one. */
static inline struct world alone_open(struct toy_shape shape) {
    int company_depth = depth;
    depth = 1;
    struct world w = world_open(shape, (struct gyre_options){.no_prefix_cache = true});
    depth = company_depth;
    return w;
}

static inline void run_alone(struct toy_shape shape, struct gyre_request q, struct record *r) {
    struct world w = alone_open(shape);
    submit(w.g, q, r);
    finish_all(w.g);
    world_close(w);
}

static inline void expect_same(const struct record *a, const struct record *alone, const char *what) {
    bool cut = a->finish == GYRE_CANCELLED;
    if (a->n_done != 1 ||
        (!cut && (a->finish != alone->finish || a->n_tokens != alone->n_tokens || a->n_prompt != alone->n_prompt)))
        fail_msg("%s: %d done, finish %d (alone %d), %d tokens (%d), %d scores (%d)", what, a->n_done, (int)a->finish,
                 (int)alone->finish, a->n_tokens, alone->n_tokens, a->n_prompt, alone->n_prompt);
    EXPECT(a->n_tokens <= alone->n_tokens && a->n_prompt <= alone->n_prompt);
    for (int i = 0; i < a->n_tokens; i++)
        if (a->tokens[i] != alone->tokens[i] || a->logprobs[i] != alone->logprobs[i] ||
            a->positions[i] != alone->positions[i])
            fail_msg("%s: token %d is %d, alone %d", what, i, a->tokens[i], alone->tokens[i]);
    for (int i = 0; i < a->n_prompt; i++)
        if (a->prompt_best[i] != alone->prompt_best[i] || a->prompt_logprobs[i] != alone->prompt_logprobs[i])
            fail_msg("%s: prompt position %d is scored differently from alone", what, i);
    EXPECT(cut || a->logits_sum == alone->logits_sum);
}

static const struct toy_shape PLAIN = {.full = true};
static const int32_t PROMPT[10] = {5, 9, 3, 7, 20, 11, 30, 2, 8, 4};

static inline struct gyre_request ask(const struct world *w, int64_t n_prompt, int64_t max_tokens) {
    struct gyre_request q = gyre_request_default(w->g);
    q.prompt = PROMPT, q.n_prompt = n_prompt, q.max_tokens = max_tokens, q.ignore_eos = true;
    return q;
}

/* Each test with one step at a time, and with steps that overlap. */
#define RUN_AT_EACH_DEPTH(tests)                                                                                       \
    ({                                                                                                                 \
        int failed = 0;                                                                                                \
        for (depth = 1; depth <= MAX_STEPS_IN_FLIGHT; depth++)                                                         \
            failed += cmocka_run_group_tests_name(depth == 1 ? "one step at a time" : "steps that overlap", tests,     \
                                                  NULL, NULL);                                                         \
        failed;                                                                                                        \
    })
