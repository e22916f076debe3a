/* prompt_fetch.c - see prompt_fetch.h. */
#include "engine/roles/prompt_fetch.h"

#include "base/clock.h"
#include "dist/wire.h"
#include "engine/lanes/lane_parts.h"
#include "engine/roles/handover.h"
#include "engine/roles/prompt_wire.h"
#include "engine/roles/visit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_THREADS = 4, CONNECT_MS = 1000, REST_US = 5000000, ADDRESS = 256 };

struct fetcher {
    struct prompt_fetch *fetch;
    pthread_t thread;
    bool started;
    struct wire *wire;           // NULL: not connected. Others break it under the lock
    const struct ticket *ticket; // that is fetched; others read it under the lock
};

struct prompt_fetch {
    struct lane *lane;
    struct prompt_fetch_options options;
    char address[ADDRESS];
    struct fetcher fetchers[N_THREADS];
    pthread_mutex_t lock; // of what follows
    pthread_cond_t work;
    struct ticket *first, **end;
    bool stopping, has_told, has_refused;
    int64_t silent_us, counted_us; // waited since the last word; of the clock, until when that was summed up
    int64_t rests_until_us, n_fetched, n_tokens, n_failed, n_windows;
};

// ---- one prompt -------------------------------------------------------------------------------------------------

struct errand {
    struct handover_prompt prompt;
    int32_t n; // blocks that were here, and then those up to the end of the last part
};

static bool is_cancelled(const struct fetcher *w) { return atomic_load(&w->ticket->wants_cancel); }

/* Under the lock, so that it can be broken when nobody waits for it any more. */
static void set_wire(struct fetcher *w, struct wire *wire) {
    pthread_mutex_lock(&w->fetch->lock);
    wire_close(w->wire);
    w->wire = wire;
    if (wire && (w->fetch->stopping || is_cancelled(w)))
        wire_break(wire);
    pthread_mutex_unlock(&w->fetch->lock);
}

/* And whatever was open of that server's device, which may end. */
static void end_wire(struct fetcher *w) {
    set_wire(w, NULL);
    visit_leave(w->fetch->lane);
}

static void note_word(struct prompt_fetch *f) {
    pthread_mutex_lock(&f->lock);
    f->silent_us = 0;
    f->counted_us = clock_us();
    pthread_mutex_unlock(&f->lock);
}

/* Of a fetch that failed: whether the server hangs by now. */
static bool note_silence(struct prompt_fetch *f, int64_t since_us) {
    pthread_mutex_lock(&f->lock);
    int64_t now_us = clock_us();
    f->silent_us += now_us - MAX(since_us, f->counted_us);
    f->counted_us = now_us;
    bool hangs = f->silent_us >= f->options.timeout_us;
    pthread_mutex_unlock(&f->lock);
    return hangs;
}

static enum status receive(struct fetcher *w, uint32_t *kind, struct buf *answer, size_t most, int64_t until_us,
                           struct error *err) {
    TRY(wire_receive(w->wire, kind, answer, most, until_us, err));
    note_word(w->fetch);
    return OK;
}

static enum status ask(struct fetcher *w, struct str question, uint32_t *kind, struct buf *answer, size_t most,
                       int64_t until_us, struct error *err) {
    struct wire *wire;
    if (!w->wire) {
        TRY(wire_connect(w->fetch->address, CONNECT_MS, &wire, err));
        set_wire(w, wire);
    }
    TRY(wire_send(w->wire, PROMPT_ASK, question, until_us, err));
    return receive(w, kind, answer, most, until_us, err);
}

/* On a wire that may be of an earlier prompt: the peer may have been started anew since. */
static enum status ask_again(struct fetcher *w, struct str question, uint32_t *kind, struct buf *answer, size_t most,
                             int64_t until_us, struct error *err) {
    bool is_old = w->wire != NULL;
    enum status st = ask(w, question, kind, answer, most, until_us, err);
    if (st != ERR_IO || !is_old || is_cancelled(w) || clock_us() >= until_us)
        return st;
    end_wire(w);
    buf_clear(answer);
    return ask(w, question, kind, answer, most, until_us, err);
}

