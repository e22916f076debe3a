/* errands.c - see lane.h: what threads that are no listeners want of an engine. */
#include "engine/lanes/lane_parts.h"

bool lane_errand(struct lane *s, enum errand_time when, void (*run)(struct gyre *g, void *context), void *context) {
    struct lane_errand e = {.when = when, .run = run, .context = context};
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

bool lane_wants_rest(const struct lane_errand *first) {
    for (const struct lane_errand *e = first; e; e = e->next)
        if (e->when == AT_REST)
            return true;
    return false;
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

enum status lane_prompt(struct lane *s, const struct gyre_request *request, struct error *err) {
    struct prompt_waiter w = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false};
    struct ticket *t = lane_ticket(s, request, err);
    if (!t)
        return err->status;
    t->waiter = &w;
    enum status st = lane_put(s, t, false, err);
    if (st != OK) {
        lane_free_ticket(t);
        return st;
    }
    pthread_mutex_lock(&w.lock);
    while (!w.has_ended)
        pthread_cond_wait(&w.ended, &w.lock);
    pthread_mutex_unlock(&w.lock);
    service_look(&t->answer);
    st = outcome(&t->answer, err);
    service_release(NULL, &t->answer);
    return st;
}

void lane_set_fetch(struct lane *s, const struct lane_fetch *fetch) {
    pthread_mutex_lock(&s->lock);
    s->fetch = *fetch;
    pthread_mutex_unlock(&s->lock);
}
