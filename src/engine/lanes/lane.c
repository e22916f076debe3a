/* lane.c - see lane.h.
 *
 * The inbox is a list under a lock, taken whole once a step. How news travel is the listener's affair; here an answer
 * only remembers whether it has some that nobody looked at yet. */
#include "engine/lanes/lane_parts.h"

#include "base/clock.h"
#include "base/guard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EVENTS_A_POLL = 256 };

// ---- news -------------------------------------------------------------------------------------------------------

/* Engine thread; after HAS_ENDED the ticket is the listener's. */
static void tell(struct lane *s, struct ticket *t, unsigned state) {
    struct prompt_waiter *w = t->waiter;
    if (!w && !(atomic_fetch_or(&t->state, state) & HAS_NEWS))
        s->options.news(s->options.context, &t->answer);
    if (!w || !(state & HAS_ENDED))
        return;
    if (w->watch->ended)
        w->watch->ended(s->engine, w->watch->context);
    pthread_mutex_lock(&w->lock);
    atomic_fetch_or(&t->state, state);
    w->has_ended = true;
    pthread_cond_signal(&w->news);
    pthread_mutex_unlock(&w->lock);
}

void service_look(struct answer *a) {
    struct ticket *t = (struct ticket *)a;
    a->done = atomic_fetch_and(&t->state, ~(unsigned)HAS_NEWS) & HAS_ENDED;
}

// ---- submitting -------------------------------------------------------------------------------------------------

void lane_free_ticket(struct ticket *t) {
    if (t->request)
        request_free(t->request);
    arena_release(&t->arena);
    free(t);
}

/* Under the lock: whether there is room for one more, and a sentence if not. */
static enum status admit(const struct lane *s, int tenant, bool goes_on, struct error *err) {
    if (s->state.failed)
        return fail(err, ERR_DEVICE, "%s", s->state.error);
    if (goes_on && !s->stopping)
        return OK;
    if (s->state.draining || s->stopping)
        return fail(err, ERR_FULL, "the server is shutting down");
    if (s->options.max_queued > 0 && queue_model_is_full(&s->telemetry.queue, tenant, s->options.max_queued))
        return fail(err, ERR_FULL, "%lld requests are waiting already, at most %d may",
                    (long long)atomic_load(&s->telemetry.queue.all.n), s->options.max_queued);
    return OK;
}

enum status lane_put(struct lane *s, struct ticket *t, bool goes_on, struct error *err) {
    pthread_mutex_lock(&s->lock);
    const struct request_progress *p = &t->answer.progress;
    enum status st = admit(s, p->tenant, goes_on, err);
    if (st == OK) {
        queue_model_enter(&s->telemetry.queue, p->tenant, p->n_prompt);
        t->next = s->all;
        if (s->all)
            s->all->prev = t;
        s->all = t;
        lane_enqueue(s, t);
    }
    pthread_mutex_unlock(&s->lock);
    return st;
}

static enum status fill_ticket(struct lane *s, struct ticket *t, const struct gyre_request *request,
                               struct error *err) {
    TRY(request_new(s->engine, request, &t->request, err));
    struct request *r = t->request;
    r->asked.user = t;
    r->progress = &t->answer.progress;
    t->answer.progress.submitted_us = r->submitted_us;
    t->answer.progress.predicted_us = queue_model_wait_us(&s->telemetry.queue, r->asked.tenant);
    t->answer.progress.plain_us = queue_model_plain_us(&s->telemetry.queue, r->asked.tenant);
    t->answer.progress.n_prompt = r->n_prompt;
    t->answer.progress.tenant = r->asked.tenant;
    t->max_tokens = r->asked.max_tokens;
    answer_allocate(&t->answer, &t->arena, &r->asked, gyre_info(s->engine)->hidden_size);
    return OK;
}

/* An answer of a million tokens with twenty log-probabilities each is some 160 MB: that there is no memory for it is
 * told. */
static enum status fill_within_scope(struct lane *s, struct ticket *t, const struct gyre_request *request,
                                     struct error *err) {
    struct alloc_scope scope;
    alloc_scope_begin(&scope);
    if (setjmp(scope.env) != 0)
        return fail(err, ERR_MEMORY, "there is not enough memory for the request now");
    enum status st = fill_ticket(s, t, request, err);
    alloc_scope_end(&scope);
    return st;
}