/* A part behind the last one; what the cache has besides is others' doing, who fetch a text that begins alike. */
static enum status take_over(struct lane *lane, struct errand *e, struct str bytes, struct error *err) {
    int32_t last = e->n;
    TRY(visit_write(lane, &e->prompt, bytes, &e->n, err));
    return e->n > last ? OK : fail(err, ERR_FORMAT, "a part of the prompt's cache came twice");
}

/* Told once: bytes come from now on. */
static void note_refusal(struct prompt_fetch *f, const struct error *err) {
    pthread_mutex_lock(&f->lock);
    bool is_new = !f->has_refused;
    f->has_refused = true;
    pthread_mutex_unlock(&f->lock);
    if (is_new)
        fprintf(stderr, "gyre: what %s shows in its device's memory comes as bytes: %s\n", f->address, err->text);
}

/* What is shown on the other server's device; where it cannot be reached it comes as bytes, and this is no fault. */
static enum status take_window(struct fetcher *w, struct errand *e, struct str shown, int64_t until_us,
                               struct error *err) {
    struct prompt_window window;
    int32_t last = e->n, n;
    if (shown.len < sizeof window)
        return fail(err, ERR_FORMAT, "what is shown has %zu bytes", shown.len);
    memcpy(&window, shown.ptr, sizeof window);
    struct str header = {shown.ptr + sizeof window, shown.len - sizeof window};
    enum status st = visit_take(w->fetch->lane, &e->prompt, header, &window, &n, err);
    if (st == ERR_UNSUPPORTED)
        note_refusal(w->fetch, err);
    if (st == ERR_UNSUPPORTED || st == ERR_IO) // which was late: steps of this engine took long
        return wire_send(w->wire, st == ERR_IO ? PROMPT_LATE : PROMPT_REFUSED, (struct str){"", 0}, until_us, err);
    if (st != OK)
        return st;
    e->n = n;
    if (n <= last)
        return fail(err, ERR_FORMAT, "a part of the prompt's cache came twice");
    pthread_mutex_lock(&w->fetch->lock);
    w->fetch->n_windows++;
    pthread_mutex_unlock(&w->fetch->lock);
    return wire_send(w->wire, PROMPT_TAKEN, (struct str){"", 0}, until_us, err);
}

/* Parts come as they are computed, and are remembered as they come. */
static enum status take_all(struct fetcher *w, struct errand *e, uint32_t kind, struct buf *answer, size_t most,
                            int64_t until_us, struct error *err) {
    struct lane *lane = w->fetch->lane;
    bool has_parts = kind == PROMPT_PART || kind == PROMPT_WINDOW;
    while (kind == PROMPT_PART || kind == PROMPT_WINDOW) {
        TRY(kind == PROMPT_PART ? take_over(lane, e, buf_view(answer), err)
                                : take_window(w, e, buf_view(answer), until_us, err));
        note_word(w->fetch); // what this engine took for it is not the server's silence
        buf_clear(answer);
        TRY(receive(w, &kind, answer, most, until_us, err));
    }
    if (kind != PROMPT_CACHE)
        return fail(err, kind == PROMPT_FULL ? ERR_FULL : ERR_UNSUPPORTED, "%.*s", (int)MIN(answer->len, 512u),
                    answer->ptr ? answer->ptr : "");
    return answer->len == 0 && has_parts ? OK : take_over(lane, e, buf_view(answer), err);
}

