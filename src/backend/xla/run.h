/* run.h - a step of ragged sequences as launches of rectangles. */
#pragma once

#include "backend/xla/xla.h"

/* One launch of a step: sequences whose numbers of rows are padded to the same. */
struct piece {
    struct launch_shape shape;
    int first_seq, n_seqs; // in exe->seqs
    int first_row, n_rows; // in exe->rows
    int n_loop;            // steps that this launch does
    bool asks_for_logits;  // on the host
    struct pjrt_buffer *drawn, *logits, *hidden[1 + MAX_TAPS];
};

struct ahead;

/* A step whose rows were all drawn on the device, and whose results were not read yet. */
struct unread {
    struct piece *pieces; // [max_seqs]
    int n_pieces;         // 0: it is read
    int *rows;            // [max_rows]
};

/* What the host spends the time of steps on. */
enum phase {
    PHASE_PREPARE, // copies of blocks, fills of dense copies; without compiling
    PHASE_PACK,
    PHASE_UPLOAD,
    PHASE_EXECUTE, // until a launch is queued
    PHASE_READ,    // what was drawn, and logits: waits for the device
    N_PHASES
};

struct executable {
    struct loaded *loaded;
    const struct program *program;
    struct bucket bucket;
    int most_tokens, most_seqs; // of a launch, padded
    void *numbers;              // of the launch at hand: ints, and floats behind them
    int32_t *ints;
    float *floats;
    int32_t *drawn; // [DRAWN_INTS][most_tokens], or of each step of a loop [DRAWN_INTS][most_seqs]
    // of the step at hand
    struct piece *pieces; // [max_seqs]
    int n_pieces;
    int *seqs, *rows; // [max_seqs], [max_rows] of the plan, piece after piece
    const struct batch_plan *plan;
    const struct sample_params *params; // NULL: the step is late
    struct ahead *ahead;                // NULL: a step a launch
    bool is_settled;                    // its results are there
    struct unread before;               // the step before it
    int n_fed;                          // of launches (xla.h); 0: the host hands tokens over
    struct pjrt_buffer *fed[2];         // of this step and the one before it, by turns
    float *logits;                      // [max_rows][vocab_size], of rows that were asked for
    bool *has_logits;                   // [max_rows]
    float *hidden;                      // [most_tokens][width], of a piece
    int hidden_piece, hidden_tap;
    struct sample_params *sample;     // [max_rows], with what the step before drew
    struct sample_result *results[2]; // [max_rows], of steps by turns
    int n_results[2];
    struct sample_scratch scratch;
    int64_t n_run, n_collected, n_launches, n_padded_rows, n_host_drawn, n_foreseen, n_unread;
    int64_t phase_us[N_PHASES];
};

enum status run_compile(struct loaded *l, struct bucket bucket, struct executable **out, struct error *err);
void run_free(struct executable *exe);
enum status run_step(struct executable *exe, const struct batch_plan *plan, const struct sample_params *sample,
                     struct error *err);
enum status run_draw(struct executable *exe, const struct sample_params *sample, struct error *err);
enum status run_collect(struct executable *exe, struct sample_result *results, struct error *err);
enum status run_logits(struct executable *exe, int row, const float **out, struct error *err);
enum status run_hidden(struct executable *exe, int tap, int t, const float **out, struct error *err);

struct sample_result run_result_of(const int32_t *drawn, int n_rows, int row); // drawn [DRAWN_INTS][n_rows]

/* ---- executable.c: what of the device's a step has left ---- */
void run_free_values(const struct executable *exe, struct piece *piece); // what no later step may ask for
void run_free_outputs(struct executable *exe);
void run_free_unread(struct executable *exe);

/* ---- ahead.c ---- */
/* Steps that a launch may do whose sequences have so many token rows. */
int ahead_most(const struct loaded *l, int n_queries);
struct ahead *ahead_new(const struct loaded *l, struct bucket bucket, int most_seqs); // NULL: it does not
void ahead_free(struct ahead *a);
/* How many steps the launch of this plan does, exe->n_pieces being known. What was foreseen before is forgotten. */
int ahead_steps(struct executable *exe);
/* Whether the launch of a plan whose rows the device draws does several, as far as can be said before. */
bool ahead_loops(const struct executable *exe, const struct batch_plan *plan);
int ahead_left(const struct executable *exe); // backend_ops.foreseen
int32_t *ahead_take(struct executable *exe, int n_steps,
                    int n_rows); // where they are drawn: [n_steps][DRAWN_INTS][n_rows]
/* Answers the plan out of what was drawn; false: it was not foreseen. */
bool ahead_serve(struct executable *exe, const struct sample_result *before, struct sample_result *results);

/* ---- shapes.c: the ladders ---- */

int shape_queries(int n);                         // token rows of a sequence, padded
int shape_seqs(int n);                            // sequences
int shape_context(const struct loaded *l, int n); // tokens that a sequence has
/* Cuts a plan into pieces: exe->pieces, seqs, rows. */
void shape_pieces(struct executable *exe, const struct batch_plan *plan);

/* ---- pack.c: what a launch is given ---- */

/* Fills ints and floats; before: what the step before drew, for plan.from_row; NULL: the device has it. */
void pack_inputs(struct executable *exe, const struct piece *piece, const struct inputs *at,
                 const struct sample_result *before);
/* Whether the device draws the row itself. */
bool pack_is_drawn_there(const struct sample_params *p);
