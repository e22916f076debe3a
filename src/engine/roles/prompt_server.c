/* prompt_server.c - see prompt_server.h. */
#include "engine/roles/prompt_server.h"

#include "base/clock.h"
#include "dist/wire.h"
#include "engine/roles/handover.h"
#include "engine/roles/prompt_wire.h"
#include "engine/roles/visit.h"
#include "engine/service.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int64_t PATIENCE_US = 60000000, IDLE_US = 86400000000, SHOWN_US = 2000000;
enum { LEAST_PART = 4 };                                         // blocks
enum { N_SLOTS = 2, SLOT_BYTES = WINDOW_BYTES / N_SLOTS };       // of the window: a part of a prompt each
static const size_t PART_BYTES = 16 << 20, MOST_BYTES = 1 << 30; // of a part

struct asker {
    struct prompt_server *server;
    pthread_t thread;
    struct wire *wire;
    bool is_used, has_ended; // from here on under the server's lock
    bool is_put_out;
    bool refuses_windows;  // its own thread's
    int64_t idle_since_us; // 0: its prompt is computed or sent
};

struct prompt_server {
    struct lane *lane;
    struct prompt_server_options options;
    int fd;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock; // of what follows
    struct asker askers[MOST_ASKERS];
    bool stopping;
    struct prompt_server_count count;
    int64_t shown_until_us[N_SLOTS]; // stretches of the window that are taken until then
    bool cannot_share;               // there is no window
};

// ---- windows ----------------------------------------------------------------------------------------------------

static const int64_t AS_LONG_AS_IT_TAKES = INT64_MAX;

/* A stretch of the window for one prompt's part; -1: all are taken, or there is none. */
static int take_slot(struct prompt_server *s) {
    int slot = -1;
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < N_SLOTS && slot < 0 && !s->cannot_share; i++)
        slot = s->shown_until_us[i] > clock_us() ? -1 : i;
    if (slot >= 0)
        s->shown_until_us[slot] = AS_LONG_AS_IT_TAKES;
    pthread_mutex_unlock(&s->lock);
    return slot;
}

/* Unless its time was over, and it may be another's by now. */
static void keep_slot(struct prompt_server *s, int slot, int64_t was_until_us, int64_t until_us) {
    pthread_mutex_lock(&s->lock);
    if (s->shown_until_us[slot] == was_until_us)
        s->shown_until_us[slot] = until_us;
    pthread_mutex_unlock(&s->lock);
}

/* Told once: bytes go from now on. */
static void note_no_window(struct prompt_server *s, const struct error *err) {
    pthread_mutex_lock(&s->lock);
    bool is_new = !s->cannot_share;
    s->cannot_share = true;
    pthread_mutex_unlock(&s->lock);
    if (is_new)
        fprintf(stderr, "gyre: prompts go as bytes to servers of this host too: %s\n", err->text);
}

// ---- one prompt -------------------------------------------------------------------------------------------------

struct giving {
    struct asker *asker;
    struct handover_prompt prompt;
    int32_t from;       // blocks that the asker has
    bool takes_windows; // it is of this host
    struct buf *out;
    struct visit last; // when the prompt was computed
    bool is_gone;      // the asker
};

/* The asker's word of what a slot shows. ERR_UNSUPPORTED: it has not taken it. */
static enum status await_taken(struct giving *w, int64_t until_us, struct error *err) {
    struct buf none = {0};
    uint32_t kind;
    TRY(wire_receive(w->asker->wire, &kind, &none, 0, until_us, err));
    w->asker->refuses_windows = kind == PROMPT_REFUSED;
    w->takes_windows = kind == PROMPT_TAKEN;
    if (kind == PROMPT_REFUSED || kind == PROMPT_LATE)
        return fail(err, ERR_UNSUPPORTED, "the window was not reached, or not in time");
    return kind == PROMPT_TAKEN ? OK : fail(err, ERR_FORMAT, "nothing that is said to a window");
}

