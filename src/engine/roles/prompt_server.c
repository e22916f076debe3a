/* prompt_server.c - see prompt_server.h. */
#include "engine/roles/prompt_server.h"

#include "base/clock.h"
#include "dist/wire.h"
#include "engine/roles/handover.h"
#include "engine/roles/prompt_wire.h"
#include "engine/service.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* For a question once it has begun to come, and for an answer to be taken. */
static const int64_t PATIENCE_US = 60000000, IDLE_US = 86400000000;
enum { MOST_BYTES = 1 << 30 }; // of one prompt's cache

struct asker {
    struct prompt_server *server;
    pthread_t thread;
    bool is_used, has_ended;
    struct wire *wire;
};

struct prompt_server {
    struct lane *lane;
    uint64_t identity;
    int fd;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock; // of what follows
    struct asker askers[MOST_ASKERS];
    bool stopping;
    int64_t n_given;
};

// ---- one prompt -------------------------------------------------------------------------------------------------

struct giving {
    struct handover_prompt prompt;
    int32_t from;
    struct buf *out;
    struct error err;
    enum status status;
};

static void give(struct gyre *g, void *context) {
    struct giving *w = context;
    w->status = handover_give(g, &w->prompt, w->from, MOST_BYTES, w->out, &w->err);
}

static enum status check_ask(const struct prompt_server *s, const struct prompt_ask *q, size_t n_bytes,
                             struct error *err) {
    const struct gyre_info *info = gyre_info(lane_engine(s->lane));
    if (n_bytes < sizeof *q || q->n < 1 || n_bytes != sizeof *q + (size_t)q->n * sizeof(int32_t))
        return fail(err, ERR_FORMAT, "what is asked has %zu bytes", n_bytes);
    if (q->identity != s->identity)
        return fail(err, ERR_FORMAT, "the prefill server has another model, build or number format");
    if (q->n >= info->max_model_len)
        return fail(err, ERR_ARG, "a prompt of %d tokens is longer than the prefill server's context", q->n);
    if (q->tenant < 0 || q->tenant >= info->n_tenants)
        return fail(err, ERR_ARG, "the prefill server has no tenant %d: both want the same keys", q->tenant);
    return q->from >= 0 ? OK : fail(err, ERR_ARG, "nothing begins at block %d", q->from);
}

static enum status answer(struct prompt_server *s, struct str question, struct buf *out, struct error *err) {
    struct prompt_ask q = {0};
    memcpy(&q, question.ptr, MIN(sizeof q, question.len));
    TRY(check_ask(s, &q, question.len, err));
    int32_t *tokens = xcalloc((size_t)q.n, sizeof *tokens); // aligned
    memcpy(tokens, question.ptr + sizeof q, (size_t)q.n * sizeof *tokens);
    struct gyre_request r = gyre_request_default(lane_engine(s->lane));
    r.prompt = tokens, r.n_prompt = q.n, r.max_tokens = 0, r.tenant = q.tenant;
    struct giving w = {.prompt = {tokens, q.n, q.tenant, q.identity}, .from = q.from, .out = out};
    enum status st = lane_prompt(s->lane, &r, err);
    if (st == OK && !lane_errand(s->lane, give, &w))
        st = fail(err, ERR_FULL, "the prefill server is shutting down");
    else if (st == OK && w.status != OK)
        *err = w.err, st = w.status;
    free(tokens);
    return st;
}

static size_t most_question(const struct prompt_server *s) {
    return sizeof(struct prompt_ask) + (size_t)gyre_info(lane_engine(s->lane))->max_model_len * sizeof(int32_t);
}

static void *asker_thread(void *arg) {
    struct asker *a = arg;
    struct prompt_server *s = a->server;
    struct budget any = {.limit = SIZE_MAX}; // a cache that there is no memory for is refused, and the server goes on
    struct buf question = {0}, out = {.budget = &any};
    struct error err;
    uint32_t kind;
    enum status st = OK;
    while (st == OK) {
        buf_clear(&question);
        buf_clear(&out);
        st = wire_receive(a->wire, &kind, &question, most_question(s), clock_us() + IDLE_US, &err);
        if (st != OK || kind != PROMPT_ASK)
            break;
        bool is_there = answer(s, buf_view(&question), &out, &err) == OK;
        st = wire_send(a->wire, is_there ? PROMPT_CACHE : PROMPT_NOTHING, is_there ? buf_view(&out) : str_of(err.text),
                       clock_us() + PATIENCE_US, &err);
        pthread_mutex_lock(&s->lock);
        s->n_given += st == OK && is_there;
        pthread_mutex_unlock(&s->lock);
    }
    buf_release(&question);
    buf_release(&out);
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

static void greet(struct prompt_server *s, struct wire *take_wire) {
    pthread_mutex_lock(&s->lock);
    struct asker *a = s->stopping ? NULL : free_place(s);
    if (a) {
        *a = (struct asker){.server = s, .wire = take_wire};
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

enum status prompt_server_open(struct lane *lane, const char *address, uint64_t identity, struct prompt_server **out,
                               int *port, struct error *err) {
    int fd;
    TRY(handover_check(lane_engine(lane), err));
    TRY(wire_listen(address, &fd, port, err));
    struct prompt_server *s = xcalloc(1, sizeof *s);
    *s = (struct prompt_server){.lane = lane, .identity = identity, .fd = fd};
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

int64_t prompt_server_given(const struct prompt_server *s) {
    if (!s)
        return 0;
    pthread_mutex_lock((pthread_mutex_t *)&s->lock);
    int64_t n = s->n_given;
    pthread_mutex_unlock((pthread_mutex_t *)&s->lock);
    return n;
}
