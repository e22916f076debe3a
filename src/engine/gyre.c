/* gyre.c - the public functions on requests and events; see gyre.h. */
#include "engine/engine.h"

#include "base/clock.h"
#include "engine/abi.h"

const char *gyre_version(void) { return GYRE_VERSION; }

static void take_defaults(struct gyre_request *r, const struct generation_defaults *d) {
    if (d->do_sample)
        r->temperature = d->temperature >= 0 ? (float)d->temperature : 1;
    if (d->top_p > 0)
        r->top_p = (float)d->top_p;
    if (d->min_p > 0)
        r->min_p = (float)d->min_p;
    if (d->top_k > 0)
        r->top_k = (int32_t)MIN(d->top_k, INT32_MAX);
    if (d->repetition_penalty > 0)
        r->repetition_penalty = (float)d->repetition_penalty;
}

void gyre_request_init(const struct gyre *g, struct gyre_request *request, size_t struct_size) {
    struct gyre_request r = {.max_tokens = -1, .top_p = 1, .repetition_penalty = 1};
    if (g->model)
        take_defaults(&r, &g->model->spec->generation);
    abi_write(&abi_request, &r, request, struct_size);
}

// ---- requests ---------------------------------------------------------------------------------------------------

int gyre_submit(struct gyre *g, const struct gyre_request *request, uint64_t *id, struct gyre_error *err) {
    struct error e = g->failed;
    struct gyre_request asked;
    struct request *r;
    if (g->failed.status != OK || abi_read(&abi_request, request, &asked, &e) != OK ||
        request_new(g, &asked, &r, &e) != OK)
        return engine_report(err, &e);
    engine_accept(g, r);
    *id = r->id;
    return 0;
}

void gyre_cancel(struct gyre *g, uint64_t id) {
    struct request *r = request_table_find(&g->requests, id);
    if (!r)
        return;
    if (r->ended)
        r->finish = r->finish == GYRE_FAILED ? GYRE_FAILED : GYRE_CANCELLED;
    else
        engine_end(g, r, GYRE_CANCELLED, NULL);
}

const char *gyre_cache_miss_name(enum gyre_cache_miss miss) {
    static const char *const names[] = {
        [GYRE_MISS_NONE] = "none",       [GYRE_MISS_DISABLED] = "disabled",  [GYRE_MISS_SHORT] = "short prompt",
        [GYRE_MISS_SCORED] = "scored",   [GYRE_MISS_NEW] = "new text",       [GYRE_MISS_SALT] = "other salt",
        [GYRE_MISS_EVICTED] = "evicted", [GYRE_MISS_WINDOW] = "window gone", [GYRE_MISS_CHECKPOINT] = "no checkpoint",
    };
    BUG_IF((size_t)miss >= ARRAY_LEN(names));
    return names[miss];
}

// ---- events -----------------------------------------------------------------------------------------------------

void engine_free_delivered(struct gyre *g) {
    for (struct request **at = &g->delivered; *at;) {
        struct request *r = *at;
        if (r->sequence.n_in_flight > 0 || engine_is_constrained(g, r)) {
            at = &r->next_ended;
            continue;
        }
        *at = r->next_ended;
        request_free(r);
    }
}

static struct gyre_timing timing_of(const struct request *r) {
    int64_t now = clock_us(), started = r->started_us ? r->started_us : now;
    int64_t first = r->first_token_us ? r->first_token_us : now;
    return (struct gyre_timing){
        .queue_us = started - r->submitted_us,
        .prompt_us = first - started,
        .decode_us = r->first_token_us ? r->last_token_us - first : 0,
        .n_reused = MAX(r->sequence.n_recalled, 0),
        .cache_miss = r->sequence.miss,
        .n_tokens = r->sequence.n_tokens - r->n_prompt,
        .n_predicted_right = r->prediction.n_right,
        .n_predicted_wrong = r->prediction.n_guessed - r->prediction.n_right,
    };
}

/* Takes the first ended request off the list. It is freed by the next poll. */
static struct gyre_event take_done(struct gyre *g) {
    struct request *r = g->ended_head;
    g->ended_head = r->next_ended;
    if (!g->ended_head)
        g->ended_tail = NULL;
    struct gyre_event e = {
        .kind = GYRE_DONE, .id = r->id, .user = r->asked.user, .finish = r->finish, .timing = timing_of(r)};
    if (r->finish == GYRE_FAILED)
        e.error = r->error.text, e.error_of_request = r->error.status == ERR_ARG;
    if (r->pooled_whole && r->finish == GYRE_LENGTH)
        e.pooled = r->pooled;
    g->n_busy--;
    request_table_remove(&g->requests, r);
    r->next_ended = g->delivered;
    g->delivered = r;
    return e;
}

/* After a cancel the events that were not handed out yet are void. */
static bool is_void(const struct gyre *g, const struct gyre_event *e) {
    const struct request *r = request_table_find(&g->requests, e->id);
    return r->ended && r->finish == GYRE_CANCELLED;
}

static int hand_out(struct gyre *g, struct gyre_event *events, int max) {
    int n = 0;
    while (n < max && g->first_event < g->n_events) {
        const struct gyre_event *e = &g->events[g->first_event++];
        if (!is_void(g, e))
            events[n++] = *e;
    }
    while (n < max && g->ended_head)
        events[n++] = take_done(g);
    return n;
}

int gyre_poll(struct gyre *g, struct gyre_event *events, int max) {
    engine_free_delivered(g);
    int n = hand_out(g, events, max);
    if (n > 0 || max <= 0)
        return n;
    if (engine_has_work(g))
        engine_step(g);
    else
        engine_rest(g);
    return hand_out(g, events, max);
}

bool gyre_busy(const struct gyre *g) { return g->n_busy > 0; }
