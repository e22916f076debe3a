/* api.c - opening and closing the server, and the encoders that its threads share; see api.h. */
#include "api/api.h"

#include "api/answer/generation.h"
#include "api/responses/store.h"
#include "base/guard.h"
#include "grammar/grammar_cache.h"
#include "grammar/vocabulary.h"
#include "text/forced_split.h"
#include "text/tools/tool_tokens.h"

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum {
    LONG_TEXT = 1 << 20,
    MAX_TEXT = 8 << 20, // bytes
    MAX_TEXT_A_TOKEN = 16,
    GRAMMAR_THREADS = 8, // that may tokenize besides
    SHRINKS_BY = 4       // what a normalizer may make of a text, at most
};

static size_t longest_token(const struct tokenizer *tok) {
    size_t longest = 1;
    struct buf bytes = {0};
    for (int32_t id = 0; id < tokenizer_n_vocab(tok); id++) {
        buf_clear(&bytes);
        tokenizer_token_bytes(tok, id, &bytes);
        longest = MAX(longest, MAX(bytes.len, tokenizer_token_text(tok, id).len));
    }
    buf_release(&bytes);
    return longest;
}

static struct api_limits limits_or_defaults(struct api_limits l) {
    if (l.max_choices <= 0)
        l.max_choices = 128;
    if (l.max_stops == 0)
        l.max_stops = 64;
    if (l.max_stop_bytes == 0)
        l.max_stop_bytes = 16 << 10;
    if (l.max_logprobs == 0)
        l.max_logprobs = GYRE_MAX_TOP_LOGPROBS;
    if (l.max_logit_bias == 0)
        l.max_logit_bias = 1024;
    return l;
}

static void open_format(struct api *api) {
    const struct api_options *o = &api->options;
    api->format = tool_format_open(o->chat, NULL);
    for (int calls = 0; calls < 2; calls++)
        tool_format_tokens(api->format, o->tokenizer, calls, &api->marks[calls]);
}

static enum status open_service(struct api *api, struct gyre *const *engines, int n, struct error *err) {
    struct service_options o = {.news = generation_news,
                                .flush = generation_flush,
                                .context = api,
                                .max_queued = api->options.max_queued,
                                .reopen = api->options.reopen,
                                .reopen_context = api->options.reopen_context};
    struct gyre_error e;
    if (service_open_several(engines, n, &o, &api->service, &e) != 0)
        return fail(err, (enum status)e.status, "%s", e.text);
    return OK;
}

/* A quarter of what all bodies may have waits of one key at most. */
static enum status open_pool(struct api *api, struct error *err) {
    const struct api_options *o = &api->options;
    size_t all_bodies = o->http.all_bodies ? o->http.all_bodies : HTTP_ALL_BODIES;
    return prep_pool_open(o->n_text_threads, o->keyring ? KEYS_MAX + 1 : 1, all_bodies / 4, api_work, &api->pool, err);
}

/* The service comes first: a request may arrive as soon as http listens; and no news come before the first request. */
enum status api_open(struct gyre *const *take_engines, int n, const struct api_options *options, struct api **out,
                     struct error *err) {
    struct api *api = xcalloc(1, sizeof *api);
    api->options = *options;
    api->options.limits = limits_or_defaults(options->limits);
    if (api->options.step_timeout_us <= 0)
        api->options.step_timeout_us = 120 * 1000000ll;
    if (api->options.http.n_threads <= 0)
        api->options.http.n_threads = 2;
    api->created = (int64_t)time(NULL);
    api->longest_token = longest_token(options->tokenizer);
    pthread_mutex_init(&api->lock, NULL);
    records_init(&api->records);
    api->responses = response_store_open(options->stored_bytes);
    api->grammars = grammar_cache_open(0);
    open_format(api);
    pthread_mutex_init(&api->grammar_lock, NULL);
    request_log_init(&api->log, STDERR_FILENO, options->log_format);
    api->options.http.routes = api_routes;
    api->options.http.n_routes = api_n_routes;
    api->options.http.implied_prefix = "/v1";
    api->options.http.context = api;
    api->options.http.error_body = api_error_body;
    api->options.http.woken = generation_woken;
    api->options.http.admit = api_admit;
    api->options.http.hand_over = api_hand_over;
    api->options.http.returned = generation_returned;
    api->options.http.finished = record_finished;
    api->n_threads = api->options.http.n_threads;
    if (api->options.n_text_threads <= 0)
        api->options.n_text_threads = 2;
    api->max_encoders = (size_t)(api->n_threads + api->options.n_text_threads + GRAMMAR_THREADS);
    api->encoders = xcalloc(api->max_encoders, sizeof *api->encoders);
    jv_use_scopes();
    api->threads = aligned_alloc(64, (size_t)api->n_threads * sizeof *api->threads);
    BUG_IF(!api->threads);
    memset(api->threads, 0, (size_t)api->n_threads * sizeof *api->threads);
    *out = NULL;
    enum status st = open_service(api, take_engines, n, err);
    if (st == OK)
        st = open_pool(api, err);
    if (st == OK)
        st = http_open(&api->options.http, &api->http, err);
    if (st != OK) {
        api_stop(api, 0);
        api_free(api);
        return st;
    }
    *out = api;
    return OK;
}