/* Why nothing is asked of an engine that is opened anew. */
static struct ticket *no_engine(struct lane *s, struct error *err) {
    pthread_mutex_lock(&s->lock);
    fail(err, ERR_DEVICE, "%s", s->state.error);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

struct ticket *lane_ticket(struct lane *s, const struct gyre_request *request, struct error *err) {
    if (!s->engine)
        return no_engine(s, err);
    struct ticket *t = calloc(1, sizeof *t);
    if (!t) {
        fail(err, ERR_MEMORY, "there is not enough memory for the request now");
        return NULL;
    }
    t->lane = s;
    if (fill_within_scope(s, t, request, err) == OK)
        return t;
    lane_free_ticket(t);
    return NULL;
}

enum status lane_submit(struct lane *s, const struct gyre_request *request, void *user, bool goes_on,
                        struct answer **out, struct error *err) {
    BUG_IF(request->want_last_logits);
    pthread_rwlock_rdlock(&s->engine_lock); // the engine that checks a request is the one that gets it
    struct ticket *t = lane_ticket(s, request, err);
    enum status st = t ? OK : err->status;
    *out = NULL;
    if (t) {
        t->answer.user = user;
        *out = &t->answer; // before the engine can see it: news may come before this returns
        st = lane_put(s, t, goes_on, err);
    }
    pthread_rwlock_unlock(&s->engine_lock);
    if (st != OK && t) {
        *out = NULL;
        lane_free_ticket(t);
    }
    return st;
}

/* Under the lock. */
static void tell_wish(struct lane *s) {
    s->has_wishes = true;
    pthread_cond_signal(&s->work);
}

void service_cancel(struct service *service, struct answer *a) {
    struct ticket *t = (struct ticket *)a;
    struct lane *s = t->lane;
    (void)service;
    atomic_store(&t->wants_cancel, true);
    pthread_mutex_lock(&s->lock);
    lane_cancel_fetch(s, t);
    tell_wish(s);
    pthread_mutex_unlock(&s->lock);
}

void service_pause(struct service *s, struct answer *a, bool paused) {
    struct ticket *t = (struct ticket *)a;
    (void)s;
    atomic_store(&t->wants_pause, paused);
    pthread_mutex_lock(&t->lane->lock);
    tell_wish(t->lane);
    pthread_mutex_unlock(&t->lane->lock);
}

void service_stop(struct service *s, struct answer *a) {
    atomic_store(&((struct ticket *)a)->is_content, true);
    service_cancel(s, a);
}

void service_release(struct service *service, struct answer *a) {
    struct ticket *t = (struct ticket *)a;
    struct lane *s = t->lane;
    (void)service;
    BUG_IF(!a->done);
    pthread_mutex_lock(&s->lock);
    *(t->prev ? &t->prev->next : &s->all) = t->next;
    if (t->next)
        t->next->prev = t->prev;
    pthread_mutex_unlock(&s->lock);
    lane_free_ticket(t);
}

// ---- the engine thread ------------------------------------------------------------------------------------------

static enum finished_reason reason_of(const struct ticket *t, enum gyre_finish finish) {
    switch (finish) {
    case GYRE_STOP: return FINISHED_STOP;
    case GYRE_LENGTH: return FINISHED_LENGTH;
    case GYRE_FAILED: return FINISHED_ERROR;
    case GYRE_CANCELLED: break;
    }
    return atomic_load(&t->is_content) ? FINISHED_STOP : FINISHED_ABORT;
}

static void publish_done(struct lane *s, struct ticket *t, const struct gyre_event *e) {
    struct answer *a = &t->answer;
    telemetry_finished(&s->telemetry, &a->progress, &e->timing, t->max_tokens, reason_of(t, e->finish));
    a->finish = e->finish;
    a->timing = e->timing;
    a->error_of_request = e->error_of_request;
    if (e->pooled)
        memcpy(a->pooled, e->pooled, (size_t)gyre_info(s->engine)->hidden_size * sizeof *a->pooled);
    if (e->finish == GYRE_FAILED)
        snprintf(a->error, sizeof a->error, "%s", e->error);
}

static void publish(struct lane *s, const struct gyre_event *e, int64_t now) {
    struct ticket *t = e->user;
    int32_t n_vocab = gyre_info(s->engine)->vocab_size;
    switch (e->kind) {
    case GYRE_PROMPT: answer_put_prompt(&t->answer, e, n_vocab); return;
    case GYRE_TOKEN:
        telemetry_token(&s->telemetry, &t->answer.progress, &t->last_token_us, now);
        answer_put_token(&t->answer, e, n_vocab);
        tell(s, t, HAS_NEWS);
        return;
    case GYRE_DONE:
        publish_done(s, t, e);
        tell(s, t, HAS_NEWS | HAS_ENDED);
        return;
    }
}

/* Until there may be something to do. Memory that is not needed goes back meanwhile; nobody else touches the engine, so
 * without the lock. */
static void wait_for_work(struct lane *s) {
    int64_t us = engine_rest_us(s->engine);
    if (us < 0) {
        pthread_cond_wait(&s->work, &s->lock);
    } else if (us > 0) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        int64_t ns = until.tv_nsec + us % 1000000 * 1000;
        until.tv_sec += us / 1000000 + ns / 1000000000;
        until.tv_nsec = ns % 1000000000;
        pthread_cond_timedwait(&s->work, &s->lock, &until);
    } else {
        pthread_mutex_unlock(&s->lock);
        engine_rest(s->engine);
        pthread_mutex_lock(&s->lock);
    }
}

