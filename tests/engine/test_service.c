/* test_service.c - an engine thread between many listeners, on the toy backend: every answer ends exactly once, with
 * the tokens that its request gets alone, whatever is cancelled, refused, drained or broken meanwhile. */
#include "check.h"

#include "backend/toy/toy.h"
#include "base/clock.h"
#include "base/random.h"
#include "engine/engine.h"
#include "engine/service.h"

#include <math.h>
#include <pthread.h>
#include <semaphore.h>
#include <unistd.h>

enum { VOCAB = 40, EOS = 1, LONGEST = 96, LISTENERS = 4, REQUESTS = 150, IN_FLIGHT = 12 };

/* Draws of one thread: seed, thread, counter. */
struct dice {
    uint64_t stream, counter;
};
static int below(struct dice *d, int n) { return (int)(philox_uniform(test_seed(), d->counter++, d->stream) * n); }

/* What a listener needs to be told on: a list of answers and a bell. */
struct ear {
    pthread_mutex_t lock;
    struct answer *news[1024]; // an answer is told of again only after it was looked at
    int n;
    sem_t bell;
};

struct world {
    struct program *program;
    struct service *service;
    struct ear ears[LISTENERS];
};

struct job {
    int32_t prompt[LONGEST], want[LONGEST];
    int n_prompt, n_want, cancel_after; // -1: never
    struct answer *answer;
    struct ear *ear;
    bool ended;
};

static void hear(void *context, struct answer *a) {
    (void)context;
    struct ear *ear = ((struct job *)a->user)->ear;
    pthread_mutex_lock(&ear->lock);
    ear->news[ear->n++] = a;
    pthread_mutex_unlock(&ear->lock);
}

static void ring(void *context) {
    for (int i = 0; i < LISTENERS; i++)
        sem_post(&((struct world *)context)->ears[i].bell);
}

/* The next answer with news, looked at; NULL when there is none. */
static struct answer *next_news(struct ear *ear) {
    pthread_mutex_lock(&ear->lock);
    struct answer *a = ear->n > 0 ? ear->news[--ear->n] : NULL;
    pthread_mutex_unlock(&ear->lock);
    if (a)
        service_look(a);
    return a;
}

static struct gyre *toy_engine(struct program *program, struct gyre_options options) {
    static const int32_t eos[] = {EOS};
    struct engine_model model = {program, LONGEST, -1, eos, 1};
    struct gyre *g;
    struct error err;
    options.backend = &backend_toy;
    EXPECT_OK(engine_open(&options, &model, &g, &err), err);
    return g;
}

static int n_engines = 1; // of a world that is opened

static void world_open(struct world *w, struct gyre_options options, int max_queued) {
    struct gyre *engines[4];
    *w = (struct world){.program = toy_program(&(struct toy_shape){.vocab_size = VOCAB, .full = true, .window = 24})};
    for (int i = 0; i < LISTENERS; i++) {
        sem_init(&w->ears[i].bell, 0, 0);
        pthread_mutex_init(&w->ears[i].lock, NULL);
    }
    struct service_options o = {.news = hear, .flush = ring, .context = w, .max_queued = max_queued};
    struct gyre_error err;
    for (int i = 0; i < n_engines; i++)
        engines[i] = toy_engine(w->program, options);
    EXPECT_OK(service_open_several(engines, n_engines, &o, &w->service, &err), err);
}

static void world_close(struct world *w) {
    service_close(w->service);
    program_free(w->program);
}

static const struct gyre_options small_cache = {
    .block_size = 8, .kv_cache_bytes = 40 * 64, .max_batched_tokens = 24, .max_seqs = 8};

static struct gyre_request request_of(const struct job *j) {
    return (struct gyre_request){.prompt = j->prompt,
                                 .n_prompt = j->n_prompt,
                                 .max_tokens = j->n_want,
                                 .top_p = 1,
                                 .repetition_penalty = 1,
                                 .ignore_eos = true};
}

