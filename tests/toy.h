/* toy.h - a backend whose next token is a hash of its context, to test everything around a model exactly.
 *
 * Its cache holds the tokens themselves, in the blocks and slots that the plan names: a block that is given to two
 * sequences, read before it is written or given back too early changes the hash. Plans that contradict plan.h end
 * the program with a sentence. */
#pragma once

#include "core/backend.h"

extern const struct backend_ops backend_toy;

/* A program of these cache groups (any of full, windowed, latent, recurrent) and a vocabulary. */
struct toy_shape {
    int vocab_size;
    bool full, latent, recurrent;
    int window; // 0: no windowed group
};
struct program *toy_program(const struct toy_shape *shape);

/* What the next steps do wrong: a device that fails at run or collect, or logits that are not numbers after `bad_token`. */
struct toy_faults {
    int run_fails_in, collect_fails_in; // steps from now; 0: never
    int32_t bad_token;                  // -1: none
};
extern struct toy_faults toy_faults;
