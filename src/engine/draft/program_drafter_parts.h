/* program_drafter_parts.h - what program_drafter.c, which guesses, and program_drafter_open.c share. */
#pragma once

#include "engine/draft/draft_rows.h"
#include "engine/draft/guess_tree.h"
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

/* A guess that a row of the pass goes on with (-1: the text), and its rows of the plan: that gives and token row. */
struct tree_front {
    int guess, row, token_row;
};

/* Beside a chain, where it is a tree. */
struct tree_chain {
    struct guess_tree tree;
    int most;            // guesses that are kept
    int32_t first_entry; // draft_rows_first_of_fork
    int n_front;
    struct tree_front front[MOST_TOPK];
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
    struct chain *chains;                      // [most_chains]
    struct tree_chain *trees;                  // [most_chains]; NULL: no trees are made
    int32_t *block;                            // [draft->block]: the tokens of one
    int n_chains, most_chains, most_guesses, states_width;
    int topk, most_kept; // of trees: guesses for one place, and of a tree
    int64_t n_follows;   // steps that it looked at
    float *q, *own_q; // of rejection sampling: [most_seqs][most_guesses][n_vocab], [the draft's]; NULL: there is none
    int n_vocab;
    struct sample_scratch scratch;
    struct guess_price price;
    enum status status; // of reading hidden states
    int64_t max_positions;
    bool is_linked;  // states go from program to program on the device
    bool runs_ahead; // a pass is started before the one before is collected, from which it takes its tokens
};

/* What a guess at the position is drawn with; a run is started; the plan of the next one is begun; row `row` of it has
 * what token row `from` of a step left: of the target's, or of the draft's own. */
struct sample_params program_drafter_draw(const struct program_drafter *d, const struct request *r, int32_t position);
enum status program_drafter_start(struct program_drafter *d, const struct placed_program *p, struct error *err);
void program_drafter_turn(struct program_drafter *d);
bool program_drafter_take_state(struct program_drafter *d, int row, bool is_own, int from);

/* program_drafter_tree.c: from the first pass on; what beside the trunk. */
enum status program_drafter_run_trees(struct program_drafter *d, const struct step *step, struct error *err);
void program_drafter_branch(void *context, const struct sequence *seq, struct branches *out);

/* As struct drafter has them. */
int program_drafter_guess(void *context, const struct sequence *seq, int32_t *out, int max);
enum status program_drafter_follow(void *context, const struct step *step, struct error *err);