static void make_job(struct job *j, struct dice *d) {
    *j = (struct job){
        .n_prompt = 1 + below(d, 40), .n_want = 1 + below(d, 40), .cancel_after = below(d, 4) ? -1 : below(d, 20)};
    for (int i = 0; i < j->n_prompt; i++)
        j->prompt[i] = below(d, VOCAB);
}

/* What each job gets alone: one engine, one request at a time. */
static void fill_wanted(struct job *jobs, int n) {
    struct program *p = toy_program(&(struct toy_shape){.vocab_size = VOCAB, .full = true, .window = 24});
    struct gyre *g = toy_engine(p, (struct gyre_options){0});
    for (int i = 0; i < n; i++) {
        struct gyre_request q = request_of(&jobs[i]);
        struct gyre_error err;
        uint64_t id;
        int at = 0;
        EXPECT_OK(gyre_submit(g, &q, &id, &err), err);
        while (gyre_busy(g)) {
            struct gyre_event e[16];
            for (int k = 0, got = gyre_poll(g, e, 16); k < got; k++)
                if (e[k].kind == GYRE_TOKEN)
                    jobs[i].want[at++] = e[k].token;
        }
    }
    gyre_close(g);
    program_free(p);
}

struct listener_run {
    struct world *world;
    int listener;
    struct job *jobs; // [REQUESTS]
    int n_wrong, n_ended, n_cancelled;
};

static void look_at(struct listener_run *run, struct answer *a) {
    struct job *j = a->user;
    int n = atomic_load_explicit(&a->n_tokens, memory_order_acquire);
    for (int i = 0; i < n; i++)
        run->n_wrong += a->tokens[i] != j->want[i];
    if (j->cancel_after >= 0 && n >= j->cancel_after && !a->done)
        service_cancel(run->world->service, a);
    if (!a->done)
        return;
    run->n_wrong +=
        j->ended || (a->finish == GYRE_CANCELLED ? j->cancel_after < 0 : a->finish != GYRE_LENGTH || n != j->n_want);
    run->n_cancelled += a->finish == GYRE_CANCELLED;
    j->ended = true;
    run->n_ended++;
    service_release(run->world->service, a);
}

static void *listen_and_submit(void *arg) {
    struct listener_run *run = arg;
    struct ear *ear = &run->world->ears[run->listener];
    int next = 0;
    while (run->n_ended < REQUESTS) {
        while (next < REQUESTS && next - run->n_ended < IN_FLIGHT) {
            struct job *j = &run->jobs[next++];
            j->ear = ear;
            struct gyre_request q = request_of(j);
            struct gyre_error err;
            if (service_submit(run->world->service, &q, j, &j->answer, &err) != 0) {
                run->n_wrong++;
                run->n_ended++;
            }
        }
        sem_wait(&ear->bell);
        for (struct answer *a; (a = next_news(ear));)
            look_at(run, a);
    }
    return NULL;
}

static void many_listeners_get_the_tokens_of_each_alone(void **state) {
    (void)state;
    struct world w;
    world_open(&w, small_cache, 0);
    static struct job jobs[LISTENERS][REQUESTS];
    struct listener_run runs[LISTENERS];
    pthread_t threads[LISTENERS];
    for (int i = 0; i < LISTENERS; i++) {
        struct dice d = {(uint64_t)i + 10, 0};
        for (int k = 0; k < REQUESTS; k++)
            make_job(&jobs[i][k], &d);
        fill_wanted(jobs[i], REQUESTS);
    }
    for (int i = 0; i < LISTENERS; i++) {
        runs[i] = (struct listener_run){.world = &w, .listener = i, .jobs = jobs[i]};
        EXPECT(pthread_create(&threads[i], NULL, listen_and_submit, &runs[i]) == 0);
    }
    int n_cancelled = 0;
    for (int i = 0; i < LISTENERS; i++) {
        pthread_join(threads[i], NULL);
        EXPECT_EQ(runs[i].n_wrong, 0);
        n_cancelled += runs[i].n_cancelled;
    }
    struct service_state s;
    service_state(w.service, &s);
    EXPECT(n_cancelled > 0 && s.n_preempted > 0); // what the test is about did happen
    EXPECT_EQ(s.n_running + s.n_waiting + s.n_queued, 0);
    world_close(&w);
}