/* Who is gone may still be copying: the slot is its own until the time that it was told. */
static enum status show_to(struct giving *w, struct str shown, int slot, int64_t shown_until_us, struct error *err) {
    struct prompt_server *s = w->asker->server;
    int64_t until_us = clock_us() + s->options.patience_us;
    keep_slot(s, slot, AS_LONG_AS_IT_TAKES, shown_until_us);
    enum status st = wire_send(w->asker->wire, PROMPT_WINDOW, shown, until_us, err);
    if (st == OK)
        st = await_taken(w, until_us, err);
    w->is_gone = st != OK && st != ERR_UNSUPPORTED;
    if (!w->is_gone)
        keep_slot(s, slot, shown_until_us, 0);
    return st;
}

static enum status fill_slot(struct giving *w, struct visit *v, struct handover_part part, struct prompt_window *window,
                             struct error *err) {
    enum status st = visit_share(v->lane, window->name, err);
    if (st == ERR_UNSUPPORTED)
        note_no_window(w->asker->server, err);
    TRY(st);
    buf_clear(w->out);
    buf_append(w->out, window, sizeof *window);
    return visit_show(v, part, window->at, w->out, err);
}

/* Its time is counted from when all of it is there. */
static enum status show_in(struct giving *w, struct visit *v, struct handover_part part, int slot, struct error *err) {
    struct prompt_window window = {.at = (uint64_t)slot * SLOT_BYTES};
    enum status st = fill_slot(w, v, part, &window, err);
    if (st != OK)
        keep_slot(w->asker->server, slot, AS_LONG_AS_IT_TAKES, 0); // nobody was told of it
    TRY(st);
    window.until_us = clock_us() + SHOWN_US;
    memcpy(w->out->ptr, &window, sizeof window);
    TRY(show_to(w, buf_view(w->out), slot, window.until_us, err));
    w->from = part.end;
    return OK;
}

/* ERR_UNSUPPORTED: bytes have to go. */
static enum status show_part(struct giving *w, struct visit *v, struct error *err) {
    struct handover_part part = handover_part(&v->of, w->from, SLOT_BYTES);
    bool may = w->takes_windows && !w->asker->refuses_windows && handover_can_be_shown(&v->of, part, SLOT_BYTES);
    int slot = may ? take_slot(w->asker->server) : -1;
    return slot < 0 ? ERR_UNSUPPORTED : show_in(w, v, part, slot, err);
}

static enum status give_part(struct giving *w, struct visit *v, struct error *err) {
    struct prompt_server *s = w->asker->server;
    enum status shown = show_part(w, v, err);
    if (shown != ERR_UNSUPPORTED)
        return shown;
    struct handover_part part = handover_part(&v->of, w->from, PART_BYTES);
    buf_clear(w->out);
    TRY(visit_read(v, part, MOST_BYTES, w->out, err));
    enum status st = wire_send(w->asker->wire, PROMPT_PART, buf_view(w->out), clock_us() + s->options.patience_us, err);
    w->is_gone = st != OK;
    w->from = part.end;
    return st;
}

static enum status give_parts(struct giving *w, struct visit *v, struct error *err) {
    struct prompt_server *s = w->asker->server;
    while (v->status == OK && w->from < v->of.n) {
        int64_t began_us = clock_us();
        TRY(give_part(w, v, err));
        pthread_mutex_lock(&s->lock);
        s->count.giving_us += clock_us() - began_us;
        pthread_mutex_unlock(&s->lock);
    }
    return OK;
}

/* Whole blocks go as steps compute them, so that they travel while the next step runs. What is wrong with a part is
 * found and told at the end. */
static bool give_what_is_new(void *context) {
    struct giving *w = context;
    struct error err;
    struct visit v = {.lane = w->asker->server->lane, .prompt = &w->prompt, .from = w->from};
    if (visit_known(v.lane, &w->prompt) < w->from + LEAST_PART)
        return true;
    visit_hold(&v);
    give_parts(w, &v, &err);
    visit_end(&v);
    return !w->is_gone;
}

/* At once: the engine's next step may take long, and until then nobody is heard. */
static void hold_all(struct gyre *g, void *context) {
    struct giving *w = context;
    visit_hold_now(g, &w->last);
}

