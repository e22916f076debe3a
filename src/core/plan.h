/* plan.h - one step: which tokens of which sequences are computed, where their cache lies, which rows give tokens.
 *
 * There are no phases. A sequence brings 1 token (decode) or many (prefill, chunk, draft check), and all kinds
 * stand in one step, sequence after sequence:
 *
 *     token rows      [ seq 0: q0 tokens | seq 1: q1 tokens | ... ]      T = query_start[S]
 *     query_start     [ 0, q0, q0+q1, ... ]                             [S + 1]
 *     position[t]     of row t in its sequence; consecutive inside a sequence
 *     from_row[t]     the output row of the step started before this one whose token this is, and which nobody but the
 *                     device may know yet (as program.token_of calls it); -1: token_id[t] says it
 *     seq_len[s]      tokens in the cache once this step is done = position of its last row + 1
 *     block_table[g]  [S, table_width[g]]: entry i holds positions [i*block_size, (i+1)*block_size); -1: none
 *                     (out of the window and given back). What stands behind position seq_len - 1 means nothing,
 *                     or, where held[s] is more than seq_len, behind held[s] - 1: blocks that it has already
 *     adapter[s]      that adds to its projections (ops.def, LORA), from 1; 0: none
 *     state_slot[s]   of recurrent groups; the state is zeroed where the sequence's first row has position 0. Where
 *                     that row lies before the state's end, by load_options.n_back tokens at most, the state goes back
 *                     to it first: what lies before n_sure[s] is never gone back from
 *     states[t]       of a program with STATES: that op's row t; or, where the device has it itself (states_from of
 *                     backend_ops), row state_row[t] of source state_source
 *     also[i]         what row `row` keeps in KV and latent caches stands in the blocks of sequence `seq` as well, at
 *                     the row's position, before any row of the step looks there: how branches of a tree of guesses,
 *                     which are sequences to a backend, share rows (sched/branches.h). Where backend_ops.branches
 *     copies[i]       of cache, done one after the other before any token of the step and after all earlier steps
 *     out_row[r]      the token row that output row r is made of, ascending
 *
 * Owned and filled by the engine; a backend reads it until the step is collected. A plan is numbers alone: it points
 * nowhere but to its own arrays, so that it can be sent to another process. What is wanted of the output rows
 * (core/sample.h) goes beside it, to the one place where tokens are drawn. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { MAX_CACHE_GROUPS = 8, STATE_SLOTS = -1 };

/* Block `to` of a group becomes what block `from` is; or state slot `to`, in all recurrent groups. Either may be one in
 * the memory of the host (struct cache_config). */
struct cache_copy {
    int32_t group; // or STATE_SLOTS
    int32_t from, to;
};

/* A device may have kernels or graphs for steps of which no sequence has more tokens (backend/cuda/step/graphs.c). */
enum { FEW_TOKENS = 8 };

/* See `also` above. */
struct also_kept {
    int32_t row, seq;
};

struct batch_plan {
    int n_tokens, n_seqs, n_rows, n_copies, n_also;
    int32_t *token_id, *position, *from_row; // [T]
    int32_t *query_start;                    // [S + 1]
    int32_t *seq_len, *n_known;              // [S]; n_known: tokens known so far, prompt included (see rope.h)
    int32_t *n_sure;                         // [S]: no later step goes back to before this token
    int32_t *held;                           // [S]: tokens that its blocks have room for; 0: not said, as off the wire
    int32_t *state_slot, *adapter;           // [S]
    int32_t *block_table[MAX_CACHE_GROUPS];
    int table_width[MAX_CACHE_GROUPS];
    int32_t *out_row;   // [R]
    float *states;      // [T, width of STATES]; NULL: the program has none, or the device has them
    int32_t *state_row; // [T]; -1: a row of zeros
    int state_source;
    struct cache_copy *copies; // [n_copies]
    struct also_kept *also;    // [n_also]
    bool wants_hidden;         // hidden states of it may be asked for
    bool draws_best;           // of a late step (backend.h): sample_is_best will be of every row, as far as is known
};

/* The largest step that a plan or an executable is made for. */
struct bucket {
    int max_tokens, max_seqs, max_rows, max_copies, max_also;
};

/* Allocates for a bucket; table_width[g] entries a sequence. All zero, but for from_row. */
void batch_plan_init(struct batch_plan *plan, struct bucket bucket, int n_groups, const int *table_width);
void batch_plan_add_states(struct batch_plan *plan, struct bucket bucket, int width);
void batch_plan_release(struct batch_plan *plan);
