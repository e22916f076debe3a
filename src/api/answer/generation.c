/* generation.c - see generation.h. */
#include "api/answer/generation.h"

#include "api/answer/beam_search.h"
#include "api/answer/choice.h"
#include "base/guard.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

// ---- news -------------------------------------------------------------------------------------------------------

/* Engine thread. A choice is on its thread's stack at most once: the service tells again only after a look. */
void generation_news(void *context, struct answer *a) {
    struct api *api = context;
    struct choice *c = a->user;
    struct api_thread *t = &api->threads[c->generation->thread];
    c->next_news = atomic_load(&t->news);
    while (!atomic_compare_exchange_weak(&t->news, &c->next_news, c))
        ;
    t->to_wake = true;
}

void generation_flush(void *context) {
    struct api *api = context;
    for (int i = 0; i < api->n_threads; i++)
        if (api->threads[i].to_wake) {
            api->threads[i].to_wake = false;
            http_wake(api->http, i);
        }
}

// ---- the end of a generation ------------------------------------------------------------------------------------

void generation_drop(struct generation *g) {
    tool_ask_release(&g->tools);
    tool_format_free(g->own_format);
    g->own_format = NULL;
}

static void generation_release(struct generation *g) {
    for (int i = 0; i < g->n_choices; i++)
        choice_release(&g->choices[i]);
    if (g->dialect->release)
        g->dialect->release(g);
    generation_drop(g);
    g->x->user = NULL;
}

// ---- writing ----------------------------------------------------------------------------------------------------

static const char PING[] = ": ping\n\n", DONE[] = "data: [DONE]\n\n";

static void begin_stream(struct generation *g) {
    struct http_header headers[3] = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
    size_t n = 2 + api_extra_headers(g->x, headers + 2);
    http_stream_begin(g->x, &(struct http_answer){200, "text/event-stream; charset=utf-8", headers, n,
                                                  g->dialect->ping ? g->dialect->ping : PING});
}

/* What is new of a choice, as one chunk; nothing if no text has become certain. */
static void write_chunk(struct choice *c, struct buf *out) {
    const struct generation *g = c->generation;
    bool has_text = c->content.len > 0 || c->reasoning.len > 0 || tool_calls_have_news(&c->calls);
    bool has_tokens = (g->logprobs || g->return_ids) && c->n_seen > c->n_written;
    if (!has_text && !has_tokens && !c->ended)
        return;
    g->dialect->chunk(c, out);
    buf_clear(&c->content);
    buf_clear(&c->reasoning);
    tool_calls_written(&c->calls);
    c->started = true;
    c->n_written = c->n_seen;
}

static void write_failure(struct generation *g, struct buf *out) {
    buf_str(out, STR("data: "));
    api_append_error(out, g->x->path, generation_failed_status(g), NULL, g->failed.text);
    buf_str(out, STR("\n\n"));
}

static void end_stream(struct generation *g, struct buf *out) {
    const struct dialect *d = g->dialect;
    if (g->failed.status != OK)
        (d->fail ? d->fail : write_failure)(g, out);
    else if (g->include_usage)
        d->last(g, out);
    buf_str(out, str_of(d->done ? d->done : DONE));
}

static void reply_whole(struct generation *g) {
    if (g->goes_on) {
        g->dialect->settle(g);
        return;
    }
    if (g->aborted) {
        api_reply_error(g->x, 499, NULL, g->failed.text);
        return;
    }
    if (g->failed.status != OK) {
        api_reply_fault(g->x, &g->failed);
        return;
    }
    if (g->n_best > 0)
        generation_pick_best(g);
    struct buf out = {0};
    g->dialect->body(g, &out);
    api_reply_json(g->x, 200, buf_view(&out));
    buf_release(&out);
}

// ---- the exchange's thread --------------------------------------------------------------------------------------

static void cancel_all(struct generation *g) {
    for (int i = 0; i < g->n_choices; i++)
        if (g->choices[i].answer && !g->choices[i].answer->done)
            service_cancel(g->api->service, g->choices[i].answer);
}

void generation_abort(struct generation *g) {
    if (g->search)
        atomic_store(&g->abort_asked, true);
    else
        for (int i = 0; i < g->n_choices; i++)
            service_cancel(g->api->service, g->choices[i].answer);
}

/* Reads what is new, and ends the choice after its last token. */
static void advance(struct choice *c) {
    struct generation *g = c->generation;
    if (c->ended)
        return;
    choice_read_tokens(c);
    if (c->answer->done)
        choice_end(c);
    else if (c->stopped)
        service_stop(g->api->service, c->answer);
    else if (g->failed.status != OK)
        service_cancel(g->api->service, c->answer);
}

/* So many tokens that a stream did not take are not for want of a moment: its client does not read. */
enum { MOST_UNREAD = 64 };

