/* stored.c - a response that is stored: GET and DELETE /v1/responses/{id}, POST .../cancel, GET .../input_items. */
#include "api/endpoints.h"
#include "api/responses/responses.h"

#include <stdio.h>
#include <stdlib.h>

static const char *id_of(struct http_exchange *x) { return arena_strdup(&x->arena, x->id); }

int32_t responses_tenant(const struct http_exchange *x) {
    const struct api_record *rec = x->record;
    return rec->key ? rec->key->tenant : 0;
}

static void reply_none(struct http_exchange *x) {
    struct error err;
    fail(&err, ERR_ARG, "there is no response \"%.80s\"; what is stored is bounded, and gone with the server",
         id_of(x));
    api_reply_error(x, 404, NULL, err.text);
}

static void reply(struct http_exchange *x, struct buf *take_body) {
    api_reply_json(x, 200, buf_view(take_body));
    buf_release(take_body);
}

void endpoint_response(struct http_exchange *x) {
    struct buf body = {0};
    bool goes_on;
    if (str_eq(http_parameter(x, "stream"), STR("true")))
        api_reply_error(x, 400, "stream", "stream: a response in the background is not streamed here");
    else if (response_store_body(api_of(x)->responses, responses_tenant(x), id_of(x), &body, &goes_on))
        reply(x, &body);
    else
        reply_none(x);
}

void endpoint_delete_response(struct http_exchange *x) {
    if (!response_store_delete(api_of(x)->responses, responses_tenant(x), id_of(x))) {
        reply_none(x);
        return;
    }
    struct buf body = {0};
    buf_str(&body, STR("{\"id\":"));
    buf_json_string(&body, x->id);
    buf_str(&body, STR(",\"object\":\"response\",\"deleted\":true}"));
    reply(x, &body);
}

// ---- cancel -----------------------------------------------------------------------------------------------------

/* Whether it was there to be ended. */
static bool end_in_background(struct http_exchange *x) {
    const struct api_key *key = ((const struct api_record *)x->record)->key;
    struct records *r = &api_of(x)->records;
    bool found = false;
    pthread_mutex_lock(&r->lock);
    for (const struct api_record *rec = r->in_flight; rec && !found; rec = rec->next) {
        found = rec->generation && rec->generation->detached && rec->key == key &&
                str_eq(x->id, str_of(rec->generation->id));
        if (found)
            generation_abort(rec->generation);
    }
    pthread_mutex_unlock(&r->lock);
    return found;
}

/* The response's own status in its body: nothing that a client or the model said stands before it. */
static bool has_status(const struct buf *body, const char *status, struct str *before, struct str *after) {
    char member[48];
    size_t n = (size_t)snprintf(member, sizeof member, "\"status\":\"%s\"", status);
    const char *first = memmem(body->ptr, body->len, "\"status\":", strlen("\"status\":"));
    if (!first || (size_t)(body->ptr + body->len - first) < n || memcmp(first, member, n) != 0)
        return false;
    *before = (struct str){body->ptr, (size_t)(first - body->ptr)};
    *after = (struct str){first + n, body->len - before->len - n};
    return true;
}

/* As it will be stored in a moment, without the output so far. */
static void reply_cancelled(struct http_exchange *x, const struct buf *body) {
    struct str before, after;
    struct buf cancelled = {0};
    BUG_IF(!has_status(body, "in_progress", &before, &after)); // it was stored so
    buf_str(&cancelled, before);
    buf_str(&cancelled, STR("\"status\":\"cancelled\""));
    buf_str(&cancelled, after);
    reply(x, &cancelled);
}

static bool is_cancelled(const struct buf *body) {
    struct str before, after;
    return has_status(body, "cancelled", &before, &after);
}

void endpoint_cancel_response(struct http_exchange *x) {
    struct buf body = {0};
    bool goes_on = false;
    if (!response_store_body(api_of(x)->responses, responses_tenant(x), id_of(x), &body, &goes_on))
        reply_none(x);
    else if (goes_on && end_in_background(x))
        reply_cancelled(x, &body);
    else if (is_cancelled(&body))
        api_reply_json(x, 200, buf_view(&body));
    else
        api_reply_error(x, 400, NULL, "only a response in the background that is not over can be cancelled");
    buf_release(&body);
}

