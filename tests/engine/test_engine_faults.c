/* test_engine_faults.c - what cannot be computed, devices that break, requests that are cancelled: all told once. */
#include "engine_rig.h"

#include <time.h>

static void what_cannot_be_computed_is_refused_in_words(void **state) {
    (void)state;
    struct world w = world_open(PLAIN, (struct gyre_options){0});
    const struct gyre_request good = ask(&w, 5, 5);
    int32_t bad_ids[] = {3, VOCAB}, negative[] = {-1};
    struct gyre_logit_bias nan_bias = {3, NAN}, far_bias = {VOCAB, 1};
    struct gyre_bad_sequence far_bad = {bad_ids, 2}, empty_bad = {bad_ids, 0};
    struct {
        const char *word;
        struct gyre_request q;
    } cases[27];
    int n = 0;
#define CASE(w, ...)                            \
    do {                                        \
        cases[n].word = w, cases[n].q = good;   \
        struct gyre_request *q = &cases[n++].q; \
        __VA_ARGS__;                            \
    } while (0)
    CASE("empty", q->n_prompt = 0);
    CASE("prompt: id 40", q->prompt = bad_ids, q->n_prompt = 2);
    CASE("prompt: id -1", q->prompt = negative, q->n_prompt = 1);
    CASE("maximum context length is 96 tokens", q->max_tokens = LONGEST);
    CASE("maximum context length is 96 tokens", q->max_tokens = INT64_MAX);
    CASE("maximum context length is 96 tokens", q->n_prompt = INT64_MAX);
    CASE("max_tokens", q->max_tokens = -2);
    CASE("min_tokens", q->min_tokens = 6);
    CASE("min_tokens", q->min_tokens = -1);
    CASE("temperature", q->temperature = NAN);
    CASE("temperature", q->temperature = -1);
    CASE("temperature", q->temperature = INFINITY);
    CASE("top_p", q->top_p = 1.5f);
    CASE("min_p", q->min_p = -0.1f);
    CASE("top_k", q->top_k = -3);
    CASE("repetition_penalty", q->repetition_penalty = 0);
    CASE("presence_penalty", q->presence_penalty = NAN);
    CASE("frequency_penalty", q->frequency_penalty = INFINITY);
    CASE("logit_bias", q->logit_bias = &nan_bias, q->n_logit_bias = 1);
    CASE("logit_bias", q->logit_bias = &far_bias, q->n_logit_bias = 1);
    CASE("stop_token_ids", q->stop_ids = bad_ids, q->n_stop_ids = 2);
    CASE("top_logprobs", q->n_top_logprobs = VOCAB + 1);
    CASE("prompt_logprobs", q->n_prompt_top_logprobs = VOCAB + 1);
    CASE("allowed_token_ids", q->allowed_ids = bad_ids, q->n_allowed_ids = 2);
    CASE("bad_words", q->bad_sequences = &far_bad, q->n_bad_sequences = 1);
    CASE("bad_words", q->bad_sequences = &empty_bad, q->n_bad_sequences = 1);
    CASE("score_from", q->score_from = -1);
#undef CASE
    EXPECT_EQ(n, sizeof cases / sizeof cases[0]);
    for (int i = 0; i < n; i++) {
        struct gyre_error err;
        uint64_t id;
        if (gyre_submit(w.g, &cases[i].q, &id, &err) == 0 || !strstr(err.text, cases[i].word))
            fail_msg("case %d: no word of \"%s\" in \"%s\"", i, cases[i].word, err.text);
    }
    EXPECT(!gyre_busy(w.g));
    struct record r = {0};
    submit(w.g, good, &r);
    finish_all(w.g);
    EXPECT_EQ(r.n_tokens, 5);
    world_close(w);
}

static void a_fault_of_one_request_leaves_the_others(void **state) {
    (void)state;
    static const int32_t poisoned[] = {6, 39, 6};
    struct world w = world_open(PLAIN, (struct gyre_options){0});
    struct gyre_request q = ask(&w, 6, 20), bad = q;
    struct gyre_logit_bias never = {39, -1000};
    bad.prompt = poisoned, bad.n_prompt = 3, bad.score_prompt = true;
    q.logit_bias = &never, q.n_logit_bias = 1;
    struct record r = {0}, alone = {0}, failed = {0};
    toy_faults.bad_token = 39;
    submit(w.g, q, &r);
    submit(w.g, bad, &failed);
    finish_all(w.g);
    toy_faults.bad_token = -1;
    run_alone(PLAIN, q, &alone);
    expect_same(&r, &alone, "beside a request that failed");
    EXPECT(failed.finish == GYRE_FAILED && failed.n_tokens == 0 && failed.n_prompt == 1);
    EXPECT(strstr(failed.error, "not finite"));
    world_close(w);
}

