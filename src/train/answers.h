/* answers.h - the target writes what its draft is trained on (self-distillation): prompts go to the engine, and come
 * back with its answers. */
#pragma once

#include "gyre.h"
#include "train/texts.h"

struct answer_options {
    int64_t n;                 // answers in all: prompts are taken in turn, again and again
    int64_t max_tokens;        // of an answer
    const float *temperatures; // [n_temperatures], in turn; the other ways of sampling are off
    int n_temperatures;
    uint64_t seed; // answers are the same for the same seed
    int64_t
        longest; // tokens of prompt and answer together that are kept; prompts that leave no room are cut at the end
    void (*told)(void *context, int64_t n_done); // NULL: nobody
    void *context;
};

/* Appends prompt and answer of each to out, in order. Fails with the engine's sentence. */
enum status answers_write(struct gyre *g, const struct texts *prompts, const struct answer_options *o,
                          struct texts *out, struct error *err);