static enum status check_ask(const struct prompt_server *s, const struct prompt_ask *q, size_t n_bytes,
                             struct error *err) {
    const struct gyre_info *info = gyre_info(lane_engine(s->lane));
    if (n_bytes < sizeof *q || q->n < 1 || n_bytes != sizeof *q + (size_t)q->n * sizeof(int32_t))
        return fail(err, ERR_FORMAT, "what is asked has %zu bytes", n_bytes);
    if (q->identity != s->options.identity)
        return fail(err, ERR_FORMAT, "the prefill server has another model, build or number format");
    if (q->n >= info->max_model_len)
        return fail(err, ERR_ARG, "a prompt of %d tokens is longer than the prefill server's context", q->n);
    if (q->tenant < 0 || q->tenant >= info->n_tenants)
        return fail(err, ERR_ARG, "the prefill server has no tenant %d: both want the same keys", q->tenant);
    return q->from >= 0 ? OK : fail(err, ERR_ARG, "nothing begins at block %d", q->from);
}

/* What the parts that were sent meanwhile have left. */
static enum status give_rest(struct giving *w, int32_t from, struct error *err) {
    const struct visit *v = &w->last;
    if (w->is_gone)
        return fail(err, ERR_IO, "who asked is gone");
    if (v->status == ERR_FULL && w->from > from) // parts were all
        return OK;
    if (v->status != OK) {
        *err = v->err;
        return v->status;
    }
    return give_parts(w, &w->last, err);
}

static enum status answer(struct giving *w, struct str question, struct error *err) {
    struct prompt_server *s = w->asker->server;
    struct prompt_ask q = {0};
    memcpy(&q, question.ptr, MIN(sizeof q, question.len));
    TRY(check_ask(s, &q, question.len, err));
    int32_t *tokens = xcalloc((size_t)q.n, sizeof *tokens); // aligned
    memcpy(tokens, question.ptr + sizeof q, (size_t)q.n * sizeof *tokens);
    struct gyre_request r = gyre_request_default(lane_engine(s->lane));
    r.prompt = tokens, r.n_prompt = q.n, r.max_tokens = 0, r.tenant = q.tenant;
    w->prompt = (struct handover_prompt){tokens, q.n, q.tenant, q.identity};
    w->from = q.from;
    w->takes_windows = q.host != 0 && q.host == prompt_host();
    w->last = (struct visit){.lane = s->lane, .prompt = &w->prompt, .from = q.from};
    struct prompt_watch watch = {give_what_is_new, hold_all, w};
    enum status st = lane_prompt(s->lane, &r, &watch, err);
    return st == OK || w->is_gone ? give_rest(w, q.from, err) : st;
}

static size_t most_question(const struct prompt_server *s) {
    return sizeof(struct prompt_ask) + (size_t)gyre_info(lane_engine(s->lane))->max_model_len * sizeof(int32_t);
}

/* false: it was put out meanwhile. */
static bool begin_work(struct asker *a) {
    pthread_mutex_lock(&a->server->lock);
    a->idle_since_us = 0;
    bool may = !a->is_put_out;
    pthread_mutex_unlock(&a->server->lock);
    return may;
}

static void end_work(struct asker *a, bool has_given) {
    pthread_mutex_lock(&a->server->lock);
    a->idle_since_us = clock_us();
    a->server->count.n_given += has_given;
    pthread_mutex_unlock(&a->server->lock);
}

static enum status give_one(struct asker *a, struct buf *question, struct buf *out, struct error *err) {
    struct prompt_server *s = a->server;
    uint32_t kind;
    TRY(wire_await(a->wire, clock_us() + s->options.idle_us, err));
    TRY(wire_receive(a->wire, &kind, question, most_question(s), clock_us() + s->options.patience_us, err));
    if (kind != PROMPT_ASK || !begin_work(a))
        return fail(err, ERR_IO, "nothing that is asked here");
    struct giving w = {.asker = a, .out = out};
    enum status why = answer(&w, buf_view(question), err);
    kind = why == OK ? PROMPT_CACHE : why == ERR_FULL ? PROMPT_FULL : PROMPT_NOTHING;
    enum status st =
        wire_send(a->wire, kind, str_of(why == OK ? "" : err->text), clock_us() + s->options.patience_us, err);
    end_work(a, st == OK && why == OK);
    visit_end(&w.last); // which waits for the engine's next step
    free((void *)w.prompt.tokens);
    return st;
}

