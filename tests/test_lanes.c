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

static enum status open_engine(const struct world *w, struct gyre **out, struct error *err) {
    struct gyre_options o = {.backend = &backend_toy, .max_seqs = 1};
    return engine_open(&o, &(struct engine_model){w->program, 96, -1, eos, 1}, out, err);
}

/* Each has one place. A step takes 5 ms, so that what was submitted runs for a while. */
static void world_open_with(struct world *w, struct service_options options) {
    struct gyre_error failed;
    struct error err;
    options.news = ring;
    setenv("GYRE_TOY_STEP_US", "5000", true);
    w->program = toy_program(&(struct toy_shape){.vocab_size = VOCAB, .full = true});
    for (int i = 0; i < ENGINES; i++)
        EXPECT_OK(open_engine(w, &w->engines[i], &err), err);
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

static atomic_int n_reopened, n_reopen_fails;

static int reopen(void *context, int engine, struct gyre **out, struct gyre_error *err) {
    struct error e;
    EXPECT(engine >= 0 && engine < ENGINES);
    atomic_fetch_add(&n_reopened, 1);
    if (atomic_fetch_sub(&n_reopen_fails, 1) > 0) {
        *err = (struct gyre_error){.status = ERR_DEVICE, .text = "the toy is still broken"};
        return ERR_DEVICE;
    }
    EXPECT_OK(open_engine(context, out, &e), e);
    return 0;
}

static struct service_state state_when(struct world *w, int n_reopened_least, int n_failed) {
    struct service_state all;
    for (int i = 0;; i++) {
        service_state(w->service, &all);
        if (atomic_load(&n_reopened) >= n_reopened_least && all.n_failed == n_failed)
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
    struct service_options options = {.reopen = reopen, .reopen_context = &w};
    atomic_store(&n_reopened, 0);
    atomic_store(&n_reopen_fails, 1);
    world_open_with(&w, options);
    int32_t len = (int32_t)service_info(w.service)->max_model_len;
    toy_faults.collect_fails_in = 3;
    EXPECT_OK(submit(&w, &old, &err), err);
    while (!old.answer->done)
        sem_wait(&old.bell), service_look(old.answer);
    EXPECT_EQ(old.answer->finish, GYRE_FAILED);
    EXPECT_EQ(state_when(&w, 0, 1).n_restarts, 0);
    EXPECT(strstr(state_when(&w, 1, 1).error, "still broken (when it was opened anew)"));
    EXPECT_EQ(service_info(w.service)->max_model_len, len); // also while there is none
    struct service_state before = state_when(&w, 2, 0), after;
    EXPECT_EQ(before.n_restarts, 1);
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
    service_release(w.service, old.answer);
    world_close(&w);
}

/* The end does not wait until it would be tried again. */
static void an_end_comes_while_an_engine_is_away(void **state) {
    (void)state;
    struct world w;
    struct service_options options = {.reopen = reopen, .reopen_context = &w};
    atomic_store(&n_reopened, 0);
    atomic_store(&n_reopen_fails, 100);
    world_open_with(&w, options);
    break_one(&w);
    state_when(&w, 1, 1);
    world_close(&w);
    EXPECT_EQ(atomic_load(&n_reopened), 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_full_front_with_a_broken_engine_says_that_it_is_full),
        cmocka_unit_test(a_wait_is_that_of_engines_that_work),
        cmocka_unit_test(each_engine_has_a_state_and_all_broken_are_a_broken_device),
        cmocka_unit_test(drafts_are_those_of_all),
        cmocka_unit_test(an_engine_that_failed_is_opened_anew),
        cmocka_unit_test(an_end_comes_while_an_engine_is_away),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