/* What goes on in the background could not be asked for once the server is gone. */
static void end_background(struct api *api) {
    pthread_mutex_lock(&api->records.lock);
    for (const struct api_record *rec = api->records.in_flight; rec; rec = rec->next)
        if (rec->generation && rec->generation->detached)
            generation_abort(rec->generation);
    pthread_mutex_unlock(&api->records.lock);
}

void api_stop(struct api *api, int patience_ms) {
    if (!api)
        return;
    atomic_store(&api->ends, true);
    if (api->service)
        service_drain(api->service);
    end_background(api);
    if (api->http)
        http_stop(api->http, patience_ms);
    prep_pool_close(api->pool);
}

void api_free(struct api *api) {
    if (!api)
        return;
    service_close(api->service); // before http is freed: its last news still post
    http_free(api->http);
    for (size_t i = 0; i < api->n_encoders; i++)
        encoder_free(api->encoders[i]);
    free(api->encoders);
    for (int i = 0; i < api->n_threads; i++) {
        buf_release(&api->threads[i].piece);
        buf_release(&api->threads[i].shown);
    }
    free(api->threads);
    request_log_release(&api->log);
    records_release(&api->records);
    response_store_free(api->responses);
    grammar_cache_free(api->grammars);
    tool_format_free(api->format);
    for (int calls = 0; calls < 2; calls++)
        token_ids_release(&api->marks[calls]);
    token_trie_free(api->tokens);
    pthread_mutex_destroy(&api->grammar_lock);
    pthread_mutex_destroy(&api->lock);
    free(api);
}

static struct encoder *take_encoder(struct api *api) {
    struct encoder *enc = NULL;
    pthread_mutex_lock(&api->lock);
    if (api->n_encoders > 0)
        enc = api->encoders[--api->n_encoders];
    pthread_mutex_unlock(&api->lock);
    return enc ? enc : encoder_open(api->options.tokenizer);
}

static void give_encoder_back(struct api *api, struct encoder *enc) {
    pthread_mutex_lock(&api->lock);
    bool fits = api->n_encoders < api->max_encoders;
    if (fits)
        api->encoders[api->n_encoders++] = enc;
    pthread_mutex_unlock(&api->lock);
    if (!fits)
        encoder_free(enc);
}

int api_split_behind(void *context, const int32_t *before, int n_before, struct str text, int32_t *out, int max) {
    struct api *api = context;
    struct encoder *enc = take_encoder(api);
    int n = tokenizer_split_behind(api->options.tokenizer, enc, before, n_before, text, out, max);
    give_encoder_back(api, enc);
    return n;
}

static size_t context_of(const struct api *api) { return (size_t)service_info(api->service)->max_model_len; }

enum status api_check_prompt(const struct api *api, struct str text, struct error *err) {
    size_t context = context_of(api), most;
    if (size_mul(context, SHRINKS_BY * api->longest_token, &most) && text.len > most)
        return fail_field(
            err, ERR_ARG, "prompt",
            "prompt is too long: %zu bytes, and this model's maximum context length is %zu tokens of %zu bytes at most",
            text.len, context, api->longest_token);
    return OK;
}

/* What the encoder does not say itself. */
static enum status encode_within_scope(struct encoder *enc, struct str text, int flags, struct token_ids *out,
                                       struct error *err) {
    struct alloc_scope scope;
    alloc_scope_begin(&scope);
    if (setjmp(scope.env) != 0) {
        token_ids_release(out);
        return fail(err, ERR_MEMORY, "there is not enough memory to tokenize the text now");
    }
    enum status st = tokenizer_encode(enc, text, flags, out, err);
    alloc_scope_end(&scope);
    return st;
}

size_t api_most_text(const struct api *api) { return MAX((size_t)MAX_TEXT, MAX_TEXT_A_TOKEN * context_of(api)); }

enum status api_tokenize(struct api *api, struct str text, int flags, struct token_ids *out, struct error *err) {
    size_t most = api_most_text(api);
    if (text.len > most)
        return fail_field(err, ERR_ARG, "prompt", "the text has %zu bytes, and at most %zu are tokenized at once",
                          text.len, most);
    struct encoder *enc = take_encoder(api);
    enum status st = encode_within_scope(enc, text, flags, out, err);
    if (text.len > LONG_TEXT || st == ERR_MEMORY) // what it took, some sixteen bytes for one, is nobody's then
        encoder_free(enc);
    else
        give_encoder_back(api, enc);
    return st;
}
