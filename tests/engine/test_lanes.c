/* test_lanes.c - several engines behind one front, of which some have failed: what is told of those that work, and of
 * all together. On the toy backend. */
#include "check.h"

#include "backend/toy/toy.h"
#include "engine/engine.h"
#include "engine/service.h"

#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

enum { VOCAB = 40, ENGINES = 3, MOST_JOBS = 64 };

struct world {
    struct program *program;
    struct gyre *engines[ENGINES];
    struct service *service;
};

/* A request, and what its listener waits on. */
struct job {
    int32_t prompt[3];
    struct answer *answer;
    sem_t bell;
};

static void ring(void *context, struct answer *a) {
    (void)context;
    sem_post(&((struct job *)a->user)->bell);
}

static const int32_t eos[] = {1};

static enum status open_with_eos(const struct program *p, const int32_t *ends, struct gyre **out, struct error *err) {
    struct gyre_options o = {.backend = &backend_toy, .max_seqs = 1};
    return engine_open(&o, &(struct engine_model){p, 96, -1, ends, 1}, out, err);
}

static enum status open_engine(const struct program *p, struct gyre **out, struct error *err) {
    return open_with_eos(p, eos, out, err);
}

/* Each has one place. A step takes 5 ms, so that what was submitted runs for a while. */
static void world_open_with(struct world *w, struct service_options options) {
    struct gyre_error failed;
    struct error err;
    options.news = ring;
    setenv("GYRE_TOY_STEP_US", "5000", true);
    w->program = toy_program(&(struct toy_shape){.vocab_size = VOCAB, .full = true});
    for (int i = 0; i < ENGINES; i++)
        EXPECT_OK(open_engine(w->program, &w->engines[i], &err), err);
    EXPECT_OK(service_open_several(w->engines, ENGINES, &options, &w->service, &failed), failed);
}

static void world_open(struct world *w, int max_queued) {
    world_open_with(w, (struct service_options){.max_queued = max_queued});
}

static void world_close(struct world *w) {
    service_close(w->service);
    program_free(w->program);
    unsetenv("GYRE_TOY_STEP_US");
}

static int submit(struct world *w, struct job *j, struct gyre_error *err) {
    *j = (struct job){.prompt = {5, 6, 7}};
    sem_init(&j->bell, 0, 0);
    struct gyre_request q = {
        .prompt = j->prompt, .n_prompt = 3, .max_tokens = 60, .top_p = 1, .repetition_penalty = 1, .ignore_eos = true};
    return service_submit(w->service, &q, j, &j->answer, err);
}

static enum gyre_finish wait_done(struct world *w, struct job *j) {
    while (!j->answer->done) {
        sem_wait(&j->bell);
        service_look(j->answer);
    }
    enum gyre_finish finish = j->answer->finish;
    service_release(w->service, j->answer);
    return finish;
}

/* The engine that the next request goes to fails in its first step; no other may run. */
static void break_one(struct world *w) {
    struct job j;
    struct gyre_error err;
    toy_faults.collect_fails_in = 1;
    EXPECT_OK(submit(w, &j, &err), err);
    EXPECT_EQ(wait_done(w, &j), GYRE_FAILED);
}

static void a_full_front_with_a_broken_engine_says_that_it_is_full(void **state) {
    (void)state;
    static struct job jobs[MOST_JOBS];
    struct world w;
    struct gyre_error err;
    int n = 0;
    world_open(&w, ENGINES);
    break_one(&w);
    while (n < MOST_JOBS && submit(&w, &jobs[n], &err) == 0)
        n++;
    EXPECT(n >= 2 && n < MOST_JOBS);
    EXPECT_EQ(err.status, ERR_FULL);
    EXPECT(strstr(err.text, "waiting already"));
    for (int i = 0; i < n; i++)
        service_cancel(w.service, jobs[i].answer);
    for (int i = 0; i < n; i++)
        wait_done(&w, &jobs[i]);
    world_close(&w);
}

