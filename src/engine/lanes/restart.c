/* restart.c - see lane_parts.h: an engine of several that has failed is opened anew, so that what was started stays
 * started. Three times an hour at most, later each time; each time that it could not be is counted and told. */
#include "engine/lanes/lane_parts.h"

#include "base/clock.h"

#include <stdio.h>

static const int later[] = {120, 720, 3600}; // parts of an hour, with so many restarts left besides
enum { MOST_RESTARTS = ARRAY_LEN(later) };

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

/* Under the lock. What is left of the lane's life is not worth a load. */
static bool is_ending(const struct lane *s) { return s->stopping || s->state.draining; }

/* Of clock_us. false: the lane ends. */
static bool wait_until(struct lane *s, int64_t until_us) {
    pthread_mutex_lock(&s->lock);
    for (int64_t us; !is_ending(s) && (us = until_us - clock_us()) > 0;) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        int64_t ns = until.tv_nsec + us % 1000000 * 1000;
        until.tv_sec += us / 1000000 + ns / 1000000000;
        until.tv_nsec = ns % 1000000000;
        pthread_cond_timedwait(&s->work, &s->lock, &until);
    }
    bool goes_on = !is_ending(s);
    pthread_mutex_unlock(&s->lock);
    return goes_on;
}

static void await_stop(struct lane *s) {
    pthread_mutex_lock(&s->lock);
    while (!s->stopping)
        pthread_cond_wait(&s->work, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

/* false: the lane ends. */
static bool begin_opening(struct lane *s) {
    pthread_mutex_lock(&s->lock);
    bool begins = s->is_opening = !is_ending(s);
    pthread_mutex_unlock(&s->lock);
    return begins;
}

static void end_opening(struct lane *s) {
    pthread_mutex_lock(&s->lock);
    s->is_opening = false;
    pthread_mutex_unlock(&s->lock);
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
    pthread_mutex_lock(&s->lock);
    s->state.failed = false;
    s->state.error[0] = '\0';
    s->state.n_restarts++;
    atomic_store(&s->has_failed, false);
    pthread_mutex_unlock(&s->lock);
}

static void tell_fault(struct lane *s, const struct gyre_error *err) {
    pthread_mutex_lock(&s->lock);
    s->state.n_reopen_faults++;
    snprintf(s->state.error, sizeof s->state.error, "%.700s (when it was opened anew)", err->text);
    pthread_mutex_unlock(&s->lock);
}

/* What others have read of the engines holds for this one too: they size vectors and check tokens by it. */
static enum status check_same(const struct gyre_info *was, const struct gyre_info *is, struct error *err) {
    const struct {
        const char *name;
        int was, is;
    } sizes[] = {{"tokens in its vocabulary", was->vocab_size, is->vocab_size},
                 {"numbers in a hidden state", was->hidden_size, is->hidden_size},
                 {"tenants", was->n_tenants, is->n_tenants},
                 {"tokens that end an answer", was->n_eos, is->n_eos}};
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
        if (sizes[i].is != sizes[i].was)
            return fail(err, ERR_FORMAT, "the model is another than the one that is served: %d %s, not %d", sizes[i].is,
                        sizes[i].name, sizes[i].was);
    for (int i = 0; i < is->n_eos; i++)
        if (is->eos[i] != was->eos[i])
            return fail(err, ERR_FORMAT,
                        "the model is another than the one that is served: answers end at token %d, not %d", is->eos[i],
                        was->eos[i]);
    return OK;
}

static bool open_anew(struct lane *s) {
    struct gyre *engine;
    struct gyre_error err;
    struct error e;
    int rc = s->options.reopen(s->options.reopen_context, s->number, &engine, &err);
    s->reopened_us = clock_us();
    if (rc == 0 && check_same(s->info, &engine->info, &e) != OK) {
        gyre_close(engine);
        rc = engine_report(&err, &e);
    }
    if (rc == 0)
        begin_again(s, engine);
    else
        tell_fault(s, &err);
    return rc == 0;
}

bool lane_is_opening(const struct lane *s) {
    pthread_mutex_lock((pthread_mutex_t *)&s->lock);
    bool is_opening = s->is_opening;
    pthread_mutex_unlock((pthread_mutex_t *)&s->lock);
    return is_opening;
}

static bool has_inbox(struct lane *s) {
    pthread_mutex_lock(&s->lock);
    bool has = s->inbox != NULL;
    pthread_mutex_unlock(&s->lock);
    return has;
}

static int64_t hour_us(const struct lane *s) {
    return s->options.reopen_hour_us ? s->options.reopen_hour_us : (int64_t)3600 * 1000000;
}

/* All restarts of this hour are spent: the next is when it is over. */
static void give_up(struct lane *s) {
    pthread_mutex_lock(&s->lock);
    s->state.n_given_up++;
    pthread_mutex_unlock(&s->lock);
    wait_until(s, s->reopened_us + hour_us(s));
}

/* Until it may be opened; false: the lane ends. */
static bool await_turn(struct lane *s) {
    bool is_first = s->reopened_us == 0;
    if (!is_first && s->n_restarts_left == 0)
        give_up(s);
    if (is_first || clock_us() - s->reopened_us >= hour_us(s))
        s->n_restarts_left = MOST_RESTARTS;
    return s->n_restarts_left > 0 && wait_until(s, clock_us() + hour_us(s) / later[--s->n_restarts_left]);
}

void lane_restart(struct lane *s) {
    if (!s->options.reopen || !atomic_load(&s->has_failed) || gyre_busy(s->engine) || has_inbox(s))
        return;
    close_engine(s);
    while (await_turn(s) && begin_opening(s)) {
        bool is_open = open_anew(s);
        end_opening(s);
        if (is_open)
            return;
    }
    await_stop(s);
}
