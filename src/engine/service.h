/* service.h - an engine on a thread of its own, for many callers on a few threads of theirs; or several of one model,
 * as one: a request goes where it will have its first token soonest, for which the engines that have seen the beginning
 * of its prompt have less to do (lanes/affinity.h).
 *
 *     a listener's thread (HTTP)                  engine thread
 *     service_submit ──── inbox ────────────────► accepted
 *     service_cancel ──── flag, inbox ──────────► cancelled, paused
 *                                                 step: each token is written into its answer's own array
 *     service_look ◄───── news(), then flush() ── once an answer until it was looked at; once a step
 *     service_release
 *
 * A request is checked and copied on the caller's thread, and so is the memory for its whole answer: the engine
 * thread never allocates for one, never waits for a listener, and nothing can overflow. A listener that is slow
 * finds more tokens when it looks.
 *
 * Life of an answer: made by service_submit; until `done` is set the engine writes it. Each news() asks for one
 * service_look, on a thread of the listener's choice, the same for all looks at one answer; a look that sets done is
 * the last, nothing writes the answer any more, and service_release gives it back. Exactly one answer gets done for
 * each accepted request, whatever happens: cancelled, a device that broke, service_close. */
#pragma once

#include "base/arena.h"
#include "base/status.h"
#include "core/backend.h"
#include "engine/draft/drafter.h"
#include "engine/telemetry.h"
#include "gyre.h"

#include <stdatomic.h>

struct service;

/* What a listener may read: tokens up to the n_tokens that it has loaded; what is below done once that is true. */
struct answer {
    void *user;
    int32_t *tokens;            // [capacity]
    float *logprobs;            // [capacity], if asked
    int32_t *top_tokens;        // [capacity][n_top]
    float *top_logprobs;        // [capacity][n_top]
    float *prompt_logprobs;     // [n_prompt]: of token i given what is before it; NAN at 0. If asked (score_prompt)
    int32_t *prompt_ranks;      // [n_prompt]: its place among all tokens by probability, from 1
    int32_t *prompt_top_tokens; // [n_prompt][n_prompt_top]: the choices for token i
    float *prompt_top_logprobs;
    float *pooled; // [hidden_size] of gyre_info, if asked (pooling) and finish is GYRE_LENGTH
    int32_t capacity, n_prompt;
    int n_top, n_prompt_top;
    _Atomic int32_t n_tokens; // written with release, after the token
    _Atomic int32_t
        n_text; // tokens before the end-of-sequence token or stop id that ended it; INT32_MAX while there is none
    struct request_progress progress;
    bool done; // set by service_look; then nothing is written any more
    enum gyre_finish finish;
    struct gyre_timing timing;
    char error[768];       // GYRE_FAILED: the sentence ...
    bool error_of_request; // ... and whether it is the request's own fault
};

struct service_options {
    /* Both are called on the engine thread and must not block. The answer is alive until it was looked at. */
    void (*news)(void *context, struct answer *a);
    void (*flush)(void *context); // after the news of a step; NULL: nobody cares
    void *context;
    int max_queued; // requests that wait for their first step; more are refused with ERR_FULL. 0: no limit

    /* Of several engines: opens number `engine` anew, with the same options, when its device has failed and it is
     * closed; on its thread. Three times an hour at most, behind 1, 5 and 30 s; then again when an hour is over. An
     * engine of other sizes or ends of answers than the first is closed, and counts as one that could not be opened.
     * NULL: it stays failed. */
    int (*reopen)(void *context, int engine, struct gyre **out, struct gyre_error *err);
    void *reopen_context;
    int64_t reopen_hour_us; // in place of that hour, and the seconds as much shorter or longer; 0: an hour
};

enum { MOST_ENGINES = 64 };

/* Takes the engine over; it is closed by service_close (also when this fails). Several: of one model and with the same
 * options, 1 to MOST_ENGINES. */
int service_open(struct gyre *take_engine, const struct service_options *options, struct service **out,
                 struct gyre_error *err);

int service_open_several(struct gyre *const *take_engines, int n, const struct service_options *options,
                         struct service **out, struct gyre_error *err);

/* Ends what still runs as cancelled, stops the thread and closes the engine. Every answer must have been released, or
 * be released by nobody: those that are left are freed. NULL is fine. */
void service_close(struct service *s);

/* Any thread. Refuses with a sentence: a field out of range (ERR_ARG), a full queue (ERR_FULL), a broken device
 * (ERR_DEVICE; of several engines, if all have failed), a service that drains (ERR_FULL). want_last_logits must be off.
 * *out is set before the first news, which may come before this returns. */
int service_submit(struct service *s, const struct gyre_request *request, void *user, struct answer **out,
                   struct gyre_error *err);