static struct answer *submit_one(struct world *w, struct job *j) {
    struct gyre_request q = request_of(j);
    struct gyre_error err;
    struct answer *a;
    j->ear = &w->ears[0];
    EXPECT_OK(service_submit(w->service, &q, j, &a, &err), err);
    return a;
}

/* Waits for done on listener 0. */
static struct answer *wait_done(struct world *w) {
    for (;;) {
        for (struct answer *a; (a = next_news(&w->ears[0]));)
            if (a->done)
                return a;
        sem_wait(&w->ears[0].bell);
    }
}

static void an_answer_says_which_token_ended_it(void **state) {
    (void)state;
    struct world w;
    world_open(&w, small_cache, 0);
    for (int ends = 0; ends < 2; ends++) {
        struct job j = {.n_prompt = 3, .prompt = {1, 2, 3}, .n_want = 5, .cancel_after = -1};
        fill_wanted(&j, 1);
        struct gyre_request q = request_of(&j);
        struct gyre_error err;
        int first = 0; // of the stop id
        while (j.want[first] != j.want[4])
            first++;
        q.stop_ids = &j.want[4];
        q.n_stop_ids = (size_t)ends;
        j.ear = &w.ears[0];
        EXPECT_OK(service_submit(w.service, &q, &j, &j.answer, &err), err);
        struct answer *a = wait_done(&w);
        EXPECT_EQ(a->n_tokens, ends ? first + 1 : 5);
        EXPECT_EQ(a->n_text, ends ? first : INT32_MAX);
        service_release(w.service, a);
    }
    world_close(&w);
}

static void a_full_queue_refuses_and_says_how_full(void **state) {
    (void)state;
    struct world w;
    world_open(&w, (struct gyre_options){.max_seqs = 1, .max_batched_tokens = 8}, 3);
    struct dice d = {99, 0};
    struct job jobs[64];
    int n_accepted = 0, n_refused = 0;
    for (int i = 0; i < 64; i++) {
        make_job(&jobs[i], &d);
        jobs[i].n_want = 40;
        jobs[i].ear = &w.ears[0];
        struct gyre_request q = request_of(&jobs[i]);
        struct gyre_error err;
        struct answer *a;
        int st = service_submit(w.service, &q, &jobs[i], &a, &err);
        n_accepted += st == 0;
        n_refused += st != 0;
        if (st != 0) {
            EXPECT_EQ(st, ERR_FULL);
            EXPECT(strstr(err.text, "waiting"));
        }
    }
    EXPECT(n_refused > 0);
    for (int i = 0; i < n_accepted; i++)
        service_release(w.service, wait_done(&w));
    world_close(&w);
}

static void a_bad_request_is_refused_where_it_is_made(void **state) {
    (void)state;
    struct world w;
    world_open(&w, (struct gyre_options){0}, 0);
    struct job j = {.prompt = {VOCAB}, .n_prompt = 1, .n_want = 4};
    struct gyre_request q = request_of(&j);
    struct gyre_error err;
    struct answer *a;
    EXPECT_EQ(service_submit(w.service, &q, &j, &a, &err), ERR_ARG);
    EXPECT(!a && strstr(err.text, "vocabulary"));
    world_close(&w);
}

static void closing_ends_what_runs(void **state) {
    (void)state;
    for (int i = 0; i < 30; i++) {
        struct world w;
        world_open(&w, small_cache, 0);
        struct job j[5];
        struct dice d = {7, (uint64_t)i * 1000};
        for (int k = 0; k < 5; k++) {
            make_job(&j[k], &d);
            submit_one(&w, &j[k]);
        }
        if (i % 3 == 0)
            usleep(500);
        world_close(&w); // asan and tsan see whatever is left or touched too late
    }
}