/* An engine that does nothing may fail, too. */
static bool has_untold_fault(const struct lane *s) { return s->engine->failed.status != OK && !s->state.failed; }

/* Waits while there is nothing to do. Takes the inbox; false: stop. */
static bool next_work(struct lane *s, struct ticket **inbox, bool *wishes) {
    pthread_mutex_lock(&s->lock);
    while (!s->inbox && !s->errands && !s->has_wishes && !s->stopping && !engine_has_work(s->engine) &&
           !has_untold_fault(s))
        wait_for_work(s);
    *inbox = s->inbox;
    *wishes = s->has_wishes;
    s->inbox = NULL;
    s->inbox_end = &s->inbox;
    s->n_inbox = 0;
    s->has_wishes = false;
    s->state.step_started_us = clock_us();
    bool go_on = !s->stopping;
    pthread_mutex_unlock(&s->lock);
    return go_on;
}

static void accept_all(struct lane *s, struct ticket *t) {
    while (t) {
        struct ticket *next = t->next_inbox;
        struct request *r = t->request;
        t->request = NULL;
        engine_accept(s->engine, r);
        t->id = r->id;
        t = next;
    }
}

static void grant_wishes(struct lane *s, bool cancel_all) {
    pthread_mutex_lock(&s->lock);
    for (struct ticket *t = s->all; t; t = t->next) {
        if (t->id && (cancel_all || atomic_load(&t->wants_cancel)))
            gyre_cancel(s->engine, t->id);
        if (t->id && t->is_paused != atomic_load(&t->wants_pause)) {
            t->is_paused = !t->is_paused;
            engine_pause(s->engine, t->id, t->is_paused);
        }
    }
    pthread_mutex_unlock(&s->lock);
}

static double kv_usage(const struct gyre *g) {
    double most = 0;
    for (int i = 0; i < g->pool.n_groups; i++) {
        const struct block_list *b = &g->pool.groups[i].blocks;
        if (g->pool.groups[i].paged && b->n_blocks > 0)
            most = MAX(most, (double)(b->n_usable - b->n_free) / b->n_blocks);
    }
    return most;
}

static void note_state(struct lane *s, const struct gyre_event *events, int n) {
    const struct gyre *g = s->engine;
    pthread_mutex_lock(&s->lock);
    struct service_state *st = &s->state;
    st->n_running = g->scheduler.n_running;
    st->n_waiting = scheduler_n_queued(&g->scheduler);
    st->n_paused = g->scheduler.n_paused;
    st->n_preempted = g->scheduler.n_preempted;
    st->n_steps = g->n_steps;
    st->n_late_steps = g->n_late_steps;
    st->n_held = g->n_held;
    st->n_forced_tokens = g->n_forced_tokens;
    st->n_drafts = g->drafter.n_drafts;
    memcpy(st->n_right_at, g->drafter.n_right_at, sizeof st->n_right_at);
    memcpy(st->n_draft_off, g->drafter.n_off, sizeof st->n_draft_off);
    st->n_guessed = g->drafter.n_guessed;
    st->n_accepted = g->drafter.n_accepted;
    st->mask_wait_us = g->mask_wait_us;
    lane_add_before(s);
    st->queue_reason = g->scheduler.blocked;
    for (int i = 0; i < n; i++) {
        const struct answer *a = &((const struct ticket *)events[i].user)->answer;
        if (events[i].kind == GYRE_TOKEN)
            st->n_generated_tokens++;
        if (events[i].kind == GYRE_DONE) {
            st->n_prompt_tokens += a->n_prompt;
            st->n_reused_tokens += events[i].timing.n_reused;
        }
    }
    st->kv_usage = kv_usage(g);
    st->n_device = g->ops->report(g->exe, st->device);
    st->last_step_us = clock_us();
    st->step_started_us = 0;
    if (g->failed.status != OK && !st->failed) {
        st->failed = true;
        snprintf(st->error, sizeof st->error, "%s", g->failed.text);
        atomic_store(&s->has_failed, true);
    }
    pthread_mutex_unlock(&s->lock);
}

