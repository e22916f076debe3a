/* branches.c - see branches.h. */
#include "sched/branches.h"

void branches_init(struct sequence *seq, struct arena *arena, int most) {
    seq->branches = arena_calloc(arena, 1, sizeof *seq->branches + (size_t)most * sizeof *seq->branches->at);
    seq->branches->most = most;
}

int branches_with(const struct sequence *seq, int32_t token) {
    const struct branches *b = seq->branches;
    int32_t at = seq->n_known;
    if (branches_n(seq) == 0 || (at < seq->n_tokens && !sequence_expects(seq, at) && seq->tokens[at] == token))
        return 0;
    for (int i = 1; i <= b->n; i++)
        if (b->at[i - 1].n_blocks > 0 && b->at[i - 1].parent == b->taken && b->at[i - 1].first == at &&
            b->at[i - 1].tokens[0] == token)
            return i;
    return 0;
}

int branches_on_way(const struct branches *b, int from, int32_t position) {
    while (from > 0 && position < b->at[from - 1].first)
        from = b->at[from - 1].parent;
    return from;
}
