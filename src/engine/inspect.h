/* inspect.h - what benchmarks and reports read of an open engine, beside gyre.h. Called by the
 * thread that owns the engine. */
#pragma once

#include "core/backend.h"
#include "gyre.h"
#include "model/model.h"

/* Borrowed until gyre_close: what the backend's questions (core/backend.h: report, probes, ...) are asked about. */
struct engine_parts {
    const struct backend_ops *ops;
    struct loaded *loaded;
    struct executable *exe;
    const struct program *program;
    const struct model *model; // NULL in tests that bring a program of their own
};
struct engine_parts engine_parts(const struct gyre *g);

struct engine_steps {
    int64_t n_started, n_collected;         // steps, since the engine was opened
    int64_t n_seqs;                         // of the steps that were collected, together
    int64_t n_last_tokens;                  // tokens of the one that was planned last
    int64_t n_preempted;                    // sequences that gave their blocks back, since the engine was opened
    int64_t n_late, mask_wait_us, n_forced; // steps started without the masks of grammars; waited for masks; tokens put
                                            // in at once
};
struct engine_steps engine_steps(const struct gyre *g);

struct engine_guesses {
    int64_t n_drafts, n_guessed, n_accepted; // since the engine was opened
    bool through_text;                       // by a draft model that has other tokens
};
struct engine_guesses engine_guesses(const struct gyre *g);

/* For benchmarks, between requests: whether anybody guesses, and an answer that is told in place of what is drawn, in
 * every request, so that a text can be any: token i of it is tokens[i mod n]. Borrowed; NULL: what is drawn. */
void engine_let_guess(struct gyre *g, bool may);
void engine_guess_anything(struct gyre *g); // in place of n-grams: as many random tokens as may be guessed
void engine_tell(struct gyre *g, const int32_t *tokens, int32_t n);

/* How long each part of opening took, in microseconds. */
struct open_times {
    int64_t model, device, weights, cache,
        compile; // config and checkpoint's map; the device itself; ...; plans and graphs
};
struct open_times engine_open_times(const struct gyre *g);

/* Waits until weights lie where they are read fastest, which others need not: it goes on beside steps. */
void engine_settle(struct gyre *g);

/* As stored in the model's files. */
int64_t engine_weight_bytes(const struct gyre *g);
