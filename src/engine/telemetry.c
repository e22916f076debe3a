/* telemetry.c - see telemetry.h.
 *
 * The bounds are those of vLLM's histograms, so that quantiles of the two can be compared, with finer ones before them:
 * a small model has a token every millisecond, and all of it would fall into vLLM's first bucket. */
#include "engine/engine.h"

#include "base/clock.h"

#include <stddef.h>

static const char *const queue_reasons[N_ADMISSIONS] = {"none",       "max_num_seqs",  "token_budget", "kv_cache",
                                                        "preemption", "shared_prompt", "steps_ahead"};
const char *queue_reason_name(int64_t reason) { return queue_reasons[reason]; }

const char *const finished_reason_name[N_FINISHED_REASONS] = {"stop", "length", "abort", "error"};

#define MS(x) ((int64_t)((x)*1000.0))
static const int64_t first_token_bounds[] = {
    MS(0.25),  MS(0.5),   MS(1),     MS(2.5),   MS(5),      MS(10),     MS(20),     MS(40),   MS(60),
    MS(80),    MS(100),   MS(250),   MS(500),   MS(750),    MS(1000),   MS(2500),   MS(5000), MS(7500),
    MS(10000), MS(20000), MS(40000), MS(80000), MS(160000), MS(640000), MS(2560000)};
static const int64_t token_bounds[] = {MS(0.1),   MS(0.25),  MS(0.5),   MS(1),    MS(2.5),  MS(5),    MS(10),
                                       MS(25),    MS(50),    MS(75),    MS(100),  MS(150),  MS(200),  MS(300),
                                       MS(400),   MS(500),   MS(750),   MS(1000), MS(2500), MS(5000), MS(7500),
                                       MS(10000), MS(20000), MS(40000), MS(80000)};
static const int64_t request_bounds[] = {
    MS(1),     MS(5),     MS(10),     MS(50),     MS(100),    MS(300),    MS(500),     MS(800),    MS(1000),
    MS(1500),  MS(2000),  MS(2500),   MS(5000),   MS(10000),  MS(15000),  MS(20000),   MS(30000),  MS(40000),
    MS(50000), MS(60000), MS(120000), MS(240000), MS(480000), MS(960000), MS(1920000), MS(7680000)};
static const int64_t length_bounds[] = {1,    2,    5,     10,    20,    50,     100,    200,    500,    1000,
                                        2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000};
static const int64_t iteration_bounds[] = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};

#define INIT(h, bounds) histogram_init(&(h), bounds, ARRAY_LEN(bounds))

void telemetry_init(struct telemetry *t, int n_tenants) {
    *t = (struct telemetry){0};
    queue_model_init(&t->queue, n_tenants);
    INIT(t->time_to_first_token, first_token_bounds);
    INIT(t->inter_token, token_bounds);
    INIT(t->time_per_token, token_bounds);
    INIT(t->end_to_end, request_bounds);
    INIT(t->queue_time, request_bounds);
    INIT(t->inference_time, request_bounds);
    INIT(t->prefill_time, request_bounds);
    INIT(t->decode_time, request_bounds);
    INIT(t->prompt_tokens, length_bounds);
    INIT(t->generation_tokens, length_bounds);
    INIT(t->max_tokens, length_bounds);
    INIT(t->computed_tokens, length_bounds);
    INIT(t->iteration_tokens, iteration_bounds);
}

void telemetry_release(struct telemetry *t) { queue_model_release(&t->queue); }

#define AT(name) offsetof(struct telemetry, name)
static const size_t histograms[] = {
    AT(time_to_first_token), AT(inter_token),     AT(time_per_token),  AT(end_to_end),    AT(queue_time),
    AT(inference_time),      AT(prefill_time),    AT(decode_time),     AT(prompt_tokens), AT(generation_tokens),
    AT(max_tokens),          AT(computed_tokens), AT(iteration_tokens)};
#undef AT

static struct histogram *histogram_at(const struct telemetry *t, size_t at) {
    return (struct histogram *)(void *)((char *)(uintptr_t)t + at);
}

static int64_t count_of(const struct telemetry *const *of, int n, size_t at, int bucket) {
    int64_t sum = 0;
    for (int k = 0; k < n; k++)
        sum += counter_get(&histogram_at(of[k], at)->counts[bucket]);
    return sum;
}

