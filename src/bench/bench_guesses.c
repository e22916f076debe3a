/* bench_guesses.c - see bench_guesses.h. */
#include "bench/bench_guesses.h"

#include <stdio.h>

void bench_guesses_add(struct bench_guesses *b, const struct decode_run *r, int64_t n) {
    b->n = n;
    b->n_guessed += r->n_guessed;
    b->n_right += r->n_accepted;
    b->n_steps += r->n_steps - r->n_steps_at_first;
    b->n_tokens += r->n_tokens - r->n_tokens_at_first;
}

static double a_step(const struct bench_guesses *b, int64_t x) { return (double)x / (double)MAX(b->n_steps, 1); }

double bench_guesses_step_ms(const struct bench_guesses *b) { return 1e3 * a_step(b, b->n_tokens) / b->tokens_per_s; }

void bench_guesses_print(const struct bench_guesses *b) {
    double n = (double)b->n, step_ms = bench_guesses_step_ms(b);
    if (b->n_guessed == 0)
        return;
    printf("\n      guesses: %.2f a step and sequence, %.1f %% right, %.2f tokens a step and sequence; all that a step "
           "takes %.3f ms",
           a_step(b, b->n_guessed) / n, 100 * (double)b->n_right / (double)b->n_guessed, a_step(b, b->n_tokens) / n,
           step_ms);
    if (b->plain_step_ms > 0)
        printf(", %.3f times the %.3f ms without; %.3f times as fast", step_ms / b->plain_step_ms, b->plain_step_ms,
               b->tokens_per_s * b->plain_step_ms * 1e-3 / n);
}

json_t *bench_guesses_json(const struct bench_guesses *b) {
    return json_pack("{s:I, s:I, s:I, s:I, s:f, s:f}", "guessed", (json_int_t)b->n_guessed, "right",
                     (json_int_t)b->n_right, "steps", (json_int_t)b->n_steps, "tokens", (json_int_t)b->n_tokens,
                     "step_ms", bench_guesses_step_ms(b), "plain_step_ms", b->plain_step_ms);
}
