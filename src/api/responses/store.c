/* store.c - see store.h. */
#include "api/responses/store.h"

#include "base/guard.h"

#include <pthread.h>
#include <stdlib.h>

enum { MOST_TENANTS = 4096, BUCKETS = 4096 };

struct turn {
    struct turn *before; // held
    int n_holds;
    int32_t tenant;
    size_t n_bytes;
    char *input, *output; // arrays of items
};

struct entry {
    struct entry *older, *newer, *next_of_bucket;
    char *id, *body;
    int32_t tenant;
    size_t n_bytes; // of the entry, without its turn
    bool goes_on;
    struct turn *turn; // held
};

struct response_store {
    pthread_mutex_t lock;
    size_t max_bytes, n_bytes, n_entries;
    struct entry *oldest, *newest;
    struct entry *buckets[BUCKETS];
    size_t of_tenant[MOST_TENANTS];
};

struct response_store *response_store_open(size_t max_bytes) {
    struct response_store *s = xcalloc(1, sizeof *s);
    pthread_mutex_init(&s->lock, NULL);
    s->max_bytes = max_bytes;
    return s;
}

size_t response_store_max(const struct response_store *s) { return s->max_bytes; }

// ---- turns ------------------------------------------------------------------------------------------------------

static void account(struct response_store *s, int32_t tenant, size_t plus, size_t minus) {
    size_t *used = &s->of_tenant[(uint32_t)tenant % MOST_TENANTS];
    *used += plus - minus;
    s->n_bytes += plus;
    s->n_bytes -= minus;
}

/* Under the lock. A conversation may be thousands of turns long, so without recursion. */
static void release_turn(struct response_store *s, struct turn *t) {
    while (t && --t->n_holds == 0) {
        struct turn *before = t->before;
        account(s, t->tenant, 0, t->n_bytes);
        free(t->input);
        free(t->output);
        free(t);
        t = before;
    }
}

void response_store_release(struct response_store *s, struct turn *t) {
    pthread_mutex_lock(&s->lock);
    release_turn(s, t);
    pthread_mutex_unlock(&s->lock);
}

static char *copy(struct str s) {
    char *c = xmalloc(s.len + 1);
    memcpy(c, s.ptr ? s.ptr : "", s.len);
    c[s.len] = '\0';
    return c;
}

static struct turn *new_turn(struct response_store *s, const struct stored_response *r) {
    struct turn *t = xcalloc(1, sizeof *t);
    *t = (struct turn){r->before,      1, r->tenant, sizeof *t + r->input.len + r->output.len, copy(r->input),
                       copy(r->output)};
    if (t->before)
        t->before->n_holds++;
    account(s, t->tenant, t->n_bytes, 0);
    return t;
}

static enum status append_items(const char *text, size_t *budget, json_t *items, struct error *err) {
    json_t *array;
    TRY(jv_parse_within(str_of(text), "previous_response_id", 0, budget, &array, err));
    json_array_extend(items, array);
    json_decref(array);
    return OK;
}

enum status turn_items(const struct turn *t, size_t *budget, json_t *items, struct error *err) {
    size_t n = 0;
    for (const struct turn *at = t; at; at = at->before)
        n++;
    const struct turn **all = xcalloc(n + 1, sizeof *all); // oldest first
    for (const struct turn *at = t; at; at = at->before)
        all[--n] = at;
    enum status st = OK;
    for (; st == OK && all[n]; n++) {
        st = append_items(all[n]->input, budget, items, err);
        if (st == OK)
            st = append_items(all[n]->output, budget, items, err);
    }
    free(all);
    return st;
}

// ---- entries ----------------------------------------------------------------------------------------------------

static struct entry **slot_of(struct response_store *s, int32_t tenant, const char *id) {
    uint64_t hash = 14695981039346656037u; // FNV-1a: ids are random, and ours
    for (const char *p = id; *p; p++)
        hash = (hash ^ (unsigned char)*p) * 1099511628211u;
    struct entry **at = &s->buckets[hash % BUCKETS];
    while (*at && !((*at)->tenant == tenant && strcmp((*at)->id, id) == 0))
        at = &(*at)->next_of_bucket;
    return at;
}

static void drop(struct response_store *s, struct entry **slot) {
    struct entry *e = *slot;
    *slot = e->next_of_bucket;
    *(e->older ? &e->older->newer : &s->oldest) = e->newer;
    *(e->newer ? &e->newer->older : &s->newest) = e->older;
    account(s, e->tenant, 0, e->n_bytes);
    release_turn(s, e->turn);
    s->n_entries--;
    free(e->id);
    free(e->body);
    free(e);
}

static void add(struct response_store *s, struct entry **slot, const struct stored_response *r) {
    struct entry *e = xcalloc(1, sizeof *e);
    char *id = xstrdup(r->id), *body = copy(r->body);
    struct turn *turn = new_turn(s, r); // the last thing for which memory may run out
    *e = (struct entry){.older = s->newest,
                        .id = id,
                        .body = body,
                        .tenant = r->tenant,
                        .n_bytes = sizeof *e + strlen(r->id) + r->body.len,
                        .goes_on = r->goes_on,
                        .turn = turn};
    *slot = e;
    *(s->newest ? &s->newest->newer : &s->oldest) = e;
    s->newest = e;
    account(s, e->tenant, e->n_bytes, 0);
    s->n_entries++;
}