static void a_wait_is_that_of_engines_that_work(void **state) {
    (void)state;
    static struct job jobs[6];
    struct world w;
    struct gyre_error err;
    world_open(&w, 0);
    break_one(&w);
    for (int i = 0; i < 2; i++)
        EXPECT_OK(submit(&w, &jobs[i], &err), err);
    for (int i = 0; i < 2; i++) // until both have measured their steps
        while (atomic_load(&jobs[i].answer->n_tokens) < 12)
            sem_wait(&jobs[i].bell), service_look(jobs[i].answer);
    for (int i = 2; i < 6; i++)
        EXPECT_OK(submit(&w, &jobs[i], &err), err);
    EXPECT(queue_model_wait_us(service_queue(w.service, 0), 0) > 0);
    for (int i = 0; i < 6; i++)
        service_cancel(w.service, jobs[i].answer);
    for (int i = 0; i < 6; i++)
        wait_done(&w, &jobs[i]);
    world_close(&w);
}

static void each_engine_has_a_state_and_all_broken_are_a_broken_device(void **state) {
    (void)state;
    struct world w;
    struct job j;
    struct gyre_error err;
    struct service_state all, one;
    world_open(&w, ENGINES);
    for (int n = 1; n <= ENGINES; n++) {
        int n_failed = 0;
        break_one(&w);
        service_state(w.service, &all);
        for (int i = 0; i < ENGINES; i++) {
            service_state_of(w.service, i, &one);
            EXPECT_EQ(one.failed, strstr(one.error, "broke") != NULL);
            n_failed += one.failed;
        }
        EXPECT_EQ(all.n_failed, n);
        EXPECT_EQ(n_failed, n);
        EXPECT_EQ(all.failed, n == ENGINES);
    }
    EXPECT_EQ(submit(&w, &j, &err), ERR_DEVICE);
    EXPECT(strstr(err.text, "broke"));
    EXPECT_EQ(queue_model_wait_us(service_queue(w.service, 0), 0), 0);
    world_close(&w);
}

static void drafts_are_those_of_all(void **state) {
    (void)state;
    static struct job jobs[ENGINES];
    struct world w;
    struct gyre_error err;
    struct service_state s;
    world_open(&w, 0);
    for (int i = 0; i < ENGINES; i++) { // what each shall have counted when it looks after its first step
        struct drafter *d = &w.engines[i]->drafter;
        d->n_drafts = 1 << 2 * i, d->n_guessed = 10 << 2 * i, d->n_accepted = 3 << 2 * i;
        for (int k = 0; k < MOST_GUESSES; k++)
            d->n_right_at[k] = (k + 1) << 2 * i;
        for (int k = 0; k < N_DRAFT_OFF; k++)
            d->n_off[k] = (100 + k) << 2 * i;
    }
    for (int i = 0; i < ENGINES; i++) // each to one that is idle
        EXPECT_OK(submit(&w, &jobs[i], &err), err);
    for (int i = 0; i < ENGINES; i++)
        EXPECT_EQ(wait_done(&w, &jobs[i]), GYRE_LENGTH);
    service_state(w.service, &s);
    EXPECT_EQ(s.n_drafts, 21);
    EXPECT_EQ(s.n_guessed, 210);
    EXPECT_EQ(s.n_accepted, 63);
    for (int k = 0; k < MOST_GUESSES; k++)
        EXPECT_EQ(s.n_right_at[k], 21 * (k + 1));
    for (int k = 0; k < N_DRAFT_OFF; k++)
        EXPECT_EQ(s.n_draft_off[k], 21 * (100 + k));
    world_close(&w);
}

// ---- opened anew ------------------------------------------------------------------------------------------------

/* How engines are opened anew: the first n_fails times not at all, then n_others times another model. Nothing is
 * expected here, on the engine's thread. */
struct reopening {
    struct program *program, *other;
    const int32_t *ends; // of the other's answers
    int n_fails, n_others;
    atomic_int n, wrong_engine;
};

static int reopen(void *context, int engine, struct gyre **out, struct gyre_error *err) {
    struct reopening *r = context;
    struct error e = {.status = ERR_DEVICE, .text = "the toy is still broken"};
    int n = atomic_fetch_add(&r->n, 1);
    if (engine < 0 || engine >= ENGINES)
        atomic_fetch_add(&r->wrong_engine, 1);
    if (n < r->n_fails)
        return engine_report(err, &e);
    bool is_other = n < r->n_fails + r->n_others;
    return open_with_eos(is_other ? r->other : r->program, is_other ? r->ends : eos, out, &e) == OK
               ? 0
               : engine_report(err, &e);
}

