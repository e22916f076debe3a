/* parts.h - a step cut into parts of whole sequences, which are in flight together in the stages of a pipeline. */
#pragma once

#include "core/plan.h"

/* Of a step: sequences, tokens and rows of the whole. */
struct part {
    struct batch_plan plan; // its arrays are the whole one's, but for these:
    int32_t *query_start, *out_row;
    int first_token, first_row, n_rows;
};

/* Into at most `most` parts, one at least, of about as many tokens each; returns how many. The parts' query_start
 * [max_seqs + 1] and out_row [max_rows] are the caller's memory. Copies are the first part's. */
int plan_cut(const struct batch_plan *plan, int most, struct part *parts);