static void pause_unread(struct choice *c) {
    int32_t n = atomic_load_explicit(&c->answer->n_tokens, memory_order_relaxed);
    if (c->paused || c->answer->done || n - c->n_seen < MOST_UNREAD)
        return;
    c->paused = true;
    service_pause(c->generation->api->service, c->answer, true);
}

static void go_on(struct choice *c) {
    if (!c->paused)
        return;
    c->paused = false;
    service_pause(c->generation->api->service, c->answer, false);
}

/* Nobody will ask any more: all answers are done, and were written or have no reader. */
static void finish(struct generation *g) {
    struct http_exchange *x = g->x;
    record_generated(x);
    generation_release(g);
    http_release(x); // it may be gone from here on
}

void generation_conclude(struct generation *g) {
    for (int i = 0; i < g->n_choices && g->failed.status == OK; i++)
        advance(&g->choices[i]);
    reply_whole(g);
    finish(g);
}

void generation_abandon(struct generation *g) { finish(g); }

bool generation_fill(struct http_exchange *x, struct buf *out) {
    struct generation *g = x->user;
    if (!g->begun && g->dialect->begin)
        g->dialect->begin(g, out);
    g->begun = true;
    for (int i = 0; i < g->n_choices && g->failed.status == OK; i++) {
        bool had_ended = g->choices[i].ended;
        advance(&g->choices[i]);
        go_on(&g->choices[i]);
        if (!had_ended && g->failed.status == OK)
            write_chunk(&g->choices[i], out);
    }
    if (g->failed.status != OK)
        cancel_all(g);
    if (g->n_done < g->n_choices)
        return false;
    end_stream(g, out);
    finish(g);
    return true;
}

/* Whole answers: text is read as it comes, so that a stop string ends its choice at once. */
static void collect(struct generation *g, struct choice *c) {
    advance(c);
    if (g->n_done < g->n_choices)
        return;
    reply_whole(g);
    finish(g);
}

static void hear_now(struct choice *c) {
    struct generation *g = c->generation;
    if (http_is_lent(g->x)) { // another thread still submits the rest of it
        c->next_news = g->early_news;
        g->early_news = c;
        return;
    }
    if (c->heard) {
        c->heard(c);
        return;
    }
    service_look(c->answer);
    g->n_done += c->answer->done;
    if (http_is_gone(g->x) && !g->goes_on) {
        if (g->n_done == g->n_choices)
            finish(g);
    } else if (g->stream) {
        pause_unread(c);
        http_stream_more(g->x);
    } else {
        collect(g, c);
    }
}

/* 503 in place of a whole answer for which there was no memory; false: it is not time for it, or there is none for that
 * either. */
static bool refuse_for_memory(struct generation *g) {
    struct alloc_scope scope;
    if (g->stream || g->search || g->n_done < g->n_choices || (!g->goes_on && http_is_gone(g->x)))
        return false;
    alloc_scope_begin(&scope);
    if (setjmp(scope.env) != 0)
        return false;
    if (g->goes_on) // its exchange was answered long ago
        g->dialect->give_up(g);
    else
        api_reply_error(g->x, 503, NULL, "there is not enough memory for the answer now");
    finish(g);
    alloc_scope_end(&scope);
    return true;
}

static void hear(struct choice *c) {
    struct http_exchange *x = c->generation->x;
    struct alloc_scope scope;
    alloc_scope_begin(&scope);
    if (setjmp(scope.env) != 0) {
        if (!refuse_for_memory(c->generation))
            http_fail(x);
        return;
    }
    hear_now(c);
    alloc_scope_end(&scope);
}

static void hear_all(struct choice *c) {
    while (c) {
        struct choice *next = c->next_news; // hearing may free c, or put it back on the stack
        hear(c);
        c = next;
    }
}

void generation_woken(void *context, int thread) {
    struct api *api = context;
    hear_all(atomic_exchange(&api->threads[thread].news, NULL));
}

void generation_returned(struct http_exchange *x) {
    struct generation *g = x->user;
    if (!g)
        return;
    struct choice *c = g->early_news;
    g->early_news = NULL;
    hear_all(c);
}

void generation_gone(struct http_exchange *x, enum http_gone why) {
    struct generation *g = x->user;
    (void)why;
    if (!g)
        return;
    if (g->search)
        beam_search_gone(g);
    else if (g->n_done == g->n_choices)
        finish(g);
    else
        cancel_all(g);
}

// ---- starting ---------------------------------------------------------------------------------------------------

