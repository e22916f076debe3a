/* replay.h - a trace of requests through the scheduler that serves, on a clock that is computed.
 *
 * Each engine is the scheduler, the pool of blocks and the prefix cache of src/sched, as large as the layout leaves
 * room for; requests go to engines as a server's front sends them (engine/lanes), which knows up to MOST_ENGINES
 * engines: of more there are several fronts, and a user keeps to one. Nothing is computed: a step takes what
 * step_time.h says of the tokens that the scheduler planned, and gives each sequence its next token. One step is in
 * flight at a time.
 *
 * Load grows with the cards: `n_copies` users' worlds like the trace, shifted in time, each with prompts of its own. */
#pragma once

#include "sizing/layouts.h"
#include "sizing/trace.h"

struct replay_options {
    const struct sizing *sizing;
    const struct layout *layout;
    int n_engines;
    int n_copies;             // of the trace's first n_requests
    int n_requests;           // 1 to the trace's
    double speed;             // the trace's times are divided by this
    int max_tokens, max_seqs; // of a step
    double itl_target_us;     // 0: no bound
    int64_t max_len;          // tokens of a sequence that the model has
};

struct percentiles {
    double p50, p90, p99;
};

struct replay_result {
    int64_t n_done, n_refused;           // refused: longer than the model, or than an engine's cache
    int64_t n_input, n_output, n_reused; // tokens; reused: of prompts, that a prefix cache had
    int64_t n_steps, n_preempted;
    int n_fronts;
    double seconds;      // from the first arrival to the last token
    double busy;         // share of the time in which engines computed, in the mean
    double least_busy;   // and of the idlest
    double tokens_per_s; // answers'
    struct percentiles ttft_ms, tpot_ms;
};

void replay_run(const struct trace *t, const struct replay_options *o, struct replay_result *out);

/* Requests/s that one engine could take of such a trace with n sequences at a time, by arithmetic: without a cached
 * prefix. */
double replay_capacity(const struct trace *t, int n_requests, const struct sizing *s, const struct layout *l,
                       int n_seqs);
