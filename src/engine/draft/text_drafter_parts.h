/* text_drafter_parts.h - what text_drafter.c, which guesses, text_places.c, which knows whose text is where, and
 * text_drafter_open.c share. */
#pragma once

#include "engine/draft/text_drafter.h"
#include "engine/draft/token_bytes.h"
#include "engine/engine.h"

/* What the draft knows of a sequence. */
struct text_place {
    uint64_t owner; // the request's id
    bool is_taken;
    int64_t used;                   // the last follow that it had a part in
    int32_t *ids, n_ids, n_rows;    // the draft's tokens, its guesses among them; of how many rows are there
    int32_t n_closed, n_closed_ids; // of the target's tokens and the draft's: they are not cut again
    int32_t *blocks, n_blocks;
};

struct text_chain {
    struct request *request;
    struct text_place *place;
    int row, n_made, most; // of the last run, -1: none; tokens of the draft
    bool has_ended;
};

struct text_drafter {
    struct gyre *g;
    const struct draft *draft;
    struct loaded *loaded;
    struct executable *exe;
    struct batch_plan plan;
    struct sample_params *sample;  // [max_rows]
    struct sample_result *results; // [max_rows]
    struct bucket bucket;
    struct token_bytes target, own; // tokens
    int32_t *special;               // [target.n]: the draft's token of the same name; -1: none
    struct text_place *places;      // [n_places]
    struct text_chain *chains;      // [n_places]
    int n_places, n_chains, most_guesses;
    bool catches_up; // some place of this follow lacked more than what a step or two say
    int64_t n_follows;
    int32_t longest; // tokens of the draft that a place holds
    int32_t *free_blocks, n_free;
    int block_size;
    struct guess_price price;
    char bytes[MOST_CUT_BYTES];
    int32_t ends[MOST_CUT_BYTES + 1];                     // of the target's tokens in it
    int32_t cut[MOST_CUT_BYTES], cut_end[MOST_CUT_BYTES]; // into the other's
};

/* The place of a sequence, its text cut anew. NULL: it is too long, or there is no cache for it. */
struct text_place *text_place_for(struct text_drafter *d, const struct request *r, int n_ahead);

/* The last n tokens of a place in the target's words, max at most; returns how many. */
int text_place_guesses(struct text_drafter *d, const struct text_place *t, int n, int32_t *out, int max);

/* As struct drafter has them. */
int text_drafter_guess(void *context, const struct sequence *seq, int32_t *out, int max);
enum status text_drafter_follow(void *context, const struct step *step, struct error *err);