static void draining_finishes_what_was_accepted(void **state) {
    (void)state;
    struct world w;
    world_open(&w, small_cache, 0);
    struct dice d = {8, 0};
    struct job j, late;
    make_job(&j, &d);
    make_job(&late, &d);
    submit_one(&w, &j);
    service_drain(w.service);
    struct gyre_request q = request_of(&late);
    struct gyre_error err;
    struct answer *a;
    EXPECT_EQ(service_submit(w.service, &q, &late, &a, &err), ERR_FULL);
    a = wait_done(&w);
    EXPECT_EQ(a->finish, GYRE_LENGTH);
    EXPECT_EQ(a->n_tokens, j.n_want);
    service_release(w.service, a);
    world_close(&w);
}

static void a_broken_device_ends_all_and_refuses_more(void **state) {
    (void)state;
    struct world w;
    world_open(&w, small_cache, 0);
    toy_faults.collect_fails_in = 5;
    struct dice d = {9, 0};
    struct job j[3];
    for (int i = 0; i < 3; i++) {
        make_job(&j[i], &d);
        j[i].n_want = 30;
        j[i].ear = &w.ears[0];
        struct gyre_request q = request_of(&j[i]);
        struct gyre_error err;
        struct answer *a;
        if (service_submit(w.service, &q, &j[i], &a, &err) != 0)
            EXPECT_EQ(err.status, ERR_DEVICE); // it may be broken by now
        else {
            a = wait_done(&w);
            EXPECT_EQ(a->finish, GYRE_FAILED);
            EXPECT(strstr(a->error, "broke"));
            service_release(w.service, a);
        }
    }
    struct service_state s;
    service_state(w.service, &s);
    EXPECT(s.failed && strstr(s.error, "broke"));
    toy_faults.collect_fails_in = 0;
    world_close(&w);
}

static void scores_and_choices_arrive_in_their_arrays(void **state) {
    (void)state;
    struct world w;
    world_open(&w, (struct gyre_options){.max_batched_tokens = 8, .max_seqs = 8}, 0);
    struct job j = {.n_prompt = 30, .n_want = 5};
    for (int i = 0; i < 30; i++)
        j.prompt[i] = i % VOCAB;
    struct gyre_request q = request_of(&j);
    q.score_prompt = q.logprobs = true;
    q.n_top_logprobs = 3, q.n_prompt_top_logprobs = 2;
    struct gyre_error err;
    struct answer *a;
    j.ear = &w.ears[0];
    EXPECT_OK(service_submit(w.service, &q, &j, &a, &err), err);
    a = wait_done(&w);
    EXPECT(isnan(a->prompt_logprobs[0]));
    for (int i = 1; i < 30; i++) {
        const float *top = a->prompt_top_logprobs + 2 * i;
        EXPECT(a->prompt_logprobs[i] < 0 && top[0] >= top[1]);
        EXPECT(a->prompt_ranks[i] == 1 ? a->prompt_logprobs[i] == top[0] : a->prompt_logprobs[i] < top[0]);
        EXPECT(a->prompt_ranks[i] == 2 ? a->prompt_top_tokens[2 * i + 1] == j.prompt[i] : true);
    }
    for (int i = 0; i < 5; i++) {
        EXPECT_EQ(a->top_tokens[3 * i], a->tokens[i]); // greedy
        EXPECT(a->logprobs[i] == a->top_logprobs[3 * i]);
    }
    service_release(w.service, a);
    world_close(&w);
}

static int several(void **state) {
    (void)state;
    n_engines = 3;
    return 0;
}

