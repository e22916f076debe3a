/* program_drafter_parts.h - what program_drafter.c, which guesses, and program_drafter_open.c share. */
#pragma once

#include "engine/draft/draft_rows.h"
#include "engine/draft/program_drafter.h"
#include "engine/engine.h"

/* A sequence that gets guesses. */
struct chain {
    struct request *request;
    int s;              // its place in the step
    int32_t position;   // of its last row
    int row, token_row; // of the plan that was made last; row -1: it has none
    int asked_row;      // that gives the guess that is collected next; -1: none
    int n_asked, most;
    bool has_ended; // before it had as many: nothing could be drawn
};

struct placed_program {
    struct loaded *loaded;
    struct executable *exe;
};

struct program_drafter {
    struct gyre *g;
    const struct draft *draft;
    struct placed_program step, context, chooser;
    struct draft_rows rows;
    struct sample_params *sample, *samples[2]; // [max_rows]: of the plan, one of
    struct sample_result *results;             // [max_rows]
    struct chain *chains;                      // [most_seqs]
    int32_t *block;                            // [draft->block]: the tokens of one
    int n_chains, most_guesses, states_width;
    int64_t n_follows; // steps that it looked at
    float *q, *own_q;  // of rejection sampling: [most_seqs][most_guesses][n_vocab], [the draft's]; NULL: there is none
    int n_vocab;
    struct sample_scratch scratch;
    struct guess_price price;
    enum status status; // of reading hidden states
    int64_t max_positions;
    bool is_linked;  // states go from program to program on the device
    bool runs_ahead; // a pass is started before the one before is collected, from which it takes its tokens
};

/* As struct drafter has them. */
int program_drafter_guess(void *context, const struct sequence *seq, int32_t *out, int max);
enum status program_drafter_follow(void *context, const struct step *step, struct error *err);
