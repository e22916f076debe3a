/* guess_tree.c - see guess_tree.h. */
#include "engine/draft/guess_tree.h"

#include "base/status.h"

#include <stdlib.h>

void guess_tree_init(struct guess_tree *t, int most_guesses, int topk) {
    *t = (struct guess_tree){.most = topk + (most_guesses - 1) * topk * topk};
    t->at = xcalloc((size_t)t->most, sizeof *t->at);
}

void guess_tree_release(struct guess_tree *t) { free(t->at); }

void guess_tree_add(struct guess_tree *t, int parent, int32_t token, double logprob) {
    const struct tree_guess *p = parent >= 0 ? &t->at[parent] : NULL;
    BUG_IF(t->n >= t->most || parent >= t->n);
    t->at[t->n++] = (struct tree_guess){token, parent, p ? p->depth + 1 : 0,
                                        (p ? p->score : 0) + (logprob < 0 ? (float)logprob : 0), false};
}

/* Of equal ones the first, so that a guess stands before those behind it. */
static bool is_better(const struct guess_tree *t, int a, int b) {
    return t->at[a].score != t->at[b].score ? t->at[a].score > t->at[b].score : a < b;
}

/* How many are better, of one depth or (-1) of all. */
static int rank_of(const struct guess_tree *t, int i, int depth) {
    int n = 0;
    for (int k = 0; k < t->n; k++)
        n += (depth < 0 || t->at[k].depth == depth) && is_better(t, k, i);
    return n;
}

int guess_tree_front(const struct guess_tree *t, int depth, int topk, int most, int *out) {
    int n = 0;
    for (int i = 0; i < t->n; i++)
        if (t->at[i].depth == depth && rank_of(t, i, depth) < topk && rank_of(t, i, -1) < most)
            out[n++] = i;
    return n;
}

void guess_tree_keep(struct guess_tree *t, int most) {
    for (int i = 0; i < t->n; i++)
        t->at[i].is_kept = rank_of(t, i, -1) < most;
}

/* The best one kept behind a guess; -1: there is none. */
static int best_behind(const struct guess_tree *t, int parent) {
    int best = -1;
    for (int i = parent + 1; i < t->n; i++)
        if (t->at[i].is_kept && t->at[i].parent == parent && (best < 0 || is_better(t, i, best)))
            best = i;
    return best;
}

int guess_tree_trunk(const struct guess_tree *t, int32_t *tokens) {
    int n = 0;
    for (int i = best_behind(t, -1); i >= 0; i = best_behind(t, i))
        tokens[n++] = t->at[i].token;
    return n;
}

/* Guess i begins a branch, or it is the best behind its parent and goes on with what that stands in. */
void guess_tree_branches(const struct guess_tree *t, int32_t position, struct branches *out) {
    int branch_of[MOST_TREE_GUESSES] = {0}, kept[MOST_TREE_GUESSES], n = 0;
    out->n = 0;
    for (int i = 0; i < t->n; i++) {
        const struct tree_guess *guess = &t->at[i];
        if (!guess->is_kept)
            continue;
        int parent = 0; // the branch that its parent stands in
        for (int k = 0; k < n; k++)
            parent = kept[k] == guess->parent ? branch_of[k] : parent;
        BUG_IF(n == MOST_TREE_GUESSES);
        kept[n] = i;
        branch_of[n] = parent;
        if (best_behind(t, guess->parent) != i) {
            BUG_IF(out->n == out->most);
            branch_of[n] = ++out->n;
            out->at[out->n - 1] = (struct branch){.parent = parent, .first = position + guess->depth};
        }
        if (branch_of[n] > 0) {
            struct branch *b = &out->at[branch_of[n] - 1];
            b->tokens[b->n++] = guess->token;
        }
        n++;
    }
}