static void a_request_that_leaves_no_token_fails_by_its_own_fault(void **state) {
    (void)state;
    static const int32_t eos[] = {EOS};
    struct world w = world_open(PLAIN, (struct gyre_options){0});
    struct gyre_request q = ask(&w, 6, 20);
    q.allowed_ids = eos, q.n_allowed_ids = 1, q.min_tokens = 3, q.ignore_eos = false;
    struct gyre_error err;
    uint64_t id;
    EXPECT_OK(gyre_submit(w.g, &q, &id, &err), err);
    struct gyre_event e;
    while (gyre_poll(w.g, &e, 1) == 0)
        ;
    EXPECT(e.kind == GYRE_DONE && e.finish == GYRE_FAILED && e.error_of_request &&
           strstr(e.error, "allowed_token_ids"));
    q.min_tokens = 0;
    struct record r = {0};
    submit(w.g, q, &r);
    finish_all(w.g);
    EXPECT(r.finish == GYRE_STOP && r.tokens[0] == EOS);
    world_close(w);
}

static void a_broken_device_ends_everything_once(void **state) {
    (void)state;
    for (int at_collect = 0; at_collect < 2; at_collect++) {
        struct world w = world_open(PLAIN, (struct gyre_options){.max_seqs = 2});
        struct record r[5] = {0};
        for (int i = 0; i < 5; i++)
            submit(w.g, ask(&w, 3 + i, 30), &r[i]);
        *(at_collect ? &toy_faults.collect_fails_in : &toy_faults.run_fails_in) = 4;
        finish_all(w.g);
        for (int i = 0; i < 5; i++) {
            EXPECT(r[i].n_done == 1 && r[i].finish == GYRE_FAILED && strstr(r[i].error, "the toy broke"));
            EXPECT_EQ(r[i].n_tokens, i >= 2 ? 0 : depth == 2 && !at_collect ? 2 : 3); // what was in flight is lost
        }
        struct gyre_request q = ask(&w, 3, 3);
        struct gyre_error err;
        uint64_t id;
        EXPECT(gyre_submit(w.g, &q, &id, &err) != 0 && strstr(err.text, "the toy broke"));
        world_close(w);
    }
}

/* As a server's thread hands on what came while a step was failing. */
static void who_comes_while_the_device_breaks_is_told_too(void **state) {
    (void)state;
    struct world w = world_open(PLAIN, (struct gyre_options){.max_seqs = 2});
    struct record r = {0};
    submit(w.g, ask(&w, 3, 30), &r);
    fail(&w.g->failed, ERR_DEVICE, "the toy broke");
    for (int i = 0; i < 100 && r.n_done == 0; i++)
        poll_once(w.g);
    EXPECT(r.n_done == 1 && r.finish == GYRE_FAILED && strstr(r.error, "the toy broke"));
    EXPECT(!gyre_busy(w.g));
    world_close(w);
}

static int commits_left;
static enum status commit_until_it_breaks(struct loaded *l, int group, int *n, struct error *err) {
    (void)l, (void)group;
    if (commits_left-- > 0)
        return OK;
    *n = 0;
    return fail(err, ERR_DEVICE, "the toy broke when it was asked for memory");
}

/* It is not told as a want of memory, which would pass. */
static void a_device_that_breaks_when_asked_for_memory_is_told_as_broken(void **state) {
    (void)state;
    struct toy_shape shape = PLAIN;
    shape.vocab_size = VOCAB;
    static struct backend_ops ops;
    struct error err;
    for (int commits = 0, n_opened = 0; commits < 40; commits++) {
        struct world w = {.program = toy_program(&shape)};
        struct engine_model model = {w.program, LONGEST, -1, NULL, 0};
        struct gyre_options options = {.backend = &ops, .max_seqs = 2, .block_size = 4};
        struct record r[2] = {0};
        ops = *toy_of_depth(depth);
        ops.commit_cache = commit_until_it_breaks;
        commits_left = commits;
        if (engine_open(&options, &model, &w.g, &err) == OK) {
            for (int i = 0; i < 2; i++)
                submit(w.g, ask(&w, 3, LONGEST - 3), &r[i]);
            finish_all(w.g);
            for (int i = 0; i < 2; i++)
                EXPECT(r[i].n_done == 1 &&
                       (r[i].finish != GYRE_FAILED || strstr(r[i].error, "the toy broke when it was asked")));
            EXPECT_EQ(r[0].finish == GYRE_FAILED, commits_left < 0);
            n_opened++;
        } else {
            EXPECT(strstr(err.text, "the toy broke when it was asked"));
        }
        EXPECT(commits > 0 || n_opened == 0);
        world_close(w);
    }
}