// ---- input items ------------------------------------------------------------------------------------------------

struct page {
    int64_t limit;
    bool ascending;
    struct str after;
};

static enum status read_page(struct http_exchange *x, struct page *p, struct error *err) {
    enum { MOST = 100, USUAL = 20 };
    struct str limit = http_parameter(x, "limit"), order = http_parameter(x, "order");
    *p = (struct page){.limit = USUAL, .ascending = str_eq(order, STR("asc")), .after = http_parameter(x, "after")};
    if (order.ptr && !p->ascending && !str_eq(order, STR("desc")))
        return fail(err, ERR_ARG, "order: it is neither asc nor desc");
    if (!limit.ptr)
        return OK;
    char *end;
    p->limit = strtoll(arena_strdup(&x->arena, limit), &end, 10);
    return *end || p->limit < 1 || p->limit > MOST ? fail(err, ERR_ARG, "limit: it must be a number from 1 to %d", MOST)
                                                   : OK;
}

static json_t *id_at(const json_t *items, size_t i) {
    json_t *id = json_object_get(json_array_get(items, i), "id");
    return id ? json_incref(id) : json_null();
}

/* Where the page begins among the items, counted in its order. */
static enum status begin_of(const json_t *items, const struct page *p, size_t *begin, struct error *err) {
    size_t n = json_array_size(items);
    *begin = 0;
    for (size_t k = 0; p->after.ptr && k < n; k++) {
        const char *id = json_string_value(json_object_get(json_array_get(items, p->ascending ? k : n - 1 - k), "id"));
        if (id && str_eq(p->after, str_of(id)))
            *begin = k + 1;
    }
    return p->after.ptr && *begin == 0 ? fail(err, ERR_ARG, "after: no item has this id") : OK;
}

/* The page of items, which are oldest first. */
static json_t *list_of(const json_t *items, const struct page *p, size_t i) {
    size_t n = json_array_size(items);
    json_t *data = json_array();
    for (; i < n && json_array_size(data) < (size_t)p->limit; i++)
        json_array_append(data, json_array_get(items, p->ascending ? i : n - 1 - i));
    size_t shown = json_array_size(data);
    json_t *first = shown ? id_at(data, 0) : json_null(), *last = shown ? id_at(data, shown - 1) : json_null();
    return json_pack("{s:s, s:o, s:o, s:o, s:b}", "object", "list", "data", data, "first_id", first, "last_id", last,
                     "has_more", i < n);
}

static enum status read_items(const struct turn *before, struct str input, json_t *items, struct error *err) {
    size_t budget = 64 << 20; // bytes of values
    json_t *own;
    TRY(turn_items(before, &budget, items, err));
    TRY(jv_parse_within(input, "input", 0, &budget, &own, err));
    json_array_extend(items, own);
    json_decref(own);
    return OK;
}

static void reply_items(struct http_exchange *x, const struct turn *before, struct str input) {
    struct page page;
    struct error err;
    size_t begin;
    json_t *items = json_array();
    if (read_page(x, &page, &err) == OK && read_items(before, input, items, &err) == OK &&
        begin_of(items, &page, &begin, &err) == OK) {
        json_t *list = list_of(items, &page, begin);
        char *text = json_dumps(list, JSON_COMPACT);
        BUG_IF(!text);
        api_reply_json(x, 200, str_of(text));
        free(text);
        json_decref(list);
    } else {
        api_reply_fault(x, &err);
    }
    json_decref(items);
}

void endpoint_input_items(struct http_exchange *x) {
    struct response_store *s = api_of(x)->responses;
    struct turn *before = NULL;
    struct buf input = {0};
    if (response_store_input(s, responses_tenant(x), id_of(x), &before, &input))
        reply_items(x, before, buf_view(&input));
    else
        reply_none(x);
    response_store_release(s, before);
    buf_release(&input);
}
