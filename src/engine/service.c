/* service.c - see service.h: which of the engines a request goes to, and what they tell together. */
#include "engine/service.h"

#include "engine/engine.h"
#include "engine/lanes/choose.h"
#include "engine/lanes/lane.h"

#include <stdlib.h>
#include <string.h>

struct service {
    struct lane *lanes[MOST_ENGINES];
    int n;
    pthread_mutex_t telling; // listeners
    struct affinity *affinity;
    struct service_guest guest;
    struct gyre_info info; // of all engines: one that is opened anew may have a little more or less of a cache
    int32_t *eos;          // that of info
    struct gyre_request defaults;
    pthread_mutex_t lock; // of `together`
    struct telemetry together;
};

// ---- opening and closing ----------------------------------------------------------------------------------------

static enum status open_lanes(struct service *s, struct gyre *const *engines, int n,
                              const struct service_options *options, struct error *err) {
    struct service_options one = *options;
    enum status st = OK;
    one.max_queued = (options->max_queued + n - 1) / n;
    if (n == 1)
        one.reopen = NULL; // whoever started the process sees that it has failed
    for (int i = 0; i < n; i++)
        if (st == OK)
            st = lane_open(engines[i], i, &one, &s->info, &s->telling, &s->lanes[s->n], err), s->n += st == OK;
        else
            gyre_close(engines[i]);
    return st;
}

/* What outlives an engine that is opened anew. */
static void keep_info(struct service *s, const struct gyre *g) {
    s->info = g->info;
    s->eos = xcalloc((size_t)g->info.n_eos + 1, sizeof *s->eos);
    if (g->info.n_eos > 0)
        memcpy(s->eos, g->info.eos, (size_t)g->info.n_eos * sizeof *s->eos);
    s->info.eos = s->eos;
    s->defaults = gyre_request_default(g);
}

int service_open_several(struct gyre *const *take_engines, int n, const struct service_options *options,
                         struct service **out, struct gyre_error *err) {
    BUG_IF(n < 1 || n > MOST_ENGINES);
    struct service *s = xcalloc(1, sizeof *s);
    struct error e;
    pthread_mutex_init(&s->telling, NULL);
    pthread_mutex_init(&s->lock, NULL);
    s->affinity = affinity_new(take_engines[0]->info.block_size, n);
    telemetry_init(&s->together, take_engines[0]->info.n_tenants);
    keep_info(s, take_engines[0]);
    *out = s;
    if (open_lanes(s, take_engines, n, options, &e) == OK)
        return 0;
    service_close(s);
    *out = NULL;
    return engine_report(err, &e);
}

int service_open(struct gyre *take_engine, const struct service_options *options, struct service **out,
                 struct gyre_error *err) {
    return service_open_several(&take_engine, 1, options, out, err);
}

void service_close(struct service *s) {
    if (!s)
        return;
    for (int i = 0; i < s->n; i++)
        lane_stop(s->lanes[i]); // the guest's threads may wait for what is cancelled
    if (s->guest.close)
        s->guest.close(s->guest.of);
    for (int i = 0; i < s->n; i++)
        lane_close(s->lanes[i]);
    telemetry_release(&s->together);
    affinity_free(s->affinity);
    free(s->eos);
    pthread_mutex_destroy(&s->lock);
    pthread_mutex_destroy(&s->telling);
    free(s);
}

void service_drain(struct service *s) {
    for (int i = 0; i < s->n; i++)
        lane_drain(s->lanes[i]);
}

bool service_is_opening(const struct service *s) {
    bool is_opening = false;
    for (int i = 0; i < s->n; i++)
        is_opening = is_opening || lane_is_opening(s->lanes[i]);
    return is_opening;
}

void service_take_guest(struct service *s, const struct service_guest *guest) { s->guest = *guest; }
struct lane *service_lane(const struct service *s) {
    return s->n == 1 ? s->lanes[0] : NULL;
}

// ---- which engine -----------------------------------------------------------------------------------------------

static void order_lanes(struct service *s, const struct gyre_request *r, int order[MOST_ENGINES]) {
    struct engine_queue queues[MOST_ENGINES];
    for (int i = 0; i < s->n; i++)
        queues[i] = (struct engine_queue){&lane_telemetry(s->lanes[i])->queue, lane_has_failed(s->lanes[i])};
    engines_order(s->affinity, queues, s->n, r, order);
}

/* An engine that is full, or has failed, leaves the request to the next. Told is the first reason of one that
 * works, which may have room later. */
static int submit(struct service *s, const struct gyre_request *request, void *user, bool goes_on, struct answer **out,
                  struct gyre_error *err) {
    int order[MOST_ENGINES] = {0};
    struct error told = {.status = ERR_DEVICE}, e;
    if (s->n > 1)
        order_lanes(s, request, order);
    for (int i = 0; i < s->n; i++) {
        enum status st = lane_submit(s->lanes[order[i]], request, user, goes_on, out, &e);
        if (st == OK && s->n > 1)
            affinity_note(s->affinity, request, order[i]);
        if (st == OK)
            return 0;
        if (told.status == ERR_DEVICE)
            told = e;
        if (st != ERR_FULL && st != ERR_DEVICE)
            break;
    }
    return engine_report(err, &told);
}

