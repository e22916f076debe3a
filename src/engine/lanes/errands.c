/* errands.c - see lane.h: what threads that are no listeners want of an engine. */
#include "engine/lanes/lane_parts.h"

bool lane_errand(struct lane *s, void (*run)(struct gyre *g, void *context), void *context) {
    struct lane_errand e = {.run = run, .context = context};
    pthread_mutex_lock(&s->lock);
    bool may = s->started && !s->stopping;
    if (may) {
        e.next = s->errands;
        s->errands = &e;
        pthread_cond_broadcast(&s->work);
    }
    while (may && !e.is_over)
        pthread_cond_wait(&s->errand_over, &s->lock);
    pthread_mutex_unlock(&s->lock);
    return e.was_run;
}

struct lane_errand *lane_take_errands(struct lane *s) {
    pthread_mutex_lock(&s->lock);
    struct lane_errand *first = s->errands;
    s->errands = NULL;
    pthread_mutex_unlock(&s->lock);
    return first;
}

bool lane_beside(struct lane *s, void (*run)(struct gyre *g, void *context), void *context) {
    pthread_rwlock_rdlock(&s->engine_lock);
    struct gyre *g = s->engine;
    if (g)
        run(g, context);
    pthread_rwlock_unlock(&s->engine_lock);
    return g != NULL;
}

void lane_do_errands(struct lane *s, struct lane_errand *first, bool run) {
    if (!first)
        return;
    for (struct lane_errand *e = first; run && e; e = e->next)
        e->run(s->engine, e->context);
    pthread_mutex_lock(&s->lock);
    for (struct lane_errand *e = first, *next; e; e = next) {
        next = e->next;
        e->was_run = run;
        e->is_over = true; // its thread may go on, and it with it, once the lock is free
    }
    pthread_cond_broadcast(&s->errand_over);
    pthread_mutex_unlock(&s->lock);
}

static enum status outcome(const struct answer *a, struct error *err) {
    if (a->finish == GYRE_FAILED)
        return fail(err, ERR_DEVICE, "%s", a->error);
    return a->finish == GYRE_CANCELLED ? fail(err, ERR_FULL, "the server is shutting down") : OK;
}

/* Tickets stay in the list, and their waiters where they are, until the waiter takes them out. */
void lane_tell_prompts(struct lane *s) {
    pthread_mutex_lock(&s->lock);
    for (struct ticket *t = s->n_prompts > 0 ? s->all : NULL; t; t = t->next) {
        struct prompt_waiter *w = t->waiter;
        if (!w)
            continue;
        pthread_mutex_lock(&w->lock);
        w->has_moved = true;
        pthread_cond_signal(&w->news);
        pthread_mutex_unlock(&w->lock);
    }
    pthread_mutex_unlock(&s->lock);
}

static void count_prompt(struct lane *s, int n) {
    pthread_mutex_lock(&s->lock);
    s->n_prompts += n;
    pthread_mutex_unlock(&s->lock);
}

static void await_prompt(struct ticket *t) {
    struct prompt_waiter *w = t->waiter;
    bool is_wanted = w->watch->moved != NULL;
    pthread_mutex_lock(&w->lock);
    while (!w->has_ended) {
        if (!w->has_moved || !is_wanted) {
            pthread_cond_wait(&w->news, &w->lock);
            continue;
        }
        w->has_moved = false;
        pthread_mutex_unlock(&w->lock);
        is_wanted = w->watch->moved(w->watch->context);
        if (!is_wanted)
            service_cancel(NULL, &t->answer);
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
}

enum status lane_prompt(struct lane *s, const struct gyre_request *request, const struct prompt_watch *watch,
                        struct error *err) {
    struct prompt_waiter w = {.lock = PTHREAD_MUTEX_INITIALIZER, .news = PTHREAD_COND_INITIALIZER, .watch = watch};
    struct ticket *t = lane_ticket(s, request, err);
    if (!t)
        return err->status;
    t->waiter = &w;
    enum status st = lane_put(s, t, false, err);
    if (st != OK) {
        lane_free_ticket(t);
        return st;
    }
    count_prompt(s, 1);
    await_prompt(t);
    count_prompt(s, -1);
    service_look(&t->answer);
    st = outcome(&t->answer, err);
    service_release(NULL, &t->answer);
    return st;
}