/* Hours in which nothing is waited for by a test that passes, and such as it waits for. */
enum { LONG_HOUR_US = 36000000, SHORT_HOUR_US = 360000 };

static void world_open_reopening(struct world *w, struct reopening *r, int64_t hour_us) {
    world_open_with(w, (struct service_options){.reopen = reopen, .reopen_context = r, .reopen_hour_us = hour_us});
    r->program = w->program;
}

/* Waits for so many engines that have failed, restarts at least and failed ones at least. */
static struct service_state state_when(struct world *w, int n_failed, int n_restarts, int n_reopen_faults) {
    struct service_state all;
    for (int i = 0;; i++) {
        service_state(w->service, &all);
        if (all.n_failed == n_failed && all.n_restarts >= n_restarts && all.n_reopen_faults >= n_reopen_faults)
            return all;
        EXPECT(i < 60000);
        usleep(1000);
    }
}

/* It fails once more when it is opened; what had been asked of it is over, whatever happens to those answers later. */
static void an_engine_that_failed_is_opened_anew(void **state) {
    (void)state;
    struct world w;
    struct job old, jobs[ENGINES];
    struct gyre_error err;
    struct reopening r = {.n_fails = 1};
    world_open_reopening(&w, &r, LONG_HOUR_US);
    int32_t len = (int32_t)service_info(w.service)->max_model_len;
    toy_faults.collect_fails_in = 3;
    EXPECT_OK(submit(&w, &old, &err), err);
    while (!old.answer->done)
        sem_wait(&old.bell), service_look(old.answer);
    EXPECT_EQ(old.answer->finish, GYRE_FAILED);
    EXPECT_EQ(service_info(w.service)->max_model_len, len); // also while there is none
    struct service_state before = state_when(&w, 0, 1, 1), after;
    EXPECT_EQ(before.n_restarts, 1);
    EXPECT_EQ(before.n_reopen_faults, 1);
    EXPECT(!before.error[0]);
    for (int i = 0; i < ENGINES; i++)
        EXPECT_OK(submit(&w, &jobs[i], &err), err);
    service_cancel(w.service, old.answer);
    for (int i = 0; i < ENGINES; i++)
        EXPECT_EQ(wait_done(&w, &jobs[i]), GYRE_LENGTH);
    for (int i = 0; i < ENGINES; i++) { // each has run one
        service_state_of(w.service, i, &after);
        EXPECT(after.n_steps >= 60);
    }
    service_state(w.service, &after);
    EXPECT(after.n_steps > before.n_steps);
    EXPECT_EQ(atomic_load(&r.wrong_engine), 0);
    service_release(w.service, old.answer);
    world_close(&w);
}

/* Spends the three tries of an hour, and is told what the last said. */
static void expect_refusals(struct reopening *r, const char *sentence) {
    struct world w;
    world_open_reopening(&w, r, LONG_HOUR_US);
    break_one(&w);
    struct service_state s = state_when(&w, 1, 0, 3);
    EXPECT_EQ(s.n_restarts, 0);
    EXPECT(strstr(s.error, sentence));
    EXPECT(strstr(s.error, "(when it was opened anew)"));
    world_close(&w);
}

/* A vocabulary or an end of answers that the front does not know would be taken for its own. */
static void another_model_is_not_taken(void **state) {
    (void)state;
    static const int32_t other_eos[] = {2};
    struct program *larger = toy_program(&(struct toy_shape){.vocab_size = 2 * VOCAB, .full = true});
    struct program *same = toy_program(&(struct toy_shape){.vocab_size = VOCAB, .full = true});
    expect_refusals(&(struct reopening){.n_fails = 3}, "the toy is still broken");
    expect_refusals(&(struct reopening){.other = larger, .ends = eos, .n_others = 3},
                    "another than the one that is served: 80 tokens in its vocabulary, not 40");
    expect_refusals(&(struct reopening){.other = same, .ends = other_eos, .n_others = 3},
                    "another than the one that is served: answers end at token 2, not 1");
    program_free(larger);
    program_free(same);
}

