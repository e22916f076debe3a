/* branch_way.c - which rows a sequence's way through its branches has; see branches.h. */
#include "engine/draft/branches.h"

int engine_most_branches(const struct gyre_options *o) {
    int rows = o->draft_rows ? o->draft_rows : o->n_guesses + 1;
    return o->draft_topk > 1 ? MAX(rows - 2, 0) : 0; // the newest token, and one guess at least, are the trunk's
}

int32_t engine_row_on_way(const struct batch_plan *plan, int s, const struct branches *b, int to, int32_t position) {
    int32_t first = plan->query_start[s + branches_on_way(b, to, position)];
    return first + (position - plan->position[first]);
}

int engine_branch_taken(const struct step *step, int s) {
    const struct branches *b = step->requests[s]->sequence.branches;
    return b ? b->taken : 0;
}

int32_t engine_row_of(const struct step *step, int s, int32_t position) {
    return engine_row_on_way(&step->plan, s, step->requests[s]->sequence.branches, engine_branch_taken(step, s),
                             position);
}