static struct entry *oldest_of(const struct response_store *s, size_t tenant) {
    struct entry *e = s->oldest;
    while (e && (uint32_t)e->tenant % MOST_TENANTS != tenant)
        e = e->newer;
    return e;
}

/* Until all is within the bound. A turn that later ones keep goes with the last of them, so it may take several. What a
 * request in flight holds belongs to no response any more; then the oldest of all goes. */
static void make_room(struct response_store *s) {
    while (s->n_bytes > s->max_bytes && s->oldest) {
        size_t most = 0;
        for (size_t i = 1; i < MOST_TENANTS; i++)
            if (s->of_tenant[i] > s->of_tenant[most])
                most = i;
        const struct entry *e = oldest_of(s, most);
        e = e ? e : s->oldest;
        drop(s, slot_of(s, e->tenant, e->id));
    }
}

bool response_store_put(struct response_store *s, const struct stored_response *r) {
    bool fits = r->body.len + r->input.len + r->output.len <= s->max_bytes;
    alloc_scope_lock(&s->lock);
    bool is_there = *slot_of(s, r->tenant, r->id) != NULL;
    if (is_there)
        drop(s, slot_of(s, r->tenant, r->id));
    if (fits && is_there == r->replaces) {
        add(s, slot_of(s, r->tenant, r->id), r);
        make_room(s);
    }
    bool stored = *slot_of(s, r->tenant, r->id) != NULL;
    alloc_scope_unlock(&s->lock);
    return stored;
}

void response_store_free(struct response_store *s) {
    if (!s)
        return;
    while (s->oldest)
        drop(s, slot_of(s, s->oldest->tenant, s->oldest->id));
    pthread_mutex_destroy(&s->lock);
    free(s);
}

// ---- looking ----------------------------------------------------------------------------------------------------

static struct turn *hold(struct turn *t) {
    if (t)
        t->n_holds++;
    return t;
}

enum status response_store_find(struct response_store *s, int32_t tenant, const char *id, struct turn **out,
                                struct error *err) {
    alloc_scope_lock(&s->lock);
    const struct entry *e = *slot_of(s, tenant, id);
    bool is_there = e != NULL, goes_on = e && e->goes_on;
    *out = is_there && !goes_on ? hold(e->turn) : NULL;
    alloc_scope_unlock(&s->lock);
    if (!is_there)
        return fail(
            err, ERR_ARG,
            "previous_response_id: there is no response \"%.80s\"; what is stored is bounded, and gone with the server",
            id);
    return goes_on ? fail(err, ERR_ARG, "previous_response_id: the response \"%.80s\" is not over yet", id) : OK;
}

void response_store_fail(struct response_store *s, int32_t tenant, const char *id) {
    static const char going[] = "\"status\":\"in_progress\"", failed[] = "\"status\":\"failed\"     ";
    _Static_assert(sizeof going == sizeof failed, "one is written over the other");
    pthread_mutex_lock(&s->lock);
    struct entry *e = *slot_of(s, tenant, id);
    char *at = e && e->goes_on ? strstr(e->body, going) : NULL; // the first is its own (stored.c)
    if (at) {
        memcpy(at, failed, strlen(failed));
        e->goes_on = false;
    }
    pthread_mutex_unlock(&s->lock);
}

bool response_store_body(struct response_store *s, int32_t tenant, const char *id, struct buf *body, bool *goes_on) {
    alloc_scope_lock(&s->lock);
    const struct entry *e = *slot_of(s, tenant, id);
    if (e) {
        buf_str(body, str_of(e->body));
        *goes_on = e->goes_on;
    }
    alloc_scope_unlock(&s->lock);
    return e != NULL;
}

bool response_store_input(struct response_store *s, int32_t tenant, const char *id, struct turn **before,
                          struct buf *input) {
    alloc_scope_lock(&s->lock);
    const struct entry *e = *slot_of(s, tenant, id);
    if (e) {
        *before = hold(e->turn->before);
        buf_str(input, str_of(e->turn->input));
    }
    alloc_scope_unlock(&s->lock);
    return e != NULL;
}

bool response_store_delete(struct response_store *s, int32_t tenant, const char *id) {
    pthread_mutex_lock(&s->lock);
    struct entry **slot = slot_of(s, tenant, id);
    bool is_there = *slot != NULL;
    if (is_there)
        drop(s, slot);
    pthread_mutex_unlock(&s->lock);
    return is_there;
}

void response_store_size(struct response_store *s, size_t *bytes, size_t *n) {
    pthread_mutex_lock(&s->lock);
    *bytes = s->n_bytes;
    *n = s->n_entries;
    pthread_mutex_unlock(&s->lock);
}
