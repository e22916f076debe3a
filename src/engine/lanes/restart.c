/* restart.c - see lane_parts.h: an engine of several that has failed is opened anew, so that what was started stays
 * started. Three times an hour at most, later each time; whose device is gone for good stays failed, and is told so. */
#include "engine/lanes/lane_parts.h"

#include "base/clock.h"

#include <stdio.h>

static const int64_t later_us[] = {30000000, 5000000, 1000000}; // with so many restarts left besides
enum { MOST_RESTARTS = ARRAY_LEN(later_us) };
static const int64_t HOUR_US = 3600000000;

#define ADD_BEFORE(counter) (s->state.counter += s->before.counter)

void lane_add_before(struct lane *s) {
    ADD_BEFORE(n_steps), ADD_BEFORE(n_preempted), ADD_BEFORE(n_late_steps), ADD_BEFORE(mask_wait_us);
    ADD_BEFORE(n_held), ADD_BEFORE(n_forced_tokens);
    ADD_BEFORE(n_drafts), ADD_BEFORE(n_guessed), ADD_BEFORE(n_accepted);
    for (int i = 0; i < MOST_GUESSES; i++)
        ADD_BEFORE(n_right_at[i]);
    for (int i = 0; i < N_DRAFT_OFF; i++)
        ADD_BEFORE(n_draft_off[i]);
}

/* false: the lane is being stopped. */
static bool wait_until(struct lane *s, int64_t us) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += us / 1000000;
    pthread_mutex_lock(&s->lock);
    while (!s->stopping && pthread_cond_timedwait(&s->work, &s->lock, &until) == 0)
        ;
    bool goes_on = !s->stopping;
    pthread_mutex_unlock(&s->lock);
    return goes_on;
}

/* All that asked it have ended, and their numbers mean nothing to the next engine. */
static void close_engine(struct lane *s) {
    pthread_mutex_lock(&s->lock);
    s->before = s->state;
    for (struct ticket *t = s->all; t; t = t->next)
        t->id = 0;
    pthread_mutex_unlock(&s->lock);
    pthread_rwlock_wrlock(&s->engine_lock);
    struct gyre *old = s->engine;
    s->engine = NULL;
    pthread_rwlock_unlock(&s->engine_lock);
    gyre_close(old);
}

static void begin_again(struct lane *s, struct gyre *take_engine) {
    take_engine->telemetry = &s->telemetry;
    pthread_rwlock_wrlock(&s->engine_lock);
    s->engine = take_engine;
    pthread_rwlock_unlock(&s->engine_lock);
    s->restarted_us = clock_us();
    pthread_mutex_lock(&s->lock);
    s->state.failed = false;
    s->state.error[0] = '\0';
    s->state.n_restarts++;
    atomic_store(&s->has_failed, false);
    pthread_mutex_unlock(&s->lock);
}

static void tell_fault(struct lane *s, const struct gyre_error *err) {
    pthread_mutex_lock(&s->lock);
    snprintf(s->state.error, sizeof s->state.error, "%.700s (when it was opened anew)", err->text);
    pthread_mutex_unlock(&s->lock);
}

static bool open_anew(struct lane *s) {
    struct gyre *engine;
    struct gyre_error err;
    if (s->options.reopen(s->options.reopen_context, s->number, &engine, &err) != 0) {
        tell_fault(s, &err);
        return false;
    }
    begin_again(s, engine);
    return true;
}

static bool has_inbox(struct lane *s) {
    pthread_mutex_lock(&s->lock);
    bool has = s->inbox != NULL;
    pthread_mutex_unlock(&s->lock);
    return has;
}

static void await_end(struct lane *s) {
    pthread_mutex_lock(&s->lock);
    while (!s->stopping)
        pthread_cond_wait(&s->work, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

void lane_restart(struct lane *s) {
    if (!s->options.reopen || !atomic_load(&s->has_failed) || gyre_busy(s->engine) || has_inbox(s))
        return;
    if (s->restarted_us == 0 || clock_us() - s->restarted_us > HOUR_US)
        s->n_restarts_left = MOST_RESTARTS;
    while (s->n_restarts_left > 0 && wait_until(s, later_us[s->n_restarts_left - 1])) {
        s->n_restarts_left--;
        if (s->engine)
            close_engine(s);
        if (open_anew(s))
            return;
    }
    if (!s->engine)
        await_end(s);
}
