/* admission.c - requests that are told at once to come again later, rather than to wait for longer than anybody would.
 *
 * The queue is too long by number (api_options.max_queued) or by time (max_wait_us, as predicted:
 * engine/queue_model.h). The answer says which of three it is, as clients should do different things about them:
 *
 *     key_limit    a limit of the key is used up                      send less
 *     key_queue    what this key has waiting already takes that long  send less at once; others are served meanwhile
 *     overloaded   what everybody has waiting takes that long         another server, or later
 */
#include "api/api.h"

#include "base/guard.h"

#include <stdio.h>

static const struct queue_model *queue_of(const struct api *api, int tenant) {
    return service_queue(api->service, tenant);
}

enum status api_check_wait(struct http_exchange *x, int32_t tenant, struct error *err) {
    const struct api *api = api_of(x);
    int64_t limit = api->options.max_wait_us, wait = queue_model_wait_us(queue_of(api, tenant), tenant);
    if (limit <= 0 || wait <= limit)
        return OK;
    ((struct api_record *)x->record)->wait_us = wait;
    return fail(err, ERR_FULL, "the request would wait about %.1f s for its turn, and at most %.1f s are accepted",
                (double)wait * 1e-6, (double)limit * 1e-6);
}

static void work_within_scope(struct http_exchange *x) {
    struct alloc_scope scope;
    alloc_scope_begin(&scope);
    if (setjmp(scope.env) != 0) {
        http_fail(x);
        return;
    }
    if (http_body_ready(x))
        x->route->handle(x);
    alloc_scope_end(&scope);
}

void api_work(struct http_exchange *x) {
    struct api_record *rec = x->record;
    work_within_scope(x);
    json_decref(rec->body);
    rec->body = NULL;
}

void api_hand_over(struct http_exchange *x) {
    struct api *api = api_of(x);
    const struct api_key *key = ((const struct api_record *)x->record)->key;
    if (prep_pool_add(api->pool, x, key ? key->tenant : 0))
        return;
    struct error e;
    if (!key) {
        api_reply_error(x, 503, NULL, "too many large requests wait to be read");
        return;
    }
    fail(&e, ERR_FULL, "too many large requests of the key %s wait to be read", key->name);
    api_reply_wait(x, &(struct api_wait){.reason = "key_queue", .retry_us = 1000000}, e.text);
}

void api_reply_busy(struct http_exchange *x, int32_t tenant, const char *message) {
    struct api *api = api_of(x);
    struct service_state state;
    service_state(api->service, &state);
    if (state.draining) {
        api_reply_error(x, 503, NULL, message);
        return;
    }
    int64_t said = ((const struct api_record *)x->record)->wait_us; // the queue may be shorter by now
    int64_t wait = said ? said : queue_model_wait_us(queue_of(api, tenant), tenant);
    struct api_wait w = {.reason = queue_model_is_own(queue_of(api, tenant), tenant) ? "key_queue" : "overloaded",
                         .retry_us = MAX(wait - api->options.max_wait_us, 1000000),
                         .estimate_us = wait,
                         .has_estimate = true};
    api_reply_wait(x, &w, message);
}

void api_reply_wait(struct http_exchange *x, const struct api_wait *w, const char *message) {
    struct buf body = {0};
    char text[1024], seconds[32];
    int64_t ms = (w->retry_us + 999) / 1000;
    snprintf(text, sizeof text, "%s; try again in %.1f s", message, (double)ms / 1000);
    snprintf(seconds, sizeof seconds, "%lld", (long long)((ms + 999) / 1000));
    api_append_error(&body, x->path, 429, NULL, text);
    body.len -= 2; // into the object of the error
    buf_printf(&body, ",\"reason\":\"%s\",\"retry_after_ms\":%lld", w->reason, (long long)ms);
    if (w->has_estimate)
        buf_printf(&body, ",\"estimated_wait_ms\":%lld", (long long)(w->estimate_us / 1000));
    buf_str(&body, STR("}}"));
    const struct http_header retry = {"Retry-After", seconds};
    http_reply(x, &(struct http_answer){429, "application/json", &retry, 1, NULL}, buf_view(&body));
    buf_release(&body);
}
