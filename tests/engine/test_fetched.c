/* test_fetched.c - tickets that are somewhere else before the engine gets them, as lane.h has it: the test is that
 * place, on the toy backend. */
#include "check.h"

#include "backend/toy/toy.h"
#include "base/clock.h"
#include "engine/engine.h"
#include "engine/lanes/lane.h"

#include <pthread.h>
#include <semaphore.h>
#include <unistd.h>

enum { VOCAB = 40, SECOND_US = 1000000, MOST = 4 };

static void no_news(void *context, struct answer *a) { (void)context, (void)a; }

static struct service *open_toy(struct program **program) {
    static const int32_t eos[] = {1};
    static const struct gyre_options options = {
        .backend = &backend_toy, .block_size = 8, .max_batched_tokens = 24, .max_seqs = 2};
    struct gyre *g;
    struct service *s;
    struct error err;
    struct gyre_error e;
    *program = toy_program(&(struct toy_shape){.vocab_size = VOCAB, .full = true, .window = 24});
    struct engine_model model = {*program, 96, -1, eos, 1};
    EXPECT_OK(engine_open(&options, &model, &g, &err), err);
    EXPECT_OK(service_open(g, &(struct service_options){.news = no_news}, &s, &e), e);
    return s;
}

static void submit(struct service *s, struct answer **out) {
    static const int32_t prompt[] = {5, 6, 7, 8};
    struct gyre_request q = service_request_default(s);
    struct gyre_error err;
    q.prompt = prompt, q.n_prompt = ARRAY_LEN(prompt), q.max_tokens = 4;
    EXPECT_OK(service_submit(s, &q, NULL, out, &err), err);
}

/* Keeps what is pushed until it is cancelled, or all is closed. */
struct place {
    struct lane *lane;
    pthread_mutex_t lock;
    struct ticket *held[MOST];
    int n, n_late; // late: calls since it is being closed
    bool is_closing, is_cancelled;
    bool is_slow; // to be pushed to: a cancel may come before it is there
    sem_t pushing, closing, may_close;
};

static void place_init(struct place *p, struct lane *lane) {
    *p = (struct place){.lane = lane};
    pthread_mutex_init(&p->lock, NULL);
    sem_init(&p->pushing, 0, 0), sem_init(&p->closing, 0, 0), sem_init(&p->may_close, 0, 0);
}

static void note_call(const struct place *p) {
    struct place *own = (struct place *)p;
    pthread_mutex_lock(&own->lock);
    own->n_late += own->is_closing;
    pthread_mutex_unlock(&own->lock);
}

static bool is_cancelled(struct place *p) {
    pthread_mutex_lock(&p->lock);
    bool is = p->is_cancelled;
    pthread_mutex_unlock(&p->lock);
    return is;
}

static bool wants(const void *of, const struct request *r) {
    (void)r;
    note_call(of);
    return true;
}

static void push(void *of, struct ticket *t) {
    struct place *p = of;
    note_call(p);
    sem_post(&p->pushing);
    for (int i = 0; p->is_slow && i < 100 && !is_cancelled(p); i++)
        usleep(1000);
    pthread_mutex_lock(&p->lock);
    EXPECT(p->n < MOST);
    p->held[p->n++] = t;
    pthread_mutex_unlock(&p->lock);
}

static bool cancel(void *of, struct ticket *t) {
    struct place *p = of;
    note_call(p);
    pthread_mutex_lock(&p->lock);
    bool is_here = false;
    for (int i = 0; i < p->n && !is_here; i++)
        if (p->held[i] == t)
            is_here = true, p->held[i] = p->held[--p->n];
    p->is_cancelled = true;
    pthread_mutex_unlock(&p->lock);
    return is_here;
}

static void count(void *of, struct service_state *out) {
    note_call(of);
    out->n_fetched_prompts = 7;
}

static void close_place(void *of) {
    struct place *p = of;
    pthread_mutex_lock(&p->lock);
    p->is_closing = true;
    pthread_mutex_unlock(&p->lock);
    sem_post(&p->closing);
    sem_wait(&p->may_close);
    while (p->n > 0)
        lane_fetched(p->lane, p->held[--p->n]);
}

static void set_place(struct service *s, struct place *p) {
    place_init(p, service_lane(s));
    lane_set_fetch(p->lane, &(struct lane_fetch){wants, push, cancel, count, close_place, p});
}

static void *close_service(void *arg) {
    service_close(arg);
    return NULL;
}

/* Whoever looks, submits or cancels while it ends: what is closed is freed right behind that. */
static void what_is_being_closed_is_not_called(void **state) {
    (void)state;
    struct place p;
    struct program *program;
    struct service *s = open_toy(&program);
    struct service_state now;
    struct answer *first, *second;
    pthread_t thread;
    set_place(s, &p);
    submit(s, &first);
    service_state(s, &now);
    EXPECT_EQ(now.n_fetched_prompts, 7);
    EXPECT_EQ(now.n_queued, 1);
    EXPECT_EQ(pthread_create(&thread, NULL, close_service, s), 0);
    sem_wait(&p.closing);
    service_state(s, &now);
    service_cancel(s, first);
    submit(s, &second);
    sem_post(&p.may_close);
    pthread_join(thread, NULL);
    EXPECT_EQ(p.n_late, 0);
    EXPECT_EQ(p.n, 0);
    program_free(program);
}

struct leaver {
    struct place *place;
    struct service *service;
    struct answer *answer;
};

static void *leave_while_pushed(void *arg) {
    struct leaver *l = arg;
    sem_wait(&l->place->pushing);
    service_cancel(l->service, l->answer);
    return NULL;
}

static void who_is_cancelled_while_pushed_ends(void **state) {
    (void)state;
    struct place p;
    struct program *program;
    struct service *s = open_toy(&program);
    struct leaver l = {&p, s, NULL};
    pthread_t thread;
    set_place(s, &p);
    p.is_slow = true;
    EXPECT_EQ(pthread_create(&thread, NULL, leave_while_pushed, &l), 0);
    submit(s, &l.answer);
    pthread_join(thread, NULL);
    for (int64_t until_us = clock_us() + 20 * SECOND_US; !l.answer->done; usleep(1000)) {
        EXPECT(clock_us() < until_us);
        service_look(l.answer);
    }
    EXPECT_EQ(l.answer->finish, GYRE_CANCELLED);
    service_release(s, l.answer);
    sem_post(&p.may_close);
    service_close(s);
    program_free(program);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_being_closed_is_not_called),
        cmocka_unit_test(who_is_cancelled_while_pushed_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
