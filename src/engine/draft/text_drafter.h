/* text_drafter.h - guesses of a draft model that has other tokens than its target: through the bytes of both.
 *
 *     after a step   the text of each sequence that decodes is cut into the draft's tokens; the draft computes the rows
 *                    that it lacks, and goes on greedily, row by row; what it says is cut into the target's tokens
 *
 * A row of the draft belongs to no token of the target, so its cache lies beside no other: each sequence that gets
 * guesses has a place of its own, with the draft's tokens, the rows that are there, and blocks. Of the text only the
 * end is cut again: what lies before a border of tokens of both stays as it was cut. A place is taken from who guessed
 * longest ago; then the text is cut and computed from its beginning. */
#pragma once

#include "engine/draft/program_drafter.h"

/* As program_drafter.h has them. */
enum status text_drafter_load(struct gyre *g, const struct gyre_options *o, const struct draft *draft,
                              struct error *err);
enum status text_drafter_open(struct gyre *g, const struct gyre_options *o, struct error *err);

/* Whether a draft is a model with tokens of its own, or those of its target, so that it is opened with both
 * (gyre_options.model_tokens). method NULL: as its folder says; path NULL: there is no draft. */
bool engine_draft_is_model(const char *method, const char *path);
