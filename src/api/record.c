/* record.c - see record.h. */
#include "api/record.h"

#include "api/answer/generation.h"
#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static const int64_t n_bounds[] = {1, 2, 5, 10, 20}; // vLLM's

void records_init(struct records *r) {
    *r = (struct records){.recorder = xcalloc(FLIGHT_RECORDER_SIZE, sizeof *r->recorder)};
    histogram_init(&r->n_asked, n_bounds, ARRAY_LEN(n_bounds));
    pthread_mutex_init(&r->lock, NULL);
}

void records_release(struct records *r) {
    free(r->recorder);
    pthread_mutex_destroy(&r->lock);
}

// ---- what there is to say ---------------------------------------------------------------------------------------

static void copy_cut(char *to, size_t n, struct str from) {
    snprintf(to, n, "%.*s", (int)MIN(from.len, n - 1), from.ptr ? from.ptr : "");
}

static const char *method_name_of(enum http_method m) {
    static const char *const names[] = {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "OTHER"};
    return names[m];
}

static void add_choice(struct record_entry *e, const struct api_record *rec, const struct answer *a) {
    const struct request_progress *p = &a->progress;
    int64_t started = counter_get(&p->started_us), first = counter_get(&p->first_token_us);
    e->n_generated += atomic_load_explicit(&a->n_tokens, memory_order_acquire);
    e->queue_us = MAX(e->queue_us, (started ? started : clock_us()) - p->submitted_us);
    e->predicted_us = MAX(e->predicted_us, p->predicted_us);
    if (first && (e->first_token_us == 0 || first - rec->began_us < e->first_token_us))
        e->first_token_us = first - rec->began_us;
    e->n_steps += counter_get(&p->n_steps);
    e->sum_batch += counter_get(&p->sum_batch);
    e->max_batch = MAX(e->max_batch, counter_get(&p->max_batch));
    e->n_preempted += counter_get(&p->n_preempted);
    e->n_cached = MAX(e->n_cached, counter_get(&p->n_reused));
    if (!started)
        return;
    if (!e->started) // the others mostly find what the first has computed
        e->cache_miss = counter_get(&p->cache_miss);
    e->started = true;
    e->queue_reason = MAX(e->queue_reason, counter_get(&p->queue_reason));
}

static void add_generation(struct record_entry *e, const struct api_record *rec, const struct generation *g) {
    e->generates = true;
    e->grammar_us = rec->grammar_us;
    e->n_choices = g->n_choices;
    e->n_prompt = g->n_prompt_tokens;
    copy_cut(e->id, sizeof e->id, str_of(g->id));
    for (int i = 0; i < g->n_choices; i++)
        add_choice(e, rec, g->choices[i].answer);
}

/* Under the lock. */
void record_show(const struct api_record *rec, struct record_entry *e) {
    const struct http_exchange *x = rec->x;
    *e = rec->generated;
    if (rec->generation)
        add_generation(e, rec, rec->generation);
    e->began_unix_us = rec->began_unix_us;
    e->total_us = clock_us() - rec->began_us;
    copy_cut(e->request_id, sizeof e->request_id, x->request_id);
    copy_cut(e->client, sizeof e->client, str_of(x->client));
    copy_cut(e->method, sizeof e->method, str_of(method_name_of(x->method)));
    copy_cut(e->path, sizeof e->path, x->path);
    copy_cut(e->key, sizeof e->key, str_of(rec->key ? rec->key->name : ""));
}

static const char *ended_as(const struct http_outcome *o) {
    if (o->complete && o->gone != HTTP_GONE_STOPPING) // whose answers are cut short, and told so
        return "complete";
    switch (o->gone) {
    case HTTP_GONE_SLOW: return "client slow";
    case HTTP_GONE_STOPPING: return "shutdown";
    case HTTP_GONE_CLIENT: break;
    }
    return "client left";
}

// ---- its life ---------------------------------------------------------------------------------------------------