/* After a fault nobody knows what comes next on the wire, but for an answer that is one sentence. */
static enum status fetch_rest(struct fetcher *w, struct errand *e, int64_t until_us, struct error *err) {
    struct lane *lane = w->fetch->lane;
    bool takes_windows = lane_engine(lane)->ops->handover->take != NULL;
    struct prompt_ask q = {
        e->prompt.identity, takes_windows ? prompt_host() : 0, e->prompt.tenant, e->n, e->prompt.n, 0};
    struct budget any = {.limit = SIZE_MAX}; // what there is no memory for is computed here
    struct buf question = {0}, answer = {.budget = &any};
    size_t most = (size_t)handover_most_bytes(lane_engine(lane), e->prompt.n);
    uint32_t kind = PROMPT_ASK;
    buf_append(&question, &q, sizeof q);
    buf_append(&question, e->prompt.tokens, (size_t)e->prompt.n * sizeof *e->prompt.tokens);
    enum status st = ask_again(w, buf_view(&question), &kind, &answer, most, until_us, err);
    if (st == OK)
        st = take_all(w, e, kind, &answer, most, until_us, err);
    if (st != OK && kind != PROMPT_FULL && kind != PROMPT_NOTHING)
        end_wire(w);
    buf_release(&question);
    buf_release(&answer);
    return st;
}

/* Told once a fault begins, and not for each request. */
static void note_fault(struct prompt_fetch *f, const char *what, const struct error *err) {
    pthread_mutex_lock(&f->lock);
    bool is_new = !f->has_told && !f->stopping;
    f->has_told = true;
    f->n_failed++;
    if (err->status != ERR_FULL) // a prefill server that has no room is well
        f->rests_until_us = clock_us() + REST_US;
    pthread_mutex_unlock(&f->lock);
    if (is_new)
        fprintf(stderr, "gyre: a prompt was not fetched from %s %s: %s\n", f->address, what, err->text);
}

/* The error of a prompt whose client left is that of a wire that was broken for it. */
static void note_failure(struct prompt_fetch *f, bool has_left, int64_t began_us, const struct error *err) {
    struct error why;
    bool hangs = note_silence(f, began_us);
    fail(&why, ERR_IO, "it says nothing");
    if (!has_left)
        note_fault(f, "and is computed here", err);
    else if (hangs)
        note_fault(f, "before its client left", &why);
}

static void note_success(struct prompt_fetch *f, int64_t n_tokens) {
    pthread_mutex_lock(&f->lock);
    f->has_told = false;
    f->n_fetched++;
    f->n_tokens += n_tokens;
    pthread_mutex_unlock(&f->lock);
}

static bool rests(struct prompt_fetch *f) {
    pthread_mutex_lock(&f->lock);
    bool is = f->stopping || clock_us() < f->rests_until_us;
    pthread_mutex_unlock(&f->lock);
    return is;
}

/* Its time is counted from when it was asked: those before it may have taken all of it. */
static enum status fetch_in_time(struct fetcher *w, struct errand *e, int64_t until_us, struct error *err) {
    return clock_us() < until_us ? fetch_rest(w, e, until_us, err)
                                 : fail(err, ERR_FULL, "prompts before it took all of its time");
}

static void fetch(struct fetcher *w) {
    struct prompt_fetch *f = w->fetch;
    const struct request *r = w->ticket->request;
    struct errand e = {.prompt = {r->sequence.tokens, r->n_prompt, r->asked.tenant, f->options.identity}};
    struct error err;
    int block = gyre_info(lane_engine(f->lane))->block_size;
    if (rests(f) || is_cancelled(w))
        return;
    int32_t known = e.n = visit_known(f->lane, &e.prompt);
    if ((e.prompt.n - 1) / block <= known || e.prompt.n - known * block < f->options.least_tokens)
        return;
    int64_t began_us = clock_us();
    if (fetch_in_time(w, &e, r->submitted_us + f->options.timeout_us, &err) == OK)
        note_success(f, (int64_t)(e.n - known) * block);
    else
        note_failure(f, is_cancelled(w), began_us, &err);
}

// ---- all of them ------------------------------------------------------------------------------------------------

static struct ticket *next_ticket(struct fetcher *w) {
    struct prompt_fetch *f = w->fetch;
    pthread_mutex_lock(&f->lock);
    w->ticket = NULL;
    while (!f->first && !f->stopping)
        pthread_cond_wait(&f->work, &f->lock);
    struct ticket *t = f->first;
    if (t) {
        f->first = t->next_inbox;
        t->next_inbox = NULL;
        if (!f->first)
            f->end = &f->first;
    }
    w->ticket = t;
    pthread_mutex_unlock(&f->lock);
    return t;
}

