/* keys.c - requests and their API keys, sent as "Authorization: Bearer KEY" or "x-api-key: KEY".
 *
 * Checked by route when the head is read, so neither another spelling of a path nor a body gets past, and a body
 * without a key is not kept. Health is for everybody: a probe has no key. So is the chat page, which asks for one.
 *
 * What a key may send a minute and at once is checked there too, and said in OpenAI's x-ratelimit-* fields. */
#include "api/api.h"
#include "api/endpoints.h"
#include "base/clock.h"

#include <stdio.h>

/* The scheme's name is compared without regard to case, as RFC 9110 has it. */
static struct str sent_key(const struct http_exchange *x) {
    struct str field = http_field(x, "Authorization"), scheme = STR("Bearer ");
    if (!field.ptr)
        return http_field(x, "x-api-key");
    if (field.len < scheme.len || strncasecmp(field.ptr, scheme.ptr, scheme.len) != 0)
        return (struct str){0};
    return (struct str){field.ptr + scheme.len, field.len - scheme.len};
}

static bool is_for_everybody(const struct http_route *route) {
    return route->handle == endpoint_live || route->handle == endpoint_ready || route->handle == endpoint_page;
}

static bool refuse_key(struct http_exchange *x, bool sent) {
    struct buf body = {0};
    api_append_error(&body, x->path, 401, NULL,
                     sent ? "the API key is not one of this server's"
                          : "an API key is missing: send Authorization: Bearer KEY");
    const struct http_header challenge = {"WWW-Authenticate", "Bearer"};
    http_reply(
        x,
        &(struct http_answer){.status = 401, .content_type = "application/json", .headers = &challenge, .n_headers = 1},
        buf_view(&body));
    buf_release(&body);
    return false;
}

// ---- limits -----------------------------------------------------------------------------------------------------

/* 1m30s, 12.5s, 40ms: as OpenAI writes times. */
static void format_time(int64_t us, char *out, size_t n) {
    int64_t ms = (us + 999) / 1000;
    if (ms < 1000)
        snprintf(out, n, "%lldms", (long long)ms);
    else if (ms < 60000)
        snprintf(out, n, "%.5gs", (double)ms / 1000);
    else
        snprintf(out, n, "%lldm%llds", (long long)(ms / 60000), (long long)(ms % 60000 / 1000));
}

static void add_number(struct http_exchange *x, const char *name, int64_t value) {
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)value);
    http_add_header(x, name, text);
}

static void add_limit_headers(struct http_exchange *x, const struct key_state *s) {
    char text[32];
    if (s->limits.requests > 0) {
        add_number(x, "x-ratelimit-limit-requests", s->limits.requests);
        add_number(x, "x-ratelimit-remaining-requests", s->requests);
        format_time(s->requests_us, text, sizeof text);
        http_add_header(x, "x-ratelimit-reset-requests", text);
    }
    if (s->limits.tokens > 0) {
        add_number(x, "x-ratelimit-limit-tokens", s->limits.tokens);
        add_number(x, "x-ratelimit-remaining-tokens", s->tokens);
        format_time(s->tokens_us, text, sizeof text);
        http_add_header(x, "x-ratelimit-reset-tokens", text);
    }
}

static bool refuse_limit(struct http_exchange *x, const struct api_key *k, enum key_refusal why,
                         const struct key_limits *l, int64_t retry_us) {
    struct error e = {0};
    if (why == KEY_CONCURRENCY)
        fail(&e, ERR_FULL, "the key %s has %lld requests in flight, and may have no more", k->name,
             (long long)l->concurrency);
    else if (why == KEY_REQUESTS)
        fail(&e, ERR_FULL, "the key %s has used up its %lld requests a minute", k->name, (long long)l->requests);
    else
        fail(&e, ERR_FULL, "the key %s has used up its %lld tokens a minute", k->name, (long long)l->tokens);
    api_reply_wait(x, &(struct api_wait){.reason = "key_limit", .retry_us = retry_us}, e.text);
    return false;
}

/* What is looked at only is not counted, so that a client which is over its limits can see why. */
static bool enter(struct http_exchange *x, struct api_record *rec) {
    struct key_state state;
    int64_t retry_us;
    if (x->method != HTTP_POST)
        return true;
    enum key_refusal why = keyring_enter(api_of(x)->options.keyring, rec->key, clock_us(), &state, &retry_us);
    rec->entered = why == KEY_ADMITTED;
    add_limit_headers(x, &state);
    return rec->entered || refuse_limit(x, rec->key, why, &state.limits, retry_us);
}

bool api_admit(struct http_exchange *x) {
    struct keyring *keyring = api_of(x)->options.keyring;
    struct api_record *rec = record_begin(x);
    if (atomic_load(&api_of(x)->ends) && x->method == HTTP_POST &&
        (x->route->flags & HTTP_LONG)) { // work; looking on goes on
        api_reply_error(x, 503, NULL, "the server is shutting down");
        return false;
    }
    if (!keyring || is_for_everybody(x->route))
        return true;
    struct str sent = sent_key(x);
    rec->key = sent.ptr ? keyring_find(keyring, sent) : NULL;
    return rec->key ? enter(x, rec) : refuse_key(x, sent.ptr != NULL);
}

// ---- what a key says about its requests ---------------------------------------------------------------------------

/* What it has paid already counts. */
static void charge_up_to(struct http_exchange *x, int64_t tokens) {
    struct api_record *rec = x->record;
    if (!rec->key || tokens <= rec->charged)
        return;
    keyring_charge(api_of(x)->options.keyring, rec->key, tokens - rec->charged);
    rec->charged = tokens;
}

void api_charge_text(struct http_exchange *x, size_t n_tokens) {
    struct api_record *rec = x->record;
    rec->n_text_tokens += (int64_t)n_tokens;
    charge_up_to(x, rec->n_text_tokens);
}

void api_key_apply(struct http_exchange *x, struct gyre_request *r, int64_t n_prompt_tokens, int n_answers) {
    struct api *api = api_of(x);
    struct api_record *rec = x->record;
    if (!rec->key)
        return;
    int64_t most =
        MIN(MAX(r->max_tokens, 0), service_info(api->service)->max_model_len); // what is longer will be refused
    charge_up_to(x, n_prompt_tokens + n_answers * most);
    r->priority = MAX(r->priority, rec->key->limits.priority);
    if (service_info(api->service)->n_tenants == 1)
        return;
    r->tenant = rec->key->tenant;
}
