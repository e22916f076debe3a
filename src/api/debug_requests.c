/* debug_requests.c - GET /debug/requests: what is in flight, and the last requests that are over, newest first.
 *
 * Everything is copied under the lock and written after it, so that a look does not hold up the ends of others. With
 * API keys each key sees its own requests: who else asks, from where and how much, is not its business. */
#include "api/endpoints.h"

#include <stdlib.h>

/* A copy of what may be seen: the in-flight ones, then the finished ones. */
struct look {
    struct record_entry *entries; // [n]
    size_t n, n_in_flight;
};

static void add(struct look *l, const struct record_entry *e, const char *key) {
    if (key && strcmp(e->key, key) != 0)
        return;
    l->entries[l->n] = *e;
    if (key && e->cache_miss == GYRE_MISS_SALT) // that somebody else sent the same text is not this key's business
        l->entries[l->n].cache_miss = GYRE_MISS_NEW;
    l->n++;
}

/* Takes the lock when there is room for all that is in flight: under it nothing is allocated. */
static void lock_with_room(struct records *r, struct look *l) {
    *l = (struct look){0};
    for (size_t n_room = 0, n_in_flight;; n_room = n_in_flight) {
        free(l->entries);
        l->entries = NULL;
        l->entries = xcalloc(n_room + FLIGHT_RECORDER_SIZE, sizeof *l->entries);
        pthread_mutex_lock(&r->lock);
        n_in_flight = 0;
        for (const struct api_record *rec = r->in_flight; rec; rec = rec->next)
            n_in_flight++;
        if (n_in_flight <= n_room)
            return;
        pthread_mutex_unlock(&r->lock);
    }
}

static void take_look(struct records *r, const char *key, struct look *l) {
    lock_with_room(r, l);
    for (const struct api_record *rec = r->in_flight; rec; rec = rec->next) {
        struct record_entry e;
        record_show(rec, &e);
        add(l, &e, key);
    }
    l->n_in_flight = l->n;
    for (uint64_t i = 0; i < MIN(r->n_finished, FLIGHT_RECORDER_SIZE); i++)
        add(l, &r->recorder[(r->n_finished - 1 - i) % FLIGHT_RECORDER_SIZE], key);
    pthread_mutex_unlock(&r->lock);
}

static void append_list(struct buf *out, const struct record_entry *e, size_t n) {
    buf_push(out, '[');
    for (size_t i = 0; i < n; i++) {
        buf_str(out, i ? STR(",\n") : STR("\n"));
        record_append_json(out, &e[i]);
    }
    buf_push(out, ']');
}

void endpoint_debug_requests(struct http_exchange *x) {
    struct api *api = api_of(x);
    struct service_state state;
    struct look look;
    struct buf body = {0};
    service_state(api->service, &state);
    const struct api_key *key = ((const struct api_record *)x->record)->key;
    take_look(&api->records, key ? key->name : NULL, &look);
    for (size_t i = 0; i < look.n_in_flight; i++)
        if (!look.entries[i].started)
            look.entries[i].queue_reason = state.queue_reason;
    buf_str(&body, STR("{\"in_flight\":"));
    append_list(&body, look.entries, look.n_in_flight);
    buf_str(&body, STR(",\n\"finished\":"));
    append_list(&body, look.entries + look.n_in_flight, look.n - look.n_in_flight);
    buf_str(&body, STR("}\n"));
    api_reply_json(x, 200, buf_view(&body));
    free(look.entries);
    buf_release(&body);
}