int service_submit(struct service *s, const struct gyre_request *request, void *user, struct answer **out,
                   struct gyre_error *err) {
    return submit(s, request, user, false, out, err);
}

int service_submit_more(struct service *s, const struct gyre_request *request, void *user, struct answer **out,
                        struct gyre_error *err) {
    return submit(s, request, user, true, out, err);
}

// ---- looking ----------------------------------------------------------------------------------------------------

static void add_state(struct service_state *to, const struct service_state *of) {
    to->n_running += of->n_running, to->n_waiting += of->n_waiting, to->n_paused += of->n_paused;
    to->n_queued += of->n_queued, to->n_steps += of->n_steps, to->n_preempted += of->n_preempted;
    to->n_forced_tokens += of->n_forced_tokens;
    to->n_drafts += of->n_drafts, to->n_guessed += of->n_guessed, to->n_accepted += of->n_accepted;
    for (int i = 0; i < MOST_GUESSES; i++)
        to->n_right_at[i] += of->n_right_at[i];
    for (int i = 0; i < N_DRAFT_OFF; i++)
        to->n_draft_off[i] += of->n_draft_off[i];
    to->n_held += of->n_held, to->n_late_steps += of->n_late_steps, to->mask_wait_us += of->mask_wait_us;
    to->n_prompt_tokens += of->n_prompt_tokens, to->n_generated_tokens += of->n_generated_tokens;
    to->n_reused_tokens += of->n_reused_tokens;
    to->n_restarts += of->n_restarts, to->n_reopen_faults += of->n_reopen_faults, to->n_given_up += of->n_given_up;
    to->kv_usage = MAX(to->kv_usage, of->kv_usage);
    for (int i = 0; i < to->n_device; i++)
        to->device[i].value += of->device[i].value;
    to->queue_reason = to->queue_reason ? to->queue_reason : of->queue_reason;
    to->last_step_us = MAX(to->last_step_us, of->last_step_us);
    if (of->step_started_us && (!to->step_started_us || of->step_started_us < to->step_started_us))
        to->step_started_us = of->step_started_us;
    to->draining = to->draining || of->draining;
}

void service_state(const struct service *s, struct service_state *out) {
    struct service_state one;
    lane_state(s->lanes[0], out);
    int n_failed = out->failed;
    for (int i = 1; i < s->n; i++) {
        lane_state(s->lanes[i], &one);
        add_state(out, &one);
        if (one.failed && n_failed++ == 0)
            memcpy(out->error, one.error, sizeof out->error);
    }
    if (s->guest.count)
        s->guest.count(s->guest.of, out);
    out->n_engines = s->n;
    out->n_failed = n_failed;
    out->failed = n_failed == s->n;
}

void service_state_of(const struct service *s, int engine, struct service_state *out) {
    BUG_IF(engine < 0 || engine >= s->n);
    lane_state(s->lanes[engine], out);
}

const struct telemetry *service_telemetry(const struct service *s) {
    struct service *own = (struct service *)s;
    const struct telemetry *all[MOST_ENGINES];
    if (s->n == 1)
        return lane_telemetry(s->lanes[0]);
    for (int i = 0; i < s->n; i++)
        all[i] = lane_telemetry(s->lanes[i]);
    pthread_mutex_lock(&own->lock);
    telemetry_sum(&own->together, all, s->n);
    pthread_mutex_unlock(&own->lock);
    return &s->together;
}

const struct queue_model *service_queue(const struct service *s, int tenant) {
    const struct queue_model *least = NULL;
    for (int i = 0; i < s->n; i++) {
        const struct queue_model *q = &lane_telemetry(s->lanes[i])->queue;
        if (lane_has_failed(s->lanes[i]))
            continue;
        if (!least || queue_model_wait_us(q, tenant) < queue_model_wait_us(least, tenant))
            least = q;
    }
    return least ? least : &lane_telemetry(s->lanes[0])->queue;
}

int service_expert_loads(const struct service *s, int64_t *out, int most) {
    int n = 0;
    int64_t *one = xcalloc((size_t)most + 1, sizeof *one);
    memset(out, 0, (size_t)most * sizeof *out);
    for (int i = 0; i < s->n; i++) {
        int mine = lane_expert_loads(s->lanes[i], one, most);
        n = MAX(n, mine);
        for (int e = 0; e < MIN(mine, most); e++)
            out[e] += one[e];
    }
    free(one);
    return MIN(n, most);
}

const struct gyre_info *service_info(const struct service *s) { return &s->info; }
struct gyre_request service_request_default(const struct service *s) {
    return s->defaults;
}
