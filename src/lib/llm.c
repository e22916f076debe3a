/* llm.c - an engine on a thread of its own that many threads ask for texts; see gyre_text.h.
 *
 * The service tells of news on the engine thread: they are marked under the lock, and who waits is woken once a step.
 * Tokens become text on the thread that waits. An answer that is freed while it runs is left to the engine thread,
 * which releases it with its end. */
#include "lib/public.h"

#include "engine/abi.h"
#include "engine/draft/text_drafter.h"
#include "engine/service.h"
#include "text/token_ids.h"
#include "text/vocabulary_bytes.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <time.h>

enum { MAX_WAIT_S = 1000000000 };

struct asked {
    struct gyre_answer shown; // first: callers hold a pointer to it
    struct gyre_llm *llm;
    struct answer *answer; // the service's
    struct gyre_stream *stream;
    int32_t *stops; // tokens that end it: [n_stops]
    size_t n_stops;
    bool include_stop;
    char fault[sizeof((struct gyre_error){0}.text)]; // of its text
    bool has_news, is_orphan, is_over; // under the lock; orphan: freed by its caller. Over: the service has ended it
    struct asked *prev, *next;         // all, under the lock
};

struct gyre_llm {
    struct gyre_text *text;
    struct service *service;
    pthread_mutex_t lock;
    pthread_cond_t news;
    struct asked *all;
    size_t turn; // where the next search for news begins
};

// ---- the life of an answer --------------------------------------------------------------------------------------

static void free_asked(struct asked *q) {
    gyre_stream_close(q->stream);
    free(q->stops);
    free(q);
}

/* Under the lock. */
static void unlink_asked(struct gyre_llm *m, struct asked *q) {
    *(q->prev ? &q->prev->next : &m->all) = q->next;
    if (q->next)
        q->next->prev = q->prev;
}

/* Under the lock. Answers the news, if there are any; true when they were the last. */
static bool look(struct asked *q) {
    if (q->has_news) {
        q->has_news = false;
        service_look(q->answer);
        q->is_over |= q->answer->done;
    }
    return q->is_over;
}

static void take_news(void *context, struct answer *a) {
    struct gyre_llm *m = context;
    struct asked *q = a->user;
    pthread_mutex_lock(&m->lock);
    q->has_news = true;
    bool gone = q->is_orphan && look(q);
    if (gone)
        unlink_asked(m, q);
    pthread_mutex_unlock(&m->lock);
    if (gone) {
        service_release(m->service, a);
        free_asked(q);
    }
}

static void wake(void *context) {
    struct gyre_llm *m = context;
    pthread_mutex_lock(&m->lock);
    pthread_cond_broadcast(&m->news);
    pthread_mutex_unlock(&m->lock);
}

void gyre_answer_free(struct gyre_answer *a) {
    if (!a)
        return;
    struct asked *q = (struct asked *)a;
    struct gyre_llm *m = q->llm;
    if (!a->done)
        service_cancel(m->service, q->answer);
    pthread_mutex_lock(&m->lock);
    bool over = look(q);
    q->is_orphan = !over;
    if (over)
        unlink_asked(m, q);
    pthread_mutex_unlock(&m->lock);
    if (!over)
        return;
    service_release(m->service, q->answer);
    free_asked(q);
}

// ---- opening and closing ----------------------------------------------------------------------------------------

/* With the tokens of the model and of a draft model, which may have others. */
static int open_with_tokens(const struct gyre_options *given, struct gyre **out, struct gyre_error *err) {
    struct gyre_options all = *given;
    struct vocabulary_bytes tokens[2] = {0};
    struct gyre_token_bytes views[2];
    struct error e;
    bool is_model = engine_draft_is_model(all.draft_method, all.draft_model);
    if (is_model && !all.model_tokens && vocabulary_bytes_of_both(all.model, all.draft_model, tokens, &e) != OK)
        return public_report(err, &e);
    for (int i = 0; i < 2; i++)
        views[i] = (struct gyre_token_bytes){tokens[i].bytes.ptr, tokens[i].start, tokens[i].n, tokens[i].first};
    if (tokens[0].n > 0)
        all.model_tokens = &views[0], all.draft_tokens = &views[1];
    int st = gyre_open(&all, out, err);
    vocabulary_bytes_release(&tokens[0]);
    vocabulary_bytes_release(&tokens[1]);
    return st;
}