void telemetry_sum(struct telemetry *to, const struct telemetry *const *of, int n) {
    for (size_t i = 0; i < ARRAY_LEN(histograms); i++) {
        struct histogram *h = histogram_at(to, histograms[i]);
        int64_t sum = 0;
        for (int b = 0; b <= h->n; b++)
            counter_set(&h->counts[b], count_of(of, n, histograms[i], b));
        for (int k = 0; k < n; k++)
            sum += counter_get(&histogram_at(of[k], histograms[i])->sum);
        counter_set(&h->sum, sum);
    }
    for (int i = 0; i < N_FINISHED_REASONS; i++) {
        int64_t sum = 0;
        for (int k = 0; k < n; k++)
            sum += counter_get(&of[k]->finished[i]);
        counter_set(&to->finished[i], sum);
    }
}

static void note_start(struct gyre *g, const struct request *r, int64_t now) {
    struct request_progress *p = r->progress;
    counter_set(&p->queue_reason, r->accepted_step < g->n_steps ? g->telemetry->blocked : ADMITTED_ALL);
    counter_set(&p->n_reused, MAX(r->sequence.n_recalled, 0));
    counter_set(&p->cache_miss, r->sequence.miss);
    counter_set(&p->started_us, now);
    queue_model_leave(&g->telemetry->queue, p->tenant, p->n_prompt);
    queue_model_waited(&g->telemetry->queue, p->plain_us, now - p->submitted_us);
}

static void note_in_step(struct gyre *g, const struct request *r, int64_t now) {
    struct request_progress *p = r->progress;
    if (!p)
        return;
    if (counter_get(&p->started_us) == 0)
        note_start(g, r, now);
    counter_add(&p->n_steps, 1);
    counter_add(&p->sum_batch, g->scheduler.n_step);
    counter_set(&p->max_batch, MAX(counter_get(&p->max_batch), g->scheduler.n_step));
    counter_set(&p->n_preempted, r->sequence.n_preempted);
}

void telemetry_step(struct gyre *g) {
    if (!g->telemetry)
        return;
    int64_t now = clock_us();
    for (int i = 0; i < g->scheduler.n_step; i++)
        note_in_step(g, g->scheduler.step[i]->owner, now);
    g->telemetry->blocked = g->scheduler.blocked;
    queue_model_step(&g->telemetry->queue, &g->scheduler);
}

void telemetry_iteration(struct telemetry *t) {
    if (t->n_iteration > 0)
        histogram_add(&t->iteration_tokens, t->n_iteration);
    t->n_iteration = 0;
}

void telemetry_token(struct telemetry *t, struct request_progress *p, int64_t *last_us, int64_t now_us) {
    t->n_iteration++;
    if (*last_us == 0) {
        t->n_iteration += p->n_prompt;
        counter_set(&p->first_token_us, now_us);
        histogram_add(&t->time_to_first_token, now_us - p->submitted_us);
    } else {
        histogram_add(&t->inter_token, now_us - *last_us);
    }
    *last_us = now_us;
}

void telemetry_finished(struct telemetry *t, const struct request_progress *p, const struct gyre_timing *timing,
                        int64_t max_tokens, enum finished_reason why) {
    counter_add(&t->finished[why], 1);
    histogram_add(&t->end_to_end, clock_us() - p->submitted_us);
    histogram_add(&t->prompt_tokens, p->n_prompt);
    histogram_add(&t->generation_tokens, timing->n_tokens);
    histogram_add(&t->max_tokens, max_tokens);
    queue_model_end(&t->queue);
    if (counter_get(&p->started_us) == 0)
        queue_model_leave(&t->queue, p->tenant, p->n_prompt);
    else if (why != FINISHED_ABORT)
        queue_model_answered(&t->queue, timing->n_tokens);
    if (counter_get(&p->started_us) == 0)
        return; // it never ran, so it has no times but the one it waited, and that is not how long others wait
    histogram_add(&t->queue_time, timing->queue_us);
    histogram_add(&t->prefill_time, timing->prompt_us);
    histogram_add(&t->decode_time, timing->decode_us);
    histogram_add(&t->inference_time, timing->prompt_us + timing->decode_us);
    histogram_add(&t->computed_tokens, p->n_prompt - timing->n_reused);
    if (timing->n_tokens > 1)
        histogram_add(&t->time_per_token, timing->decode_us / (timing->n_tokens - 1));
}