static int64_t unix_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static struct api_record *record_new(struct http_exchange *x) {
    struct api_record *rec = arena_alloc(&x->arena, sizeof *rec);
    *rec = (struct api_record){.x = x, .began_us = clock_us(), .began_unix_us = unix_us()};
    return rec;
}

struct api_record *record_begin(struct http_exchange *x) {
    struct records *r = &api_of(x)->records;
    struct api_record *rec = x->record = record_new(x);
    pthread_mutex_lock(&r->lock);
    rec->next = r->in_flight;
    if (r->in_flight)
        r->in_flight->prev = rec;
    r->in_flight = rec;
    pthread_mutex_unlock(&r->lock);
    return rec;
}

static void leave_list(struct records *r, struct api_record *rec) {
    if (r->in_flight != rec && !rec->prev)
        return; // http refused it before it came in
    *(rec->prev ? &rec->prev->next : &r->in_flight) = rec->next;
    if (rec->next)
        rec->next->prev = rec->prev;
}

/* Probes and scrapes that were answered would be most of the log. */
static bool is_noise(const struct http_exchange *x, int status) {
    return status == 200 && (str_eq(x->path, STR("/metrics")) || str_starts(x->path, STR("/health")));
}

static void record_over(struct api_record *rec) {
    struct api *api = api_of(rec->x);
    struct records *r = &api->records;
    struct record_entry e;
    pthread_mutex_lock(&r->lock);
    leave_list(r, rec);
    record_show(rec, &e);
    e.total_us = rec->outcome.duration_us;
    e.status = rec->outcome.status;
    e.ended = ended_as(&rec->outcome);
    e.body_bytes = rec->outcome.body_bytes;
    e.sent_bytes = rec->outcome.sent_bytes;
    r->n_by_status[e.status]++;
    bool noise = is_noise(rec->x, e.status);
    if (!noise)
        r->recorder[r->n_finished++ % FLIGHT_RECORDER_SIZE] = e;
    pthread_mutex_unlock(&r->lock);
    if (rec->entered)
        keyring_leave(api->options.keyring, rec->key);
    if (!noise)
        request_log_write(&api->log, &e);
}

void record_generating(struct http_exchange *x, struct generation *g) {
    struct records *r = &api_of(x)->records;
    pthread_mutex_lock(&r->lock);
    ((struct api_record *)x->record)->generation = g;
    pthread_mutex_unlock(&r->lock);
}

static const char *finish_of_all(const struct generation *g) {
    const char *finish = NULL;
    for (int i = 0; i < g->n_choices; i++) {
        const struct choice *c = &g->choices[i];
        const char *f = c->answer->finish == GYRE_FAILED ? "error" : c->finish_reason ? c->finish_reason : "abort";
        if (finish && strcmp(finish, f) != 0)
            return "mixed";
        finish = f;
    }
    return finish;
}

void record_generated(struct http_exchange *x) {
    struct records *r = &api_of(x)->records;
    struct api_record *rec = x->record;
    pthread_mutex_lock(&r->lock);
    const struct generation *g = rec->generation;
    rec->generation = NULL;
    if (g) {
        add_generation(&rec->generated, rec, g);
        rec->generated.finish = finish_of_all(g);
        for (int i = 0; i < g->n_prompts; i++)
            histogram_add(&r->n_asked, g->n_shown / g->n_prompts);
    }
    pthread_mutex_unlock(&r->lock);
    if (rec->key)
        keyring_charge(api_of(x)->options.keyring, rec->key,
                       MAX(rec->generated.n_prompt + rec->generated.n_generated, rec->n_text_tokens) - rec->charged);
    rec->charged = 0;
    if (rec->sent)
        record_over(rec);
}

void record_finished(struct http_exchange *x, const struct http_outcome *outcome) {
    struct api_record *rec = x->record ? x->record : record_new(x);
    rec->outcome = *outcome;
    rec->sent = true;
    json_decref(rec->body);
    rec->body = NULL;
    jv_numbers_release(&rec->numbers);
    if (!rec->generation)
        record_over(rec);
}