/* The same for a request that goes on with one that was accepted (a step of a beam search): neither a full queue nor
 * draining refuses it. */
int service_submit_more(struct service *s, const struct gyre_request *request, void *user, struct answer **out,
                        struct gyre_error *err);

/* Any thread, any time before service_release; the answer still gets done, soon. */
void service_cancel(struct service *s, struct answer *a);

/* The same for an answer that has all that its listener wanted (a stop string): counted as stopped, not as aborted. */
void service_stop(struct service *s, struct answer *a);

/* Any thread, any time before service_release: what nobody reads is not computed meanwhile, and others take its place
 * if they want it; it keeps its cache while nobody else needs that. It may have tokens that were not seen yet, and what
 * steps under way give it still comes. */
void service_pause(struct service *s, struct answer *a, bool paused);

/* Answers one news(): sets a->done if it was the last. Then read tokens up to n_tokens. */
void service_look(struct answer *a);

/* After done was seen. */
void service_release(struct service *s, struct answer *a);

/* Accepts nothing more; what is accepted goes on. No engine is opened anew. */
void service_drain(struct service *s);

/* Whether one is being opened anew, which service_close waits for. After service_drain it does not become so. */
bool service_is_opening(const struct service *s);

/* A look at the engine, for metrics and health: each number is of the same moment, after some step. Of several engines
 * it is their sum; they have failed when all have. */
struct service_state {
    int n_running, n_waiting, n_paused; // sequences in the scheduler
    int64_t n_queued;                   // accepted and not yet seen by the scheduler, besides
    int64_t n_steps, n_preempted;
    int64_t n_forced_tokens;       // that grammars left no choice for, and no row was drawn for
    int64_t n_drafts;              // of speculation ...
    int64_t n_guessed, n_accepted; // ... their tokens, and those of them that were right
    int64_t n_right_at[MOST_GUESSES], n_draft_off[N_DRAFT_OFF]; // see drafter.h
    int64_t n_held;                     // times that a request was left out of steps for its mask
    int64_t n_late_steps, mask_wait_us; // steps that were started without the masks of grammars; waited for masks
    int64_t n_prompt_tokens, n_generated_tokens, n_reused_tokens;
    double kv_usage;                                 // 0 .. 1: the fullest group of blocks
    struct device_report device[MAX_DEVICE_REPORTS]; // [n_device]
    int n_device;
    int64_t n_fetched_prompts, n_fetched_tokens, n_failed_fetches; // of the decode role: from the prefill server
    int64_t n_fetched_windows;                                     // parts that came from device to device
    int64_t n_given_prompts, giving_us;                            // of the prefill role
    int queue_reason;                      // see queue_reason_name: what the first in the queue waits for
    int64_t last_step_us, step_started_us; // clock_us(); step_started_us 0: none is running
    int n_engines, n_failed, n_restarts;   // restarts: engines opened anew so far
    int n_reopen_faults, n_given_up;       // times that one could not be; that all tries of an hour were spent
    bool failed, draining;
    char error[768]; // n_failed > 0: the device's sentence, or why it could not be opened anew
};
void service_state(const struct service *s, struct service_state *out);

/* The same of one engine, of those from 0 to n_engines - 1; n_engines and n_failed are 0. */
void service_state_of(const struct service *s, int engine, struct service_state *out);

/* Of all requests so far; as long as the service. Of several engines it is added up when this is called, and has no
 * queue. */
const struct telemetry *service_telemetry(const struct service *s);

/* How often tokens were sent to each expert of a layer, over all layers and engines: to out [most]; returns how many
 * experts a layer has. 0: the model has none, or the device does not count. */
int service_expert_loads(const struct service *s, int64_t *out, int most);

/* Where a request of the tenant would wait least, of the engines that have not failed; some engine's if all have. */
const struct queue_model *service_queue(const struct service *s, int tenant);

const struct gyre_info *service_info(const struct service *s);
struct gyre_request service_request_default(const struct service *s);

/* Whether prompt and answer fit the context, as submitting checks it; max_tokens -1 wants room for one token. Programs
 * look for "prompt is too long" and "maximum context length is N tokens" in what it says. */
enum status request_check_room(int64_t n_prompt, int64_t max_tokens, const struct gyre_info *info, struct error *err);

/* For lane.c. All that the answer to a request may hold, on the thread that submits it (hidden_size: of what pooling
 * gives); a token that came, and what is told of one of the prompt by the event of the position before it: both on the
 * engine thread, of rows of n_vocab. */
void answer_allocate(struct answer *a, struct arena *arena, const struct gyre_request *asked, int32_t hidden_size);
void answer_put_token(struct answer *a, const struct gyre_event *e, int32_t n_vocab);
void answer_put_prompt(struct answer *a, const struct gyre_event *e, int32_t n_vocab);
