/* sequence.h - the tokens of one request as the scheduler sees them, and the cache that it holds for them.
 *
 *     tokens   [0 ......... n_computed) [n_computed .. + n_scheduled) [ ......... n_tokens)
 *               in the cache, or in      in the step that is planned   waiting
 *               a step in flight
 *              [0 .............................. n_known) [n_known .......... n_tokens)
 *                                                          guessed, or expected: the device has them, or will
 *
 * There are no phases: while n_computed < n_tokens there is something to compute. Tokens that were generated
 * are appended and close the same gap, so a sequence that lost its cache is just one with n_computed 0. When a step is
 * started the token that it will give is expected, so that the next step can be planned with it; at most one is
 * expected when a step is planned, and it comes from row newest_row of the step in flight.
 *
 * A draft is a number of guesses: tokens that may come next, which are computed as if they were known. Each gives an
 * output row, and that of the token before it tells what it should have been. Those that the next step does not take
 * are dropped, and guessed anew. Where a guess was wrong the sequence goes back: n_computed falls to its place, and
 * rows of what was computed behind it, of steps in flight too, are void; they
 * were planned when n_backs was another. */
#pragma once

#include "base/arena.h"
#include "core/plan.h"
#include "sched/block_list.h"
#include "sched/prefix_cache.h"

#include <stdbool.h>

enum { NO_STATE_SLOT = -1, NOT_EXPECTED = -1 };

/* Where the scheduler keeps it. */
enum sequence_place {
    SEQ_OUTSIDE, // not known to the scheduler
    SEQ_WAITING, // holds no cache but what was remembered of its text, once its turn is near; or is swapped, or paused
    SEQ_RUNNING,
    SEQ_LEAVING, // removed, but a step in flight has it: outside once that is collected
};

/* Blocks of one cache group: entries [first, end) of table are held; before first they are given back (out of
 * the window) and NO_BLOCK. Entry i holds positions [i * block_size, (i + 1) * block_size). */
struct block_table {
    int32_t *block; // [capacity / block_size, rounded up]
    int32_t first, end;
};

/* Who comes first: lower priority, then lower order. Set before scheduler_add, never changed, no two equal. */
struct sequence_rank {
    int32_t priority;
    int64_t order;
};

struct branches; // branches.h
struct sequence {
    void *owner;
    struct sequence_rank rank;
    int32_t *tokens; // [capacity]: the prompt, then what was generated, then guesses; any where one is expected
    int32_t capacity, n_tokens, n_computed, n_scheduled;
    int32_t n_known, newest_row;
    int32_t expected[2]; // positions of tokens that are expected, of the last step that was started and the one before
    int32_t n_backs;     // times that it went back
    struct branches *branches; // other guesses; NULL: it never has some
    int n_in_flight;           // steps that were started with it and not collected
    int32_t first_row;  // each position from here on gives an output row; INT32_MAX: only the last known token does
    bool whole;         // all of it is to be computed: nothing is recalled from the prefix cache
    int32_t state_slot; // of recurrent groups
    int32_t state_base; // a state that can go back goes no further than to behind so many tokens
    bool swapped;       // what it holds is in the host's memory
    bool paused;        // it is in no step that is planned from now on
    struct block_table tables[MAX_CACHE_GROUPS];
    struct prefix_salt salt;
    int32_t node, n_remembered; // the first n_remembered blocks are known to the prefix cache; node is the last one's
    int32_t checkpoints[2]; // of recurrent groups: after so many tokens the state is kept, ascending; 0: nowhere more
    int32_t answer_checkpoint; // node of the last one after those; it moves along as the answer grows. NO_NODE: none
    int32_t n_recalled;        // tokens that the prefix cache had when it was first admitted; -1: not yet
    enum gyre_cache_miss miss; // why it had no more of them
    int32_t n_preempted;       // times that it lost its cache
    enum sequence_place place;
    struct sequence *prev, *next; // in the waiting or the leaving list
};

/* A sequence of at most `capacity` tokens, none known yet; its arrays come from the arena. */
void sequence_init(struct sequence *seq, struct arena *arena, int32_t capacity, int n_groups, int block_size);

static inline bool sequence_before(const struct sequence *a, const struct sequence *b) {
    return a->rank.priority != b->rank.priority ? a->rank.priority < b->rank.priority : a->rank.order < b->rank.order;
}

/* The next token is known: the expected one, one that nobody expected, or that of a guess. False: the guess was wrong,
 * and the sequence has gone back. */
bool sequence_append(struct sequence *seq, int32_t token);

/* Whether the token at the position is to come from a step that was started. */
static inline bool sequence_expects(const struct sequence *seq, int32_t position) {
    return position >= seq->n_known && (position == seq->expected[0] || position == seq->expected[1]);
}

/* Guesses of what comes behind its last token; they fit. */
void sequence_guess(struct sequence *seq, const int32_t *tokens, int n);

/* A step was planned, or none could be: guesses that it does not take are not wanted; what is expected stays. Masks and
 * distributions that were made for a draft hold for one plan only. */
void sequence_drop_guesses(struct sequence *seq);

/* In the device's memory, that is. */
static inline bool sequence_holds_cache(const struct sequence *seq) { return seq->n_computed > 0 && !seq->swapped; }

/* Whether one token that is no guess is all that is left to compute, before any guesses. */
bool sequence_decodes(const struct sequence *seq);

/* All that is known of it is in a step that was started: one more token will come, if there is one. The last that it
 * may have is not expected, as it need not be computed. */
void sequence_expect(struct sequence *seq);

/* It has ended, or loses its cache: what is guessed, or still expected, is not wanted. */
void sequence_expect_no_more(struct sequence *seq);

/* Output rows that computing the next n tokens would give. */
int sequence_rows(const struct sequence *seq, int n);

/* The position of the first of those rows; the others follow it one by one. */
int32_t sequence_row_start(const struct sequence *seq);
