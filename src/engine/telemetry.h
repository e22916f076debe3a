/* telemetry.h - what the engine thread measures while it serves: histograms over all requests, and how far each has
 * come.
 *
 * All of it is written by the engine thread alone, with plain stores, and read by any other without a lock; see
 * base/histogram.h. Nothing here decides anything. */
#pragma once

#include "base/histogram.h"
#include "engine/queue_model.h"

#include <stdbool.h>

/* Of enum admission (sched/scheduler.h): why a request did not run in the first step after it came, "none" if it did.
 */
const char *queue_reason_name(int64_t reason);

/* How far one request has come; in its answer, so alive until the listener releases that. */
struct request_progress {
    int64_t submitted_us;           // this and what follows to tenant: set before it is shared
    int64_t predicted_us, plain_us; // the wait for its first step: see queue_model_wait_us, queue_model_plain_us
    int64_t n_prompt;
    int32_t tenant;
    struct counter started_us, first_token_us; // clock_us(); 0: not yet
    struct counter n_steps, n_preempted;
    struct counter sum_batch, max_batch; // sequences in its steps
    struct counter queue_reason;         // enum admission
    struct counter n_reused, cache_miss; // as in struct gyre_timing, once it has started
};

enum finished_reason { FINISHED_STOP, FINISHED_LENGTH, FINISHED_ABORT, FINISHED_ERROR, N_FINISHED_REASONS };
extern const char *const finished_reason_name[N_FINISHED_REASONS];

/* Times in microseconds. */
struct telemetry {
    struct histogram time_to_first_token, inter_token, end_to_end, queue_time, inference_time, prefill_time,
        decode_time, time_per_token;
    struct histogram prompt_tokens, generation_tokens, max_tokens, computed_tokens; // of a request
    struct histogram
        iteration_tokens; // of a step: generated, and prompts whose first token it made, as vLLM counts them
    int64_t n_iteration;  // of the one whose tokens are told; the engine thread's own
    struct counter finished[N_FINISHED_REASONS];
    struct queue_model queue;
    int blocked; // enum admission, of the step before; the engine thread's own
};

void telemetry_init(struct telemetry *t, int n_tenants);
void telemetry_release(struct telemetry *t);

/* What n engines have measured, added up, but for queues; readers of *to see each number before or after. */
void telemetry_sum(struct telemetry *to, const struct telemetry *const *of, int n);

struct gyre;
struct gyre_timing;

/* The scheduler has planned a step. Called before started_us of those that are new in it is set. */
void telemetry_step(struct gyre *g);

/* The tokens of a step have been told. */
void telemetry_iteration(struct telemetry *t);

/* A token of a request: *last_us is when the one before came, 0 for the first, and is moved on. */
void telemetry_token(struct telemetry *t, struct request_progress *p, int64_t *last_us, int64_t now_us);

/* A request has ended; max_tokens is its own. */
void telemetry_finished(struct telemetry *t, const struct request_progress *p, const struct gyre_timing *timing,
                        int64_t max_tokens, enum finished_reason why);