/* Of three engines the one that has had its beginning: of any other it would be computed again. */
static void a_prompt_goes_where_its_beginning_lies(void **state) {
    (void)state;
    struct world w;
    world_open(&w, (struct gyre_options){.block_size = 8, .max_seqs = 4}, 0);
    struct dice d = {31, 0};
    static struct job texts[9];
    for (int i = 0; i < 9; i++) {
        make_job(&texts[i], &d);
        texts[i].n_prompt = 40, texts[i].n_want = 2;
        for (int k = 0; k < 40; k++)
            texts[i].prompt[k] = below(&d, VOCAB);
        submit_one(&w, &texts[i]);
    }
    for (int i = 0; i < 9; i++)
        service_release(w.service, wait_done(&w));
    for (int again = 0; again < 3; again++)
        for (int i = 0; i < 9; i++) {
            texts[i].prompt[39] = again; // behind it
            submit_one(&w, &texts[i]);
            struct answer *a = wait_done(&w);
            EXPECT_EQ(a->timing.n_reused, 32);
            service_release(w.service, a);
        }
    EXPECT_EQ(counter_get(&service_telemetry(w.service)->prompt_tokens.sum), 36 * 40);
    world_close(&w);
}

/* Each has room for one: if any had been sent two while another had none, one would wait. */
static void requests_go_where_they_wait_least(void **state) {
    (void)state;
    struct world w;
    world_open(&w, (struct gyre_options){.max_seqs = 1}, 0);
    struct dice d = {32, 0};
    static struct job jobs[3];
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 3; i++) {
            make_job(&jobs[i], &d);
            jobs[i].n_want = 30;
            submit_one(&w, &jobs[i]);
        }
        for (int i = 0; i < 3; i++) {
            struct answer *a = wait_done(&w);
            EXPECT_EQ(counter_get(&a->progress.queue_reason), 0);
            service_release(w.service, a);
        }
    }
    world_close(&w);
}

/* One of three; its requests end, later ones go to the others. */
static void a_broken_engine_leaves_requests_to_the_others(void **state) {
    (void)state;
    struct world w;
    world_open(&w, small_cache, 0);
    struct dice d = {33, 0};
    static struct job jobs[40];
    int n_failed = 0;
    toy_faults.collect_fails_in = 3;
    for (int i = 0; i < 40; i++) {
        make_job(&jobs[i], &d);
        submit_one(&w, &jobs[i]);
        struct answer *a = wait_done(&w);
        n_failed += a->finish == GYRE_FAILED;
        toy_faults.collect_fails_in = n_failed ? 0 : toy_faults.collect_fails_in;
        service_release(w.service, a);
    }
    struct service_state s;
    service_state(w.service, &s);
    EXPECT(n_failed == 1 && s.n_failed == 1 && !s.failed && s.error[0]);
    world_close(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_listeners_get_the_tokens_of_each_alone),
        cmocka_unit_test(a_full_queue_refuses_and_says_how_full),
        cmocka_unit_test(a_bad_request_is_refused_where_it_is_made),
        cmocka_unit_test(closing_ends_what_runs),
        cmocka_unit_test(draining_finishes_what_was_accepted),
        cmocka_unit_test(a_broken_device_ends_all_and_refuses_more),
        cmocka_unit_test(scores_and_choices_arrive_in_their_arrays),
        cmocka_unit_test(an_answer_says_which_token_ended_it),
    };
    const struct CMUnitTest of_several[] = {
        cmocka_unit_test(many_listeners_get_the_tokens_of_each_alone),
        cmocka_unit_test(closing_ends_what_runs),
        cmocka_unit_test(draining_finishes_what_was_accepted),
        cmocka_unit_test(a_full_queue_refuses_and_says_how_full),
        cmocka_unit_test(a_prompt_goes_where_its_beginning_lies),
        cmocka_unit_test(requests_go_where_they_wait_least),
        cmocka_unit_test(a_broken_engine_leaves_requests_to_the_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) + cmocka_run_group_tests(of_several, several, NULL);
}
