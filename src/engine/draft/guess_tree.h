/* guess_tree.h - guesses of which several may stand for one place, and which of them are worth a row (EAGLE-2, Li et
 * al. 2024, arXiv 2406.16858).
 *
 * A guess's score is the logarithm of the probability that it and those before it are right, as far as the draft knows.
 * Pass by pass the best of the newest ones are gone on with; of all that were made the best are kept. As no guess
 * scores better than the one before it, what is kept is a tree. */
#pragma once

#include "sched/branches.h"

enum { MOST_TOPK = 8, MOST_TREE_GUESSES = MOST_BRANCHES };

struct tree_guess {
    int32_t token;
    int parent; // -1: it stands behind the text
    int depth;  // from 0
    float score;
    bool is_kept;
};

struct guess_tree {
    int n, most; // guesses; that there is room for
    struct tree_guess *at;
};

void guess_tree_init(struct guess_tree *t, int most_guesses, int topk);
void guess_tree_release(struct guess_tree *t);

/* One more; its parent is there. */
void guess_tree_add(struct guess_tree *t, int parent, int32_t token, double logprob);

/* The best of a depth, at most topk, that are among the best `most` of all; returns how many. */
int guess_tree_front(const struct guess_tree *t, int depth, int topk, int most, int *out);

/* Keeps the best `most`. */
void guess_tree_keep(struct guess_tree *t, int most);

/* What is kept: the trunk, which goes on with the best of each place, to tokens [MOST_GUESSES], and returns its length;
 * and the rest, of which the first guesses stand at `position`. */
int guess_tree_trunk(const struct guess_tree *t, int32_t *tokens);
void guess_tree_branches(const struct guess_tree *t, int32_t position, struct branches *out);
