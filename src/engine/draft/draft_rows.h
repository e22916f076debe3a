/* draft_rows.h - which rows of a draft's cache are there, and plans of more: see program_drafter.h.
 *
 * Blocks of the draft have the numbers of the target's, in its memory and the host's alike; behind them come blocks for
 * the rows of chains, `per_seq` for each sequence that gets guesses. */
#pragma once

#include "core/backend.h"

/* The target's cache group beside which a draft's lies: one whose blocks hold the whole text; -1: there is none. */
int draft_group(const struct program *target);

struct draft_rows {
    struct batch_plan *plan; // of the next run, one of
    struct batch_plan plans[2];
    struct bucket bucket;
    int target_group, n_groups; // of the target's plan; of the draft, each with the same tables
    bool shares;                // the target's caches, group by group: nothing is stored
    int block_size, width;      // of tables
    int n_blocks, first_scratch, per_seq, n_scratch;
    int32_t *n_filled; // [first_scratch]: rows of a block that are there
};

struct draft_rows_options {
    struct bucket bucket;
    int target_group, n_groups;
    int n_scratch, most_ahead; // sequences that get guesses, and rows that each has behind its text
    bool shares;
};
void draft_rows_init(struct draft_rows *rows, const struct cache_config *target, const struct draft_rows_options *o);
void draft_rows_release(struct draft_rows *rows);

/* The next run's plan is the other one: the one before may be in flight. */
void draft_rows_turn(struct draft_rows *rows);

/* An empty plan; with a step's, the copies of cache that it began with, and what it computed is not there. */
void draft_rows_begin(struct draft_rows *rows, const struct batch_plan *step);

/* Rows [first, end) of sequence s of the step are to be made; those before `held` have blocks of the sequence's.
 * is_whole: then none before `end` is missing. */
struct draft_text {
    int32_t first, end, held;
    bool is_whole;
};
struct draft_text draft_text_of(struct draft_rows *rows, const struct batch_plan *step, int s, int32_t end);

/* Puts them into the plan: row p has token[p]. scratch: which blocks rows without one get; -1: there are none. */
void draft_rows_add(struct draft_rows *rows, const struct batch_plan *step, int s, struct draft_text text,
                    const int32_t *token, int scratch);

/* The first row of the text that was added last has no token. */
void draft_rows_blank_first(struct draft_rows *rows);

/* n rows from a position on, behind the text. */
void draft_rows_add_ahead(struct draft_rows *rows, const struct batch_plan *step, int s, int32_t position,
                          const int32_t *tokens, int n, int scratch);

/* A row more of one of several chains of a text: behind those of a chain of the run before. */
struct draft_fork {
    int s; // the text's sequence in the step
    int32_t position, token;
    int32_t first_entry; // of tables, from which chains have blocks of their own: draft_rows_first_of_fork
    bool is_from_text;   // it stands behind the text's rows, else behind another fork's
    int from, to;        // scratch that has the rows before it, and that takes them and it
};
void draft_rows_add_fork(struct draft_rows *rows, const struct batch_plan *step, const struct draft_fork *f);

/* Of a text of which the rows before `end` are there. */
int32_t draft_rows_first_of_fork(const struct draft_rows *rows, const struct batch_plan *step, int s, int32_t end);

/* The step is not followed: what it computed and copied has no rows. */
void draft_rows_without(struct draft_rows *rows, const struct batch_plan *step);