static void *asker_thread(void *arg) {
    struct asker *a = arg;
    struct prompt_server *s = a->server;
    struct error err;
    for (enum status st = OK; st == OK;) {
        // What there is no memory for is refused; parts are not kept for the next one.
        struct budget any = {.limit = SIZE_MAX};
        struct buf question = {0}, out = {.budget = &any};
        st = give_one(a, &question, &out, &err);
        buf_release(&question);
        buf_release(&out);
    }
    pthread_mutex_lock(&s->lock);
    wire_close(a->wire);
    a->wire = NULL;
    a->has_ended = true;
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

// ---- all of them ------------------------------------------------------------------------------------------------

/* Under the lock. */
static struct asker *free_place(struct prompt_server *s) {
    for (int i = 0; i < MOST_ASKERS; i++) {
        struct asker *a = &s->askers[i];
        if (a->is_used && a->has_ended) {
            pthread_join(a->thread, NULL); // it has left the lock's stretch: this does not wait for long
            a->is_used = false;
        }
        if (!a->is_used)
            return a;
    }
    return NULL;
}

/* Under the lock; NULL: all work. */
static struct asker *longest_idle(struct prompt_server *s) {
    struct asker *longest = NULL;
    for (struct asker *a = s->askers; a < s->askers + MOST_ASKERS; a++)
        if (a->idle_since_us && (!longest || a->idle_since_us < longest->idle_since_us))
            longest = a;
    return longest;
}

/* Under the lock, which is let go meanwhile. */
static struct asker *put_out(struct prompt_server *s, struct asker *a) {
    a->is_put_out = true;
    if (a->wire)
        wire_break(a->wire);
    pthread_mutex_unlock(&s->lock);
    pthread_join(a->thread, NULL); // it computes nothing any more
    pthread_mutex_lock(&s->lock);
    a->is_used = false;
    return a;
}

static void greet(struct prompt_server *s, struct wire *take_wire) {
    pthread_mutex_lock(&s->lock);
    struct asker *a = free_place(s), *idle = a ? NULL : longest_idle(s);
    if (idle)
        a = put_out(s, idle);
    if (s->stopping)
        a = NULL;
    if (a) {
        *a = (struct asker){.server = s, .wire = take_wire, .idle_since_us = clock_us()};
        a->is_used = pthread_create(&a->thread, NULL, asker_thread, a) == 0;
    }
    if (!a || !a->is_used)
        wire_close(take_wire); // the asker computes for itself
    pthread_mutex_unlock(&s->lock);
}

static void *server_thread(void *arg) {
    struct prompt_server *s = arg;
    struct wire *w;
    struct error err;
    while (wire_accept(s->fd, &w, &err) == OK)
        greet(s, w);
    return NULL;
}

enum status prompt_server_open(struct lane *lane, const struct prompt_server_options *options,
                               struct prompt_server **out, int *port, struct error *err) {
    int fd;
    TRY(visit_prepare(lane, err));
    TRY(wire_listen(options->address, &fd, port, err));
    struct prompt_server *s = xcalloc(1, sizeof *s);
    *s = (struct prompt_server){.lane = lane, .options = *options, .fd = fd};
    s->options.patience_us = options->patience_us ? options->patience_us : PATIENCE_US;
    s->options.idle_us = options->idle_us ? options->idle_us : IDLE_US;
    s->options.address = NULL; // the caller's
    pthread_mutex_init(&s->lock, NULL);
    s->started = pthread_create(&s->thread, NULL, server_thread, s) == 0;
    *out = s;
    if (s->started)
        return OK;
    prompt_server_close(s);
    *out = NULL;
    return fail(err, ERR_MEMORY, "no thread could be started to give prompts");
}

void prompt_server_close(struct prompt_server *s) {
    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    for (int i = 0; i < MOST_ASKERS; i++)
        if (s->askers[i].wire)
            wire_break(s->askers[i].wire);
    pthread_mutex_unlock(&s->lock);
    wire_stop_listening(s->fd);
    if (s->started)
        pthread_join(s->thread, NULL);
    for (int i = 0; i < MOST_ASKERS; i++)
        if (s->askers[i].is_used)
            pthread_join(s->askers[i].thread, NULL);
    wire_close_listening(s->fd);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

struct prompt_server_count prompt_server_count(const struct prompt_server *s) {
    struct prompt_server_count c = {0};
    if (!s)
        return c;
    pthread_mutex_lock((pthread_mutex_t *)&s->lock);
    c = s->count;
    pthread_mutex_unlock((pthread_mutex_t *)&s->lock);
    return c;
}