static void work_once(struct lane *s) {
    struct gyre_event events[EVENTS_A_POLL];
    int n = gyre_poll(s->engine, events, EVENTS_A_POLL);
    note_state(s, events, n); // before publishing: a released answer is no longer there to be counted
    int64_t now = clock_us();
    pthread_mutex_lock(s->telling);
    for (int i = 0; i < n; i++)
        publish(s, &events[i], now);
    if (n < EVENTS_A_POLL || !gyre_busy(s->engine)) // else there may be more of this step
        telemetry_iteration(&s->telemetry);
    if (n > 0 && s->options.flush)
        s->options.flush(s->options.context);
    pthread_mutex_unlock(s->telling);
    lane_tell_prompts(s);
}

static void *engine_thread(void *arg) {
    struct lane *s = arg;
    struct ticket *inbox;
    bool wishes;
    while (next_work(s, &inbox, &wishes)) {
        lane_do_errands(s, lane_take_errands(s), true);
        accept_all(s, inbox);
        if (wishes)
            grant_wishes(s, false);
        work_once(s);
        lane_restart(s);
    }
    lane_do_errands(s, lane_take_errands(s), false);
    if (!s->engine)
        return NULL;
    accept_all(s, inbox);
    grant_wishes(s, true);
    while (gyre_busy(s->engine))
        work_once(s);
    return NULL;
}

// ---- opening and closing ----------------------------------------------------------------------------------------

enum status lane_open(struct gyre *take_engine, int number, const struct service_options *options,
                      const struct gyre_info *info, pthread_mutex_t *telling, struct lane **out, struct error *err) {
    struct lane *s = xcalloc(1, sizeof *s);
    s->number = number;
    pthread_rwlock_init(&s->engine_lock, NULL);
    s->engine = take_engine;
    s->options = *options;
    s->info = info;
    s->telling = telling;
    telemetry_init(&s->telemetry, take_engine->info.n_tenants);
    take_engine->telemetry = &s->telemetry;
    s->inbox_end = &s->inbox;
    s->state.n_device = take_engine->ops->report(take_engine->exe, s->state.device);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->work, NULL);
    pthread_cond_init(&s->errand_over, NULL);
    s->started = pthread_create(&s->thread, NULL, engine_thread, s) == 0;
    *out = s;
    if (s->started)
        return OK;
    lane_close(s);
    *out = NULL;
    return fail(err, ERR_MEMORY, "no thread could be started for the engine");
}

void lane_drain(struct lane *s) {
    pthread_mutex_lock(&s->lock);
    s->state.draining = true;
    pthread_cond_signal(&s->work); // which may wait for the time to open the engine anew
    pthread_mutex_unlock(&s->lock);
}

void lane_stop(struct lane *s) {
    lane_close_fetch(s); // what it has not fetched is in the inbox then
    pthread_mutex_lock(&s->lock);
    bool is_running = s->started && !s->stopping;
    s->stopping = true;
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
    if (is_running)
        pthread_join(s->thread, NULL);
}

void lane_close(struct lane *s) {
    if (!s)
        return;
    lane_stop(s);
    while (s->all) {
        struct ticket *next = s->all->next;
        lane_free_ticket(s->all);
        s->all = next;
    }
    gyre_close(s->engine);
    telemetry_release(&s->telemetry);
    pthread_cond_destroy(&s->work);
    pthread_cond_destroy(&s->errand_over);
    pthread_rwlock_destroy(&s->engine_lock);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

// ---- looking ----------------------------------------------------------------------------------------------------

void lane_state(const struct lane *s, struct service_state *out) {
    pthread_mutex_lock((pthread_mutex_t *)&s->lock);
    *out = s->state;
    out->n_queued = s->n_inbox + s->n_fetching;
    if (s->fetch.count)
        s->fetch.count(s->fetch.of, out);
    pthread_mutex_unlock((pthread_mutex_t *)&s->lock);
}

bool lane_has_failed(const struct lane *s) { return atomic_load(&s->has_failed); }
const struct telemetry *lane_telemetry(const struct lane *s) { return &s->telemetry; }
struct gyre *lane_engine(const struct lane *s) {
    return s->engine;
}

int lane_expert_loads(struct lane *s, int64_t *out, int most) {
    pthread_rwlock_rdlock(&s->engine_lock);
    const struct gyre *g = s->engine;
    int n = g && g->ops->expert_loads ? g->ops->expert_loads(g->exe, out, most) : 0;
    pthread_rwlock_unlock(&s->engine_lock);
    return n;
}
