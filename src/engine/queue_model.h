/* queue_model.h - how long a request that came now would wait for its first step.
 *
 *     wait = correction * (prompt tokens ahead * t_prompt + turns * mean answer * t_answer)
 *
 *     t_prompt   of a token in a step full of prompts        } both predicted by the scheduler's model of a step's cost
 *     t_answer   of a token in a step of running sequences   } (sched/step_cost.h), learned from the steps that were
 *                run
 *     turns      answers that must end before there is a place: 1 + requests ahead - free places, at least 0
 *     correction what requests have waited over what the rest of the formula said when they came, lately: for what the
 *                model does not know, such as a processor that others use too
 *
 * Ahead are the requests that wait already; with several tenants, who take turns (base/fair_share.h), those of the own
 * tenant times the number of tenants that wait, so a tenant that floods the queue is told so while others are still let
 * in.
 *
 * Requests are counted by whoever submits them, with atomic additions; all else is written by the engine thread. */
#pragma once

#include "base/histogram.h"

#include <stdbool.h>

struct scheduler;

struct tenant_queue {
    _Atomic int64_t n, tokens; // requests that wait, and their prompts
};

struct queue_model {
    struct tenant_queue *tenants; // [n_tenants]
    int n_tenants;
    struct tenant_queue all;
    _Atomic int64_t n_waiting_tenants;
    _Atomic int64_t n_unfinished; // requests that wait or run

    struct counter prompt_ns, answer_ns; // t_prompt, t_answer
    struct counter free_places;          // of max_seqs; 0 as soon as anybody waits for anything but the next step
    struct counter mean_answer;          // tokens, times 16
    struct counter correction;           // times 1,000
};

void queue_model_init(struct queue_model *q, int n_tenants);
void queue_model_release(struct queue_model *q);

/* A request begins to wait; any thread. It ends waiting; it has ended. */
void queue_model_enter(struct queue_model *q, int tenant, int64_t n_prompt);
void queue_model_leave(struct queue_model *q, int tenant, int64_t n_prompt);
void queue_model_end(struct queue_model *q);

/* Microseconds; 0 also while nothing is known. plain_us: without the correction. Any thread. */
int64_t queue_model_wait_us(const struct queue_model *q, int tenant);
int64_t queue_model_plain_us(const struct queue_model *q, int tenant);

/* Whether the queue, which may hold max_queued requests, is full for the tenant: several tenants may each have their
 * part of it waiting, whatever the others have. */
bool queue_model_is_full(const struct queue_model *q, int tenant, int64_t max_queued);

/* Whether a request would wait mainly for others of its own tenant. */
bool queue_model_is_own(const struct queue_model *q, int tenant);

/* Engine thread: a step was planned; a request waited; an answer of n tokens ended. */
void queue_model_step(struct queue_model *q, const struct scheduler *s);
void queue_model_waited(struct queue_model *q, int64_t plain_us, int64_t waited_us);
void queue_model_answered(struct queue_model *q, int64_t n_tokens);