/* Of those that wait their turn it is taken out; what is under way for it ends with its wire. */
static bool cancel(void *of, struct ticket *t) {
    struct prompt_fetch *f = of;
    struct ticket **at = &f->first;
    pthread_mutex_lock(&f->lock);
    for (struct fetcher *w = f->fetchers; w < f->fetchers + N_THREADS; w++)
        if (w->ticket == t && w->wire)
            wire_break(w->wire);
    while (*at && *at != t)
        at = &(*at)->next_inbox;
    bool has_waited = *at != NULL;
    if (has_waited) {
        *at = t->next_inbox;
        t->next_inbox = NULL; // or the engine would get those behind it too
        if (!*at)
            f->end = at;
    }
    pthread_mutex_unlock(&f->lock);
    return has_waited;
}

static void *fetcher_thread(void *arg) {
    struct fetcher *w = arg;
    for (struct ticket *t; (t = next_ticket(w));) {
        fetch(w);
        lane_fetched(w->fetch->lane, t);
    }
    end_wire(w);
    return NULL;
}

static void stop(void *of) {
    struct prompt_fetch *f = of;
    pthread_mutex_lock(&f->lock);
    f->stopping = true;
    for (int i = 0; i < N_THREADS; i++)
        if (f->fetchers[i].wire)
            wire_break(f->fetchers[i].wire);
    pthread_cond_broadcast(&f->work);
    pthread_mutex_unlock(&f->lock);
    for (int i = 0; i < N_THREADS; i++)
        if (f->fetchers[i].started)
            pthread_join(f->fetchers[i].thread, NULL);
    pthread_cond_destroy(&f->work);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

/* What is cached under a salt or of an adapter stays here, and a text that is scored or pooled is computed whole. */
static bool wants(const void *of, const struct request *r) {
    const struct prompt_fetch *f = of;
    const struct prefix_salt *salt = &r->sequence.salt;
    bool is_salted = salt->adapter || salt->word[0] || salt->word[1];
    return r->n_prompt >= f->options.least_tokens && !is_salted && !r->asked.score_prompt &&
           r->asked.pooling == GYRE_POOL_NONE;
}

static void push(void *of, struct ticket *t) {
    struct prompt_fetch *f = of;
    pthread_mutex_lock(&f->lock);
    t->next_inbox = NULL;
    *f->end = t;
    f->end = &t->next_inbox;
    pthread_cond_signal(&f->work);
    pthread_mutex_unlock(&f->lock);
}

static void count(void *of, struct service_state *out) {
    struct prompt_fetch *f = of;
    pthread_mutex_lock(&f->lock);
    out->n_fetched_prompts = f->n_fetched;
    out->n_fetched_tokens = f->n_tokens;
    out->n_failed_fetches = f->n_failed;
    out->n_fetched_windows = f->n_windows;
    pthread_mutex_unlock(&f->lock);
}

enum status prompt_fetch_open(struct lane *lane, const struct prompt_fetch_options *options, struct error *err) {
    TRY(visit_prepare(lane, err));
    if (strlen(options->address) >= ADDRESS)
        return fail(err, ERR_ARG, "%.80s... is too long an address", options->address);
    struct prompt_fetch *f = xcalloc(1, sizeof *f);
    f->lane = lane;
    f->options = *options;
    snprintf(f->address, sizeof f->address, "%s", options->address);
    f->end = &f->first;
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->work, NULL);
    bool all = true;
    for (int i = 0; i < N_THREADS && all; i++) {
        struct fetcher *w = &f->fetchers[i];
        w->fetch = f;
        all = w->started = pthread_create(&w->thread, NULL, fetcher_thread, w) == 0;
    }
    if (!all) {
        stop(f);
        return fail(err, ERR_MEMORY, "no thread could be started to fetch prompts");
    }
    lane_set_fetch(lane, &(struct lane_fetch){wants, push, cancel, count, stop, f});
    return OK;
}
