/* draft.h - a model that is small beside another, its target, and guesses what that will say.
 *
 *     struct draft *d;
 *     TRY(draft_open(&(struct draft_source){"draft_model", "models/small"}, target, &d, &err));
 *     d->target -> what runs in place of target->program; d->step -> loaded beside it
 *     draft_free(d);          // after everything that uses the programs
 *
 * A draft works on rows. Row p has position p, sees the rows before it, and says which token comes at p + 1 + is_ahead.
 *
 *     draft model   row p: token p                                    of a model of its own
 *
 * A program for it is recorded like a family's, with the weights that it borrows of the target. */
#pragma once

#include "model/model.h"

enum { NO_HIDDEN = -1 };

struct draft_source {
    const char *method; // as in vLLM's speculative_config: "draft_model"; NULL: what the draft's config.json says
    const char *path;   // its folder
};

struct draft {
    const char *method;       // as above
    struct model *model;      // its own config and weights
    struct program *step;     // makes the logits of a row
    const int32_t *target_id; // [step's vocabulary]: the target's token for each; NULL: they are the same
    bool is_ahead;            // row p is made with the token behind it, p + 1
};

/* ERR_UNSUPPORTED says what does not fit the target. *out outlives what is loaded of it, and `target` outlives *out. */
enum status draft_open(const struct draft_source *source, const struct model *target, struct draft **out,
                       struct error *err);
void draft_free(struct draft *d); // NULL is fine