/* What the tokenizer says of ends goes with what the caller says. */
static int open_engine(struct gyre_llm *m, struct gyre_options all, struct gyre_error *err) {
    struct gyre *g;
    struct gyre_ids eos = gyre_text_eos(m->text);
    struct token_ids both = {eos.ids, eos.n, eos.n, NULL};
    for (size_t i = 0; i < all.n_eos; i++)
        token_ids_push(&both, all.eos[i]);
    all.struct_size = sizeof all;
    all.eos = both.ids, all.n_eos = both.n;
    int st = open_with_tokens(&all, &g, err);
    token_ids_release(&both);
    if (st != 0)
        return st;
    return service_open(g, &(struct service_options){.news = take_news, .flush = wake, .context = m}, &m->service, err);
}

int gyre_llm_open(const struct gyre_options *options, struct gyre_llm **out, struct gyre_error *err) {
    pthread_condattr_t steady;
    struct gyre_options read;
    struct error e;
    *out = NULL;
    if (abi_read(&abi_options, options, &read, &e) != OK) // before anything of it is looked at
        return public_report(err, &e);
    struct gyre_llm *m = xcalloc(1, sizeof *m);
    pthread_mutex_init(&m->lock, NULL);
    pthread_condattr_init(&steady);
    pthread_condattr_setclock(&steady, CLOCK_MONOTONIC);
    pthread_cond_init(&m->news, &steady);
    pthread_condattr_destroy(&steady);
    int st = gyre_text_open(read.model, &m->text, err); // first: it is quick to say what is missing
    if (st == 0)
        st = open_engine(m, read, err);
    if (st == 0)
        *out = m;
    else
        gyre_llm_close(m);
    return st;
}

void gyre_llm_close(struct gyre_llm *m) {
    if (!m)
        return;
    service_close(m->service);
    while (m->all) {
        struct asked *next = m->all->next;
        free_asked(m->all);
        m->all = next;
    }
    gyre_text_close(m->text);
    pthread_cond_destroy(&m->news);
    pthread_mutex_destroy(&m->lock);
    free(m);
}

const struct gyre_text *gyre_llm_text(const struct gyre_llm *m) { return m->text; }
const struct gyre_info *gyre_llm_info(const struct gyre_llm *m) { return service_info(m->service); }

void gyre_llm_request_init(const struct gyre_llm *m, struct gyre_request *request, size_t struct_size) {
    struct gyre_request r = service_request_default(m->service);
    abi_write(&abi_request, &r, request, struct_size);
}

// ---- asking -----------------------------------------------------------------------------------------------------

static enum status check_request(const struct gyre_request *r, struct error *err) {
    if (r->want_last_logits)
        return fail(err, ERR_ARG, "want_last_logits: logits come with gyre_poll alone");
    if (r->pooling != GYRE_POOL_NONE)
        return fail(err, ERR_ARG, "pooling: vectors come with gyre_poll alone");
    return OK;
}

/* What ends the answer, as the engine has it. */
static void copy_stops(struct asked *q, const struct gyre_request *r, const struct gyre_info *info) {
    size_t n_eos = r->ignore_eos ? 0 : (size_t)info->n_eos;
    q->n_stops = n_eos + r->n_stop_ids;
    q->stops = xcalloc(q->n_stops, sizeof *q->stops);
    memcpy(q->stops, info->eos, n_eos * sizeof *q->stops);
    if (r->n_stop_ids > 0)
        memcpy(q->stops + n_eos, r->stop_ids, r->n_stop_ids * sizeof *q->stops);
}

