/* bench_guesses.h - what guesses gave while sequences decoded, and what steps that check them take beside others. */
#pragma once

#include "bench/decode_run.h"

#include <jansson.h>

struct bench_guesses {
    int64_t n;                  // sequences
    int64_t n_guessed, n_right; // tokens
    int64_t n_steps, n_tokens;  // steps while all sequences decoded, and tokens that they gave
    double tokens_per_s;        // of the run that is told of
    double plain_step_ms;       // of a step without guesses; 0: not measured
};

void bench_guesses_add(struct bench_guesses *b, const struct decode_run *r, int64_t n);
/* Of a step, with all that the host and a draft do between two of them. */
double bench_guesses_step_ms(const struct bench_guesses *b);
void bench_guesses_print(const struct bench_guesses *b); // nothing where nobody guessed
json_t *bench_guesses_json(const struct bench_guesses *b);
