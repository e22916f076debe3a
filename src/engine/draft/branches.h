/* branches.h - other guesses than those of the trunk in the step (sched/branches.h), of engine.h's structs. */
#pragma once

#include "engine/engine.h"

/* Rows of the branches of sequence s of the step, behind its own. */
void engine_fill_branches(struct gyre *g, struct step *step, int s);

/* The step's tokens are known. */
void engine_settle_branches(struct gyre *g, const struct step *step);

/* step.c: what the row of a position is drawn with. */
struct sample_params engine_row_params(const struct request *r, int32_t position);

/* branch_way.c: the token row of a position on the way to the end of branch `to` of sequence s of the plan; on the way
 * that the sequence took; the branch that it took, whose sequence of the step is s + that. */
int32_t engine_row_on_way(const struct batch_plan *plan, int s, const struct branches *b, int to, int32_t position);
int32_t engine_row_of(const struct step *step, int s, int32_t position);
int engine_branch_taken(const struct step *step, int s);

/* How many a sequence may have; whether this one may (may_guess.c). */
int engine_most_branches(const struct gyre_options *o);
bool engine_may_branch(const struct request *r);
