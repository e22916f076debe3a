/* scheduler.h - decides which tokens of which sequences run in the next step.
 *
 * Knows tokens, blocks and budgets; never sees a tensor, text or a socket. A step closes part of the gap between
 * n_computed and n_tokens of each sequence, in the order of rank, so prefill, chunks, decode and recomputing are one
 * subtraction. A sequence with one token to go is never kept waiting by another's prompt: prompts share what the
 * decoding ones leave, and no more than the promised time between tokens allows (itl_target_us). When blocks run out,
 * sequences that do not run lose what cache they hold, then the last running one in rank gives its blocks back, waits
 * in its place and is recomputed later; so does it for a waiting one of a better priority. Where the host has memory
 * for it and copying is predicted to take less time than computing, its cache is copied there and back instead.
 *
 * Steps overlap: while one is in flight the next is planned, started, and only then the first collected. So plan, start
 * and collect are three calls. What makes a sequence lose its cache is done when nothing is in flight: until then such
 * a plan is put off. A sequence that is removed while a step with it is in flight keeps its cache until that is
 * collected. A sequence that is paused waits, whatever its rank, and keeps its cache while nobody else needs it.
 *
 *     add -> waiting -> running -> remove (finished, cancelled)
 *               ^          |
 *               '- preempt-'
 *                  or pause
 *
 * Rank is given when a sequence is added and never changes: by arrival (fcfs), by arrival plus the cost of the prompt
 * (sjf), with a priority before either. The first in rank can take everything and always ends, and within a priority
 * later arrivals rank behind sooner or later, so no sequence starves but by more important ones, as long as each could
 * be held alone (kv_pool_could_hold). No allocation after init. */
#pragma once

#include "sched/kv_pool.h"
#include "sched/step_cost.h"

struct sequence_list {
    struct sequence *head, *tail;
    int n;
};

/* Of one step. */
struct step_limits {
    int max_tokens, max_seqs, max_rows;
    double
        itl_target_us; // prompts join running streams only as far as the step is predicted to end within; 0: no bound
    int n_ahead;       // tokens behind the next of a sequence, whose blocks it is given where there are plenty
    int max_branches;  // of all sequences together
};

enum admission {
    ADMITTED_ALL,      // nobody waits
    BLOCKED_SEQS,      // max_seqs run
    BLOCKED_TOKENS,    // max_tokens, max_rows or the bound on the step's time are used up
    BLOCKED_CACHE,     // there is not room for all of its known tokens
    BLOCKED_PREEMPTED, // somebody lost the cache in this very step
    BLOCKED_SHARED,    // somebody is computing what it begins with
    BLOCKED_AHEAD,     // the device has computed steps ahead, of those that run alone (holds_new)
    N_ADMISSIONS,
};

/* A step that was started and not collected. */
struct step_in_flight {
    struct sequence **seqs; // [max_seqs]
    int n_seqs;
    struct step_work work;
};
enum { MAX_STEPS_IN_FLIGHT = 2 };

struct scheduler {
    struct kv_pool *pool;
    struct step_limits limits;
    struct sequence **running; // [max_seqs], in order of rank
    int n_running;
    struct sequence_list waiting, leaving;
    int n_waiting_with_cache; // which was remembered, or is that of a paused one
    int n_paused;             // of those that wait

    // The step that was planned last: sequences in the order of running, each with n_scheduled > 0.
    struct sequence **step; // [max_seqs]
    int n_step, n_step_tokens, n_step_rows, n_step_branches;
    struct step_work step_work;
    struct step_in_flight in_flight[MAX_STEPS_IN_FLIGHT]; // oldest first
    int n_in_flight;
    struct step_cost cost;

    int64_t n_preempted, n_swapped; // n_swapped of them went to the host's memory
    bool always_swap;               // for tests: whatever it costs
    bool holds_new;                 // nobody is admitted beside those that run; the caller's
    enum admission blocked;         // why the first that waits was left waiting by the last plan
    struct sequence
        *starved; // by the last plan: alone, and the device has not the memory that the pool counted on; NULL
};

/* max_rows must be at least max_seqs, and max_tokens too. The pool is borrowed. */
void scheduler_init(struct scheduler *s, struct kv_pool *pool, struct step_limits limits);
void scheduler_release(struct scheduler *s);

/* In the queue, by its rank. The sequence must be one that the pool could hold; it stays the caller's. */
void scheduler_add(struct scheduler *s, struct sequence *seq);

/* Takes it out of wherever it is and gives its cache back, which with a step in flight happens later: it is then
 * leaving, and must live until it is outside. Not while a step with it is planned and not started. */
void scheduler_remove(struct scheduler *s, struct sequence *seq);

/* From the next plan on it is in no step, or may be again. Once the steps in flight with it are collected it waits, and
 * others may run in its place. */
void scheduler_pause(struct scheduler *s, struct sequence *seq, bool paused);

/* Sequences that wait for their turn. */
static inline int scheduler_n_queued(const struct scheduler *s) { return s->waiting.n - s->n_paused; }

/* Chooses the next step. False when there is nothing to compute, or nothing as long as a step is in flight, or when the
 * first in rank is starved, which then waits: the caller removes it. Guesses that do not get into it are dropped;
 * branches get what the step and the cache have left, and nobody gives way to them. */
bool scheduler_plan(struct scheduler *s);

/* The planned step was started: moves n_computed, and expects the tokens that it will give. */
void scheduler_start(struct scheduler *s);

/* The oldest step in flight was collected; it took so many microseconds (0: do not learn from it). Its tokens are
 * appended by the caller afterwards. */
void scheduler_collect(struct scheduler *s, double us);

/* A token of a running sequence, from a step that was collected; where it went back (sequence.h), blocks behind what is
 * left are given back. */
void scheduler_append(struct scheduler *s, struct sequence *seq, int32_t token);

/* All tokens that the step collected last gave it are appended: its branches hold nothing any more. Until new ones are
 * made they tell which way it went. */
void scheduler_settle(struct scheduler *s, struct sequence *seq);

/* For tests: NULL, or what is wrong with the lists and the pool. */
const char *scheduler_check(const struct scheduler *s);