/* Once the request was submitted, since the device works meanwhile. */
static int open_stream(struct asked *q, const struct gyre_request *r, struct gyre_stream_options o,
                       struct gyre_error *err) {
    o.prompt = r->prompt;
    o.n_prompt = (size_t)r->n_prompt;
    o.min_tokens = r->min_tokens;
    q->include_stop = o.include_stop;
    return gyre_stream_open(q->llm->text, &o, &q->stream, err);
}

/* Arrays of the service's answer stay where they are. */
static void show_answer(struct asked *q) {
    const struct answer *a = q->answer;
    struct gyre_answer *s = &q->shown;
    s->text = "";
    s->tokens = a->tokens;
    s->n_top = a->n_top;
    s->logprobs = a->logprobs;
    s->top_tokens = a->n_top > 0 ? a->top_tokens : NULL;
    s->top_logprobs = a->n_top > 0 ? a->top_logprobs : NULL;
    s->n_prompt = a->n_prompt;
    s->n_prompt_top = a->n_prompt_top;
    s->prompt_logprobs = a->prompt_logprobs;
    s->prompt_ranks = a->prompt_ranks;
    s->prompt_top_tokens = a->prompt_top_tokens;
    s->prompt_top_logprobs = a->prompt_top_logprobs;
    s->stop_string = s->stop_token = -1;
}

/* News may come before service_submit returns: they find q in the list, and only mark it. */
static int submit(struct gyre_llm *m, struct asked *q, const struct gyre_request *r, struct gyre_error *err) {
    pthread_mutex_lock(&m->lock);
    q->next = m->all;
    if (m->all)
        m->all->prev = q;
    m->all = q;
    pthread_mutex_unlock(&m->lock);
    int st = service_submit(m->service, r, q, &q->answer, err);
    if (st == 0)
        return 0;
    pthread_mutex_lock(&m->lock);
    unlink_asked(m, q);
    pthread_mutex_unlock(&m->lock);
    return st;
}

int gyre_llm_ask(struct gyre_llm *m, const struct gyre_request *request, const struct gyre_stream_options *text,
                 struct gyre_answer **out, struct gyre_error *err) {
    struct error e = {0};
    struct gyre_request r;
    struct gyre_stream_options o;
    *out = NULL;
    if (abi_read(&abi_request, request, &r, &e) != OK || check_request(&r, &e) != OK ||
        public_stream_options(text, &o, &e) != OK)
        return public_report(err, &e);
    struct asked *q = xcalloc(1, sizeof *q);
    q->llm = m;
    q->shown.user = r.user;
    int st = submit(m, q, &r, err);
    if (st != 0) {
        free_asked(q);
        return st;
    }
    copy_stops(q, &r, gyre_llm_info(m)); // checked by now
    show_answer(q);
    st = open_stream(q, &r, o, err);
    if (st != 0)
        gyre_answer_free(&q->shown);
    else
        *out = &q->shown;
    return st;
}

// ---- reading ----------------------------------------------------------------------------------------------------

static bool ends_answer(const struct asked *q, int32_t token) {
    for (size_t i = 0; i < q->n_stops; i++)
        if (q->stops[i] == token)
            return true;
    return false;
}

/* A fault of this answer's text: it is over. */
static void fail_answer(struct asked *q, const struct gyre_error *e) {
    snprintf(q->fault, sizeof q->fault, "%s", e->text);
    q->shown.error = q->fault;
    q->shown.finish = GYRE_FAILED;
    q->shown.done = true;
}

/* The token that ends an answer is no part of its text. */
static void read_token(struct asked *q, int32_t token) {
    struct gyre_error e;
    struct gyre_answer *s = &q->shown;
    s->n_tokens++;
    if (ends_answer(q, token)) {
        s->stop_token = token;
        if (!q->include_stop)
            return;
    }
    if (gyre_stream_feed(q->stream, token, &e) != 0)
        fail_answer(q, &e);
    s->stop_string = gyre_stream_stopped(q->stream);
}

