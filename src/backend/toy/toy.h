/* toy.h - a backend whose next token is a hash of its context: tests everything around a model exactly, and measures
 * what stands in front of one.
 *
 *     gyre serve models/story --device toy        the model's tokenizer, vocabulary and cache groups; its weights are
 *                                                 not read
 *
 * Its cache holds, in the blocks and slots that the plan names, a hash of all tokens up to that place, made from the
 * slot before. An output row looks at the last slots, at some farther and farther back and at a few more, chosen by
 * what it has seen: a block that is given to two sequences, read before it is written or given back too early changes
 * the token, at once or some tokens later. So a token costs the logarithm of its context. Plans that contradict plan.h
 * end the program.
 *
 * Nothing is computed before collect(), also when the next step was started meanwhile: whoever changes a plan in
 * flight, or what it points to, or gives its blocks to somebody outside the order of steps, changes the token.
 *
 * A sequence's adapter (plan.h) is part of what is hashed with each token.
 *
 * Its recurrent state keeps the last TOY_MAX_BACK tokens as they came, so that it can go back to where any of them
 * begins.
 *
 * A greedy row that asks for nothing else costs no look at the vocabulary; any other fills logits [vocab_size]. Every
 * id comes equally often, the end-of-sequence ids too, and so do those that a tokenizer shows no text for: a benchmark
 * asks with ignore_eos, and counts the tokens of the usage, not the chunks.
 *
 * Two environment variables make it slow, to see what a real device would hide: GYRE_TOY_STEP_US microseconds a step,
 * and GYRE_TOY_TOKEN_US more for each token of it. The device then sleeps. */
#pragma once

#include "core/backend.h"

#include <stdatomic.h>

enum { TOY_MAX_BACK = 9 };
extern const struct backend_ops backend_toy;

/* A program of these cache groups (any of full, windowed, latent, recurrent) and a vocabulary. */
struct toy_shape {
    int vocab_size;
    bool full, latent, recurrent;
    int window; // 0: no windowed group
};
struct program *toy_program(const struct toy_shape *shape);

/* For tests: what the next steps do wrong: a device that fails at run or collect, or when logits are fetched, or logits
 * that are not numbers after `bad_token`. */
struct toy_faults {
    atomic_int run_fails_in, collect_fails_in; // steps from now, of all engines; 0 and less: never
    int logits_fail_in;                        // rows
    int32_t bad_token;                         // -1: none
    bool no_windows;                           // none can be reached
};
extern struct toy_faults toy_faults;