static enum status is_gone(struct device *d, struct error *err) {
    (void)d;
    return fail(err, ERR_DEVICE, "the toy is gone");
}

/* Nobody asks it for a step: the only request is paused. */
static void a_device_that_is_gone_while_nothing_runs_ends_who_is_paused(void **state) {
    (void)state;
    struct toy_shape shape = PLAIN;
    shape.vocab_size = VOCAB;
    static struct backend_ops ops;
    struct error err;
    struct world w = {.program = toy_program(&shape)};
    struct engine_model model = {w.program, LONGEST, -1, NULL, 0};
    struct record r = {0};
    ops = *toy_of_depth(depth);
    ops.check = is_gone;
    EXPECT_OK(engine_open(&(struct gyre_options){.backend = &ops, .block_size = 4}, &model, &w.g, &err), err);
    uint64_t id = submit(w.g, ask(&w, 5, 5), &r);
    engine_pause(w.g, id, true);
    int64_t us = engine_rest_us(w.g);
    EXPECT(us >= 0 && us <= 2000000);
    nanosleep(&(struct timespec){us / 1000000, us % 1000000 * 1000}, NULL); // steps would only turn meanwhile
    finish_all(w.g);
    EXPECT(r.n_done == 1 && r.n_tokens == 0 && strstr(r.error, "the toy is gone"));
    EXPECT_EQ(engine_rest_us(w.g), -1);
    world_close(w);
}

/* What a broken device left in the host's memory is nobody's answer. */
static void a_device_that_breaks_while_logits_are_fetched_hands_out_none(void **state) {
    (void)state;
    struct world w = world_open(PLAIN, (struct gyre_options){.max_seqs = 2});
    struct gyre_request q = ask(&w, 6, 20);
    struct record asks = {0}, beside = {0};
    q.want_last_logits = true;
    submit(w.g, q, &asks);
    submit(w.g, ask(&w, 5, 20), &beside);
    toy_faults.logits_fail_in = 1;
    finish_all(w.g);
    EXPECT(asks.n_done == 1 && asks.finish == GYRE_FAILED && asks.n_prompt == 0 &&
           strstr(asks.error, "logits were fetched"));
    EXPECT(beside.n_done == 1 && beside.finish == GYRE_FAILED && strstr(beside.error, "logits were fetched"));
    world_close(w);
}

static void cancelling_voids_what_was_not_handed_out(void **state) {
    (void)state;
    struct world w = world_open(PLAIN, (struct gyre_options){.max_seqs = 1});
    struct record r[3] = {0};
    uint64_t id[3];
    for (int i = 0; i < 3; i++)
        id[i] = submit(w.g, ask(&w, 4, 10), &r[i]);
    struct gyre_event e;
    for (int i = 0; i < 3; i++) {
        while (gyre_poll(w.g, &e, 1) == 0)
            ;
        record_event(e.user, &e);
    }
    gyre_cancel(w.g, id[0]); // running
    gyre_cancel(w.g, id[2]); // waiting
    gyre_cancel(w.g, id[2]);
    gyre_cancel(w.g, 0);
    gyre_cancel(w.g, 1234567);
    EXPECT_EQ(gyre_poll(w.g, &e, 1), 1);
    EXPECT(e.kind == GYRE_DONE && e.user == &r[0] && e.finish == GYRE_CANCELLED);
    record_event(e.user, &e);
    gyre_cancel(w.g, id[0]); // gone
    finish_all(w.g);
    EXPECT(r[0].n_tokens == 3 && r[2].n_tokens == 0 && r[2].finish == GYRE_CANCELLED && r[2].n_done == 1);
    EXPECT(r[1].n_tokens == 10 && r[1].finish == GYRE_LENGTH);
    world_close(w);
}
int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_cannot_be_computed_is_refused_in_words),
        cmocka_unit_test(a_fault_of_one_request_leaves_the_others),
        cmocka_unit_test(a_request_that_leaves_no_token_fails_by_its_own_fault),
        cmocka_unit_test(a_broken_device_ends_everything_once),
        cmocka_unit_test(who_comes_while_the_device_breaks_is_told_too),
        cmocka_unit_test(a_device_that_breaks_when_asked_for_memory_is_told_as_broken),
        cmocka_unit_test(a_device_that_is_gone_while_nothing_runs_ends_who_is_paused),
        cmocka_unit_test(a_device_that_breaks_while_logits_are_fetched_hands_out_none),
        cmocka_unit_test(cancelling_voids_what_was_not_handed_out),
    };
    return RUN_AT_EACH_DEPTH(tests);
}