static void end_answer(struct asked *q) {
    struct gyre_error e;
    struct gyre_answer *s = &q->shown;
    const struct answer *a = q->answer;
    s->timing = a->timing;
    s->finish = a->finish;
    s->done = true;
    if (a->finish == GYRE_FAILED)
        s->error = a->error;
    else if (gyre_stream_finish(q->stream, &e) != 0)
        fail_answer(q, &e);
    s->stop_string = gyre_stream_stopped(q->stream);
}

/* Nothing that comes later belongs to it: the service may end its answer. */
static void stop_answer(struct asked *q) {
    q->shown.finish = GYRE_STOP;
    q->shown.stop_token = -1;
    q->shown.done = true;
}

/* Tokens that the service has published become text; nobody else reads this answer. */
static void read_answer(struct asked *q, bool over) {
    struct gyre_answer *s = &q->shown;
    size_t before = s->n_bytes;
    int32_t n = atomic_load_explicit(&q->answer->n_tokens, memory_order_acquire);
    while (s->n_tokens < n && s->stop_string < 0 && !s->done)
        read_token(q, q->answer->tokens[s->n_tokens]);
    if (over && s->stop_string < 0 && !s->done)
        end_answer(q);
    if (s->stop_string >= 0)
        stop_answer(q);
    if (s->done && !over)
        service_stop(q->llm->service, q->answer);
    s->text = gyre_stream_text(q->stream, &s->n_bytes);
    s->n_new = s->n_bytes - before;
}

/* Under the lock: one with news, by turns, or -1; *waits tells whether any may still get some. */
static int64_t find_news(struct gyre_llm *m, struct gyre_answer *const *answers, size_t n, bool *waits) {
    *waits = false;
    for (size_t k = 0; k < n; k++) {
        size_t i = (m->turn + k) % n;
        const struct asked *q = (const struct asked *)answers[i];
        if (q->shown.done)
            continue;
        if (q->has_news) {
            m->turn = i + 1;
            return (int64_t)i;
        }
        *waits = true;
    }
    return -1;
}

static struct timespec time_in(double seconds) {
    struct timespec t;
    seconds = seconds < MAX_WAIT_S ? seconds : MAX_WAIT_S;
    clock_gettime(CLOCK_MONOTONIC, &t);
    int64_t ns = t.tv_nsec + (int64_t)((seconds - (double)(int64_t)seconds) * 1e9);
    return (struct timespec){t.tv_sec + (time_t)seconds + ns / 1000000000, ns % 1000000000};
}

/* Until NULL: however long it takes. */
static int64_t wait_until(struct gyre_answer *const *answers, size_t n, const struct timespec *until) {
    struct gyre_llm *m = ((struct asked *)answers[0])->llm;
    bool waits, late = false, over = false;
    int64_t i;
    pthread_mutex_lock(&m->lock);
    while ((i = find_news(m, answers, n, &waits)) < 0 && waits && !late)
        if (until)
            late = pthread_cond_timedwait(&m->news, &m->lock, until) == ETIMEDOUT;
        else
            pthread_cond_wait(&m->news, &m->lock);
    if (i >= 0)
        over = look((struct asked *)answers[i]);
    pthread_mutex_unlock(&m->lock);
    if (i >= 0)
        read_answer((struct asked *)answers[i], over);
    return i;
}

int64_t gyre_answer_wait(struct gyre_answer *const *answers, size_t n, double seconds) {
    struct timespec until = time_in(seconds > 0 ? seconds : 0);
    return n > 0 ? wait_until(answers, n, seconds < 0 ? NULL : &until) : -1;
}

int64_t gyre_answer_wait_done(struct gyre_answer *const *answers, size_t n, double seconds) {
    struct timespec until = time_in(seconds > 0 ? seconds : 0);
    int64_t i = -1;
    do
        i = n > 0 ? wait_until(answers, n, seconds < 0 ? NULL : &until) : -1;
    while (i >= 0 && !answers[i]->done);
    return i;
}