/* The news of what was already submitted still come; they find the exchange answered. */
static void refuse(struct generation *g, int n_submitted, int32_t tenant, const struct error *err) {
    for (int i = n_submitted; i < g->n_choices; i++)
        choice_release(&g->choices[i]);
    g->n_choices = n_submitted;
    if (n_submitted == 0) {
        if (g->dialect->release)
            g->dialect->release(g);
        generation_drop(g);
        if (err->status == ERR_FULL) // it is told to come again, and pays then
            ((struct api_record *)g->x->record)->n_text_tokens = 0;
        record_generated(g->x);
        g->x->user = NULL;
        if (err->status == ERR_FULL)
            api_reply_busy(g->x, tenant, err->text);
        else
            api_reply_fault(g->x, err);
        http_release(g->x);
        return;
    }
    record_generating(g->x, g);
    g->failed = *err;
    g->stream = false; // answered as a whole once all of them have ended
    cancel_all(g);
}

void generation_refuse(struct generation *g, int32_t tenant, const struct error *err) { refuse(g, 0, tenant, err); }

void generation_prepare(struct generation *g, const struct prompt_ids *prompts, int n_prompts, int n) {
    struct http_exchange *x = g->x;
    g->n_choices = n_prompts * n;
    g->n_prompts = n_prompts;
    g->n_shown = g->n_best > 0 ? n_prompts * g->n_best : g->n_choices;
    g->choices = arena_calloc(&x->arena, (size_t)g->n_choices, sizeof *g->choices);
    g->created = (int64_t)time(NULL);
    api_new_id(g->dialect->id_prefix, g->id);
    for (int i = 0; i < g->n_choices; i++)
        choice_init(&g->choices[i], g, i, prompts[i / n]);
    for (int i = 0; i < n_prompts; i++)
        g->n_prompt_tokens += (int64_t)prompts[i].n;
    g->thread = http_thread(x);
    x->user = g; // all of it is there
}

void generation_begin(struct generation *g) {
    choice_begin_texts(g);
    http_hold(g->x);
    record_generating(g->x, g);
}

int64_t generation_bound(const struct api *api, int64_t n_prompt, int64_t max_tokens) {
    int64_t most = api->options.defaults.max_new_tokens, room = service_info(api->service)->max_model_len - n_prompt;
    if (most == 0 || (max_tokens == -1 && room < most)) // what does not fit at all is the service's to refuse
        return max_tokens;
    return max_tokens == -1 ? most : MIN(max_tokens, most);
}

/* More than a few of each token are kept for the whole answer before it begins. */
static enum status check_logprobs_room(const struct generation *g, const struct gyre_request *r,
                                       const struct prompt_ids *prompts, int n, struct error *err) {
    enum { MOST = 16 << 20 }; // with token and number 128 MiB
    int64_t length = service_info(g->api->service)->max_model_len, total = 0;
    for (int i = 0; i < g->n_choices; i++) {
        int64_t n_prompt = (int64_t)prompts[i / n].n,
                answer = r->max_tokens == -1 ? MAX(length - n_prompt, 0) : MIN(r->max_tokens, length);
        total += answer * r->n_top_logprobs + (r->score_prompt && i % n == 0 ? n_prompt * r->n_prompt_top_logprobs : 0);
    }
    if (total > MOST && MAX(r->n_top_logprobs, r->n_prompt_top_logprobs) > GYRE_MAX_TOP_LOGPROBS)
        return fail(err, ERR_LIMIT,
                    "logprobs: the request asks for up to %lld of them, at most %d are made; ask for fewer tokens",
                    (long long)total, MOST);
    return OK;
}

void generation_start(struct generation *g, const struct gyre_request *request, const struct prompt_ids *prompts,
                      int n_prompts, int n) {
    struct http_exchange *x = g->x;
    struct gyre_request r = *request;
    generation_prepare(g, prompts, n_prompts, n);
    api_key_apply(x, &r, g->n_prompt_tokens, g->n_choices);
    http_hold(x);
    struct error busy;
    if (check_logprobs_room(g, &r, prompts, n, &busy) != OK || api_check_wait(x, r.tenant, &busy) != OK) {
        refuse(g, 0, r.tenant, &busy);
        return;
    }
    for (int i = 0; i < g->n_choices; i++, r.seed++) {
        struct gyre_error err;
        r.prompt = prompts[i / n].ids;
        r.n_prompt = (int64_t)prompts[i / n].n;
        r.max_tokens = generation_bound(g->api, r.n_prompt, request->max_tokens);
        r.score_prompt = request->score_prompt && (i % n == 0 || g->stream); // of a stream none waits for another
        if (service_submit(g->api->service, &r, &g->choices[i], &g->choices[i].answer, &err) != 0) {
            struct error why;
            fail_field(&why, (enum status)err.status, err.field, "%s", err.text);
            refuse(g, i, r.tenant, &why);
            return;
        }
        g->choices[i].scored = g->choices[r.score_prompt ? i : i / n * n].answer;
    }
    record_generating(x, g); // first: where memory runs out from here on, it is over only when its answers are
    choice_begin_texts(g);
    if (g->stream)
        begin_stream(g);
}
