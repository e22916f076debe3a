/* beams.h - beam search without a model: which continuations go on, which are answers, and when it is enough.
 *
 *     beams_init ──► the caller asks a model what may follow each of the n_running beams ──► beams_advance ──┐
 *                         ▲──────────────────────────────── until done ────────────────────────────────────┘
 *
 * A setting gives the sequences that transformers 5 gives (generation/utils.py, _beam_search with do_sample off):
 * - A running beam's score is the sum of its tokens' log-probabilities.
 * - All continuations of all beams are ranked by score. One that ends (a stop token, or max_tokens) is an answer if it
 * is among the first `width`; the first `width` that do not end go on.
 * - An answer's score is divided by length ^ length_penalty, its stop token counted; the best `width` are kept.
 * - It is enough when there are `width` answers and the best running beam cannot beat the worst of them; what a beam
 * can still reach, and whether that is asked, is `stopping`. At max_tokens everything ends.
 *
 * Knows neither engine nor text. Memory is the arena's, O(width * tokens). */
#pragma once

#include "base/arena.h"

#include <stdbool.h>
#include <stdint.h>

/* early_stopping's three values. */
enum beam_stopping {
    BEAMS_GUESS, // false: a running beam is judged as if it ended now
    BEAMS_FIRST, // true: the first `width` answers are enough
    BEAMS_SURE,  // "never": as if it ended where the penalty likes it best; with a penalty of 0 this misses nothing
};

struct beams_options {
    int width;
    int32_t max_tokens; // at least 1
    double length_penalty;
    enum beam_stopping stopping;
    const int32_t *stops; // borrowed
    int n_stops;
};

struct beam {
    int32_t *tokens; // [n]
    float *logprobs; // [n]
    int32_t n;
    double score;
    int from, rank; // the running beam of the step before that it continues, and its newest token's place among that
                    // one's choices
};

struct beams {
    struct beams_options options;
    struct arena *arena;
    int n_choices;                  // continuations of each beam that beams_advance wants
    struct beam *running, *answers; // [width]; answers best first
    int n_running, n_answers;
    bool done;
    struct beam *next; // [width]: the running ones of the step after
    struct continuation *continuations;
    int32_t n_tokens, capacity; // of a running beam
};

/* One running beam, of no tokens. n_choices is enough for any stop tokens among the best. */
void beams_init(struct beams *b, const struct beams_options *options, struct arena *arena);

/* Of each running beam the n_choices most probable next tokens, best first, at [beam * n_choices]. */
void beams_advance(struct beams *b, const int32_t *tokens, const float *logprobs);
