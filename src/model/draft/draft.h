/* draft.h - a model that is small beside another, its target, and guesses what that will say.
 *
 *     struct draft *d;
 *     TRY(draft_open(&(struct draft_source){"draft_model", "models/small"}, target, &d, &err));
 *     d->target -> what runs in place of target->program; d->step -> loaded beside it
 *     draft_free(d);          // after everything that uses the programs
 *
 * A draft works on rows. Row p has position p, sees the rows before it, and says which token comes at p + 1 + is_ahead.
 *
 *     draft model   row p: token p                                    of a model of its own; one with other tokens
 *                   than the target's (through_text) has rows of its own text
 *     EAGLE-3       row p: token p + 1, and the target's feature at p; in a chain the row's before, its carry
 *     MTP           likewise, with the target's last hidden state
 *     DFlash        row p: the target's feature at p; then a block of rows at once, of the newest token and masks
 *     DSpark        likewise; then, guess after guess, the row's state and the token before
 *     Gemma 4's     the newest token and the target's last hidden state before it; keys and values are the target's,
 *                   and rows of a chain stand all at the same place
 *
 * A program for it is recorded like a family's, with the weights that it borrows of the target. */
#pragma once

#include "model/model.h"

enum { NO_STATES = -1 };

/* Whether a draft model's tokens are those of its target. */
enum draft_tokens { TOKENS_UNKNOWN, TOKENS_SAME, TOKENS_OTHER };

struct draft_source {
    const char *method; // as in vLLM's speculative_config: "draft_model"; NULL: what the draft's config.json says
    const char *path;   // its folder; NULL, of "mtp": the target's
    const char *target_path;
    bool is_phantom; // weights without data, of config.json alone: a device makes them (makes_dummies)
    enum draft_tokens tokens;
};

struct draft {
    const char *method;       // as above
    bool is_phantom;          // likewise
    struct program *target;   // what runs in place of the target's program; NULL: that
    int feature;              // of the target, which `hidden` of backend_ops it is; NO_STATES: the step reads none
    int carry;                // likewise of the step, in a chain
    struct model *model;      // its own config and weights
    struct program *step;     // makes the logits of a row
    const int32_t *target_id; // [step's vocabulary]: the target's token for each; NULL: they are the same
    bool through_text;        // its tokens are others than the target's: no row of it belongs to one of those
    bool is_ahead;            // row p is made with the token behind it, p + 1
    bool is_first_blank;      // row 0 has no token
    bool reads_target;        // it has no cache of its own, but reads the target's
    struct program *context; // makes rows of the text in the step's caches, which then computes a block; NULL: the step
    int block;               // rows of that, the first of them with the newest token
    int32_t mask;            // the token of the others
    bool from_anchor;        // row i of a block gives guess i, and not guess i - 1
    struct program *chooser; // makes a guess of the token before it and its row's state, `carry`; NULL: the row does
};

/* ERR_UNSUPPORTED says what does not fit the target. *out outlives what is loaded of it, and `target` outlives *out. */
enum status draft_open(const struct draft_source *source, const struct model *target, struct draft **out,
                       struct error *err);
void draft_free(struct draft *d); // NULL is fine

/* What a draft borrows of its target: from its program, so that no family knows of drafts. */
struct draft_target {
    const struct weight *embed, *lm_head;
    float embed_scale;
    float softcap; // on its logits; 0: none
    int vocab_size, hidden_size, n_layers;
};
enum status draft_target_of(const struct model *target, struct draft_target *out, struct error *err);

/* The layers of which an EAGLE-3 head reads the outputs unless its config says otherwise: near the first, in the
 * middle, near the last. */
void draft_default_taps(int n_layers, int out[3]);
