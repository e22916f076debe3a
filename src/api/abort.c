/* abort.c - POST /abort_requests: ends requests that are in flight.
 *
 *     {"request_ids": ["chatcmpl-...", "the X-Request-Id that was sent"]}  or  {"abort_all": true}
 *
 * Their clients get what there is, with finish_reason "abort", or an error where a dialect has no word for that. With
 * API keys each key ends its own requests only; ids that nothing in flight has are no error, since answers end all the
 * time. */
#include "api/answer/generation.h"
#include "api/endpoints.h"

/* What is to be ended. */
struct wanted {
    bool all;
    json_t *ids;               // an object: id to true
    const struct api_key *key; // NULL: whoever sent them
};

static enum status add_id(json_t *ids, const json_t *id, struct error *err) {
    if (!json_is_string(id))
        return fail(err, ERR_ARG, "request_ids: it must be an array of strings");
    json_object_set_new_nocheck(ids, json_string_value(id), json_true());
    return OK;
}

static enum status read_wanted(const json_t *body, struct wanted *w, struct error *err) {
    json_t *ids, *id;
    size_t i;
    TRY(jv_bool_or(body, "request", "abort_all", false, &w->all, err));
    TRY(jv_array_or_null(body, "request", "request_ids", &ids, err));
    json_array_foreach(ids, i, id) TRY(add_id(w->ids, id, err));
    if (!w->all && !ids)
        return fail(err, ERR_ARG, "request_ids: it is missing; an array of ids, or \"abort_all\": true");
    return OK;
}

static bool is_wanted(const struct wanted *w, const struct api_record *rec) {
    if (!rec->generation || (w->key && w->key != rec->key))
        return false;
    struct str sent = rec->x->request_id;
    return w->all || json_object_get(w->ids, rec->generation->id) || json_object_getn(w->ids, sent.ptr, sent.len);
}

enum { BYTES_AN_ID = sizeof((struct generation *)0)->id + 3 };

/* Takes the lock when `out` has room for the ids of all that are in flight: under it nothing is allocated. */
static void lock_with_room(struct records *r, struct buf *out) {
    for (size_t n_room = 0, n_in_flight;; n_room = n_in_flight) {
        buf_reserve(out, (n_room + 1) * BYTES_AN_ID);
        pthread_mutex_lock(&r->lock);
        n_in_flight = 0;
        for (const struct api_record *rec = r->in_flight; rec; rec = rec->next)
            n_in_flight++;
        if (n_in_flight <= n_room)
            return;
        pthread_mutex_unlock(&r->lock);
    }
}

/* Under the lock a record's answers are not released; the engine does the rest when it gets to it. */
static void abort_wanted(struct api *api, const struct wanted *w, struct buf *out) {
    buf_str(out, STR("{\"aborted\":["));
    bool first = true;
    lock_with_room(&api->records, out);
    for (const struct api_record *rec = api->records.in_flight; rec; rec = rec->next) {
        if (!is_wanted(w, rec))
            continue;
        generation_abort(rec->generation);
        buf_printf(out, "%s\"%s\"", first ? "" : ",", rec->generation->id);
        first = false;
    }
    pthread_mutex_unlock(&api->records.lock);
    buf_str(out, STR("]}"));
}

void endpoint_abort(struct http_exchange *x) {
    json_t *body;
    struct error err;
    if (!api_read_body(x, &body))
        return;
    struct wanted w = {.ids = json_object(), .key = ((const struct api_record *)x->record)->key};
    if (read_wanted(body, &w, &err) == OK) {
        struct buf out = {0};
        abort_wanted(api_of(x), &w, &out);
        api_reply_json(x, 200, buf_view(&out));
        buf_release(&out);
    } else {
        api_reply_fault(x, &err);
    }
    json_decref(w.ids);
    json_decref(body);
}
