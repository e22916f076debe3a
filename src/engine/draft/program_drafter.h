/* program_drafter.h - guesses from a program beside the target on the same device (model/draft/draft.h).
 *
 *     after a step   the draft computes rows of the text that this step computed, and of each sequence that decodes
 *                    the first guess; then, row by row, the others: a chain
 *     before the next one   they are handed out, if the text is still the one that they are for
 *
 * The draft's cache lies beside the target's: block b holds the rows of the positions whose keys block b of the
 * target's `group` holds. So what is shared, remembered, copied or given back is so for both, and no tables are kept.
 * n_filled says how many rows of a block, from its first, are there; those of a block that was computed without the
 * draft are not, and a draft that only needs tokens makes up for that. Rows of a chain that lie in no block of the
 * sequence's yet go to blocks of the drafter's own, and are made again when their tokens are known. */
#pragma once

#include "engine/draft/drafter.h"
#include "gyre.h"
#include "model/draft/draft.h"

/* ERR_UNSUPPORTED says why no draft runs beside this target, or not this one. */
enum status program_drafter_check(const struct gyre *g, const struct draft *draft, struct error *err);

/* Likewise why it guesses no trees. */
enum status program_drafter_check_tree(const struct gyre *g, const struct draft *draft, struct error *err);

/* After the target is loaded: places the draft's weights. Then, when the cache's size is known, all else. */
enum status program_drafter_load(struct gyre *g, const struct gyre_options *o, const struct draft *draft,
                                 struct error *err);
enum status program_drafter_open(struct gyre *g, const struct gyre_options *o, struct error *err);

/* When the target is compiled. */
enum status program_drafter_link(struct gyre *g, struct error *err);

/* For tests: what ran last on it, after a step, and which row of that gave the first sequence's last guess. */
struct executable *program_drafter_exe(const struct gyre *g, int *row);