/* Engines that fail again whenever they work: the one that the next request goes to. */
static void the_next_hour_has_tries_of_its_own(void **state) {
    (void)state;
    struct world w;
    struct reopening r = {0};
    world_open_reopening(&w, &r, SHORT_HOUR_US);
    for (int i = 1; i <= 3 * ENGINES + 1; i++) { // one engine at least has had more than three
        break_one(&w);
        state_when(&w, 0, i, 0);
    }
    world_close(&w);
    r = (struct reopening){.n_fails = 4};
    world_open_reopening(&w, &r, SHORT_HOUR_US);
    break_one(&w);
    state_when(&w, 0, 1, 4);
    world_close(&w);
}

/* While clients ask on, engines die in whatever step comes: each answer ends once, and the next crowd is served. */
static void engines_that_die_by_turns_lose_nobody(void **state) {
    enum { ROUNDS = 10, CROWD = 2 * ENGINES };
    (void)state;
    struct world w;
    struct reopening r = {0};
    struct job jobs[CROWD];
    struct gyre_error err;
    int n_failed = 0, n_whole = 0;
    world_open_reopening(&w, &r, SHORT_HOUR_US);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < CROWD; i++)
            EXPECT_OK(submit(&w, &jobs[i], &err), err);
        toy_faults.collect_fails_in = 1 + round * 13; // of some 180 steps of those that run first
        for (int i = 0; i < CROWD; i++) {
            enum gyre_finish finish = wait_done(&w, &jobs[i]);
            EXPECT(finish == GYRE_LENGTH || finish == GYRE_FAILED);
            n_failed += finish == GYRE_FAILED, n_whole += finish == GYRE_LENGTH;
        }
        state_when(&w, 0, round + 1, 0);
    }
    EXPECT(n_failed >= ROUNDS && n_whole >= ROUNDS);
    world_close(&w);
}

/* The end does not wait until it would be tried again. */
static void an_end_comes_while_an_engine_is_away(void **state) {
    (void)state;
    struct world w;
    struct reopening r = {.n_fails = 100};
    world_open_reopening(&w, &r, LONG_HOUR_US);
    break_one(&w);
    for (int i = 0; state_when(&w, 1, 0, 3).n_given_up == 0; i++)
        EXPECT(i < 60000);
    world_close(&w); // the next is an hour away
    EXPECT_EQ(atomic_load(&r.n), 3);
}

/* An end does not begin with a load: it fails in a later step, once the service drains. */
static void who_drains_opens_nothing(void **state) {
    (void)state;
    struct world w;
    struct job j;
    struct gyre_error err;
    struct reopening r = {0};
    world_open_reopening(&w, &r, LONG_HOUR_US);
    toy_faults.collect_fails_in = 50; // of 60 steps: a quarter of a second from now
    EXPECT_OK(submit(&w, &j, &err), err);
    service_drain(w.service);
    EXPECT_EQ(wait_done(&w, &j), GYRE_FAILED);
    usleep(LONG_HOUR_US / 3600 * 10); // ten times what it would be waited for
    EXPECT(!service_is_opening(w.service));
    world_close(&w);
    EXPECT_EQ(atomic_load(&r.n), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_full_front_with_a_broken_engine_says_that_it_is_full),
        cmocka_unit_test(a_wait_is_that_of_engines_that_work),
        cmocka_unit_test(each_engine_has_a_state_and_all_broken_are_a_broken_device),
        cmocka_unit_test(drafts_are_those_of_all),
        cmocka_unit_test(an_engine_that_failed_is_opened_anew),
        cmocka_unit_test(another_model_is_not_taken),
        cmocka_unit_test(the_next_hour_has_tries_of_its_own),
        cmocka_unit_test(engines_that_die_by_turns_lose_nobody),
        cmocka_unit_test(an_end_comes_while_an_engine_is_away),
        cmocka_unit_test(who_drains_opens_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
