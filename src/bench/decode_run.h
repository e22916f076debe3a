/* decode_run.h - sequences that decode together in an engine of the process, timed by the host's clock as tokens are
 * handed out. Prompts are random ids and really computed; answers go past the end of the sequence. */
#pragma once

#include "base/status.h"
#include "console/progress.h"
#include "gyre.h"

struct decode_load {
    int64_t n, n_prompt, n_output; // sequences, tokens of each prompt and of each answer
    int64_t seed;                  // of the prompts, with the round
    double temperature;
    const struct gyre_grammar *grammar; // of the answers; NULL: any text. They may then end before n_output tokens
};

struct decode_run {
    int64_t started_us, all_first_us, ended_us; // submitted; every sequence has its first token; the last token
    int64_t n_first, n_tokens, n_tokens_at_first, n_preempted;
    int64_t n_last_step;                     // tokens of the last step
    int64_t n_steps, mask_wait_us, n_forced; // see engine_steps
    int64_t n_guessed, n_accepted;           // see engine_guesses
    int64_t n_steps_at_first;                // of n_steps, collected when every sequence had its first token
    int64_t n_seqs_after;                    // of the steps behind those, together
    struct progress progress;                // shown while it runs
};

/* Runs the load to its end. Rounds of other numbers have other prompts, so that no prefix is found again. */
enum status decode_whole(struct gyre *g, const struct decode_load *load, int64_t round, struct decode_run *out,
                         struct error *err);

/* The same, broken off once all sequences decode, n_together steps have followed and the clock has reached until_us. */
enum status decode_partly(struct gyre *g, const struct decode_load *load, int64_t round, int64_t n_together,
                          int64_t until_us, struct error *err);

/* An answer of random tokens, of which a share is copied from before, in runs of 16 to 48: as nearly as whole runs
 * allow, and the first is none. The caller frees it. */
int32_t *decode_answer(int64_t n, double share, int n_vocab, int64_t seed);
