/* branches.h - other guesses for the places of a draft: a tree, whose trunk are the guesses in the sequence's tokens.
 *
 *     position   n_computed  n_known ...
 *     trunk      [ newest ][ a b c d ]
 *     branch 1             [ e f ]             parent 0, first n_known
 *     branch 2               [ g ]             parent 1: g may follow e
 *
 * To a backend a branch is a sequence of the step. Up to the block in which it parts it reads its parent's cache; from
 * there on it has blocks of its own, for one step. What that block held before is copied, and what rows of the step
 * keep there is kept twice (`also` of plan.h). So a row sees its ancestors and nothing else, in the order of a text
 * without guesses, and no attention knows of trees. When the token at `first` is that of the branch the sequence takes
 * its blocks, and no key is moved. */
#pragma once

#include "sched/sequence.h"

enum { MOST_BRANCHES = 31, MOST_BRANCH_TOKENS = 16, MOST_BRANCH_BLOCKS = MOST_BRANCH_TOKENS + 1 };

struct branch {
    int32_t parent;   // 0: the trunk; or branch number `parent`, which is smaller than its own
    int32_t first, n; // positions [first, first + n)
    int32_t tokens[MOST_BRANCH_TOKENS];
    int32_t n_blocks; // of its own in each paged group, the first of which holds position `first`; 0: none
    int32_t blocks[MAX_CACHE_GROUPS][MOST_BRANCH_BLOCKS];
};

struct branches {
    int most, n; // branch number i is at[i - 1]
    int taken;   // that the sequence went to in the step that was collected last; 0: it stayed on the trunk
    struct branch at[];
};

/* Of the sequence from now on, from the arena. */
void branches_init(struct sequence *seq, struct arena *arena, int most);

static inline int branches_n(const struct sequence *seq) { return seq->branches ? seq->branches->n : 0; }

/* The branch that begins with this token where the sequence's next one is; 0: there is none, or the trunk has it. */
int branches_with(const struct sequence *seq, int32_t token);

/* The step is planned, but for them: those of seq, if it is in the step, that still fit. */
struct scheduler;
void scheduler_plan_branches(struct scheduler *s, struct sequence *seq, bool in_step);

/* On the way from the trunk's beginning to the end of branch `from`: the branch whose row the position is. */
int branches_on_way(const struct branches *b, int from, int32_t position);
