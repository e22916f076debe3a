/* layouts.h - the ways in which a model may be spread over a number of cards, and how fast each should be.
 *
 *     tp   cards that share every layer (pass_shard); of mixtures with experts cut, or dealt out whole (by_expert)
 *     pp   stages of layers one behind the other, each of tp cards; a batch is cut into as many parts, which are in
 *          flight together
 *     dp   engines of tp x pp cards behind one front
 *
 * Only powers of two that divide the cards are tried. A program that cannot be cut so, or does not fit, is left out.
 * Times are those of step_time.h: decoding, each of N sequences of an engine in the middle of its answer. */
#pragma once

#include "base/status.h"
#include "sizing/step_time.h"

enum { MOST_BATCHES = 16, MOST_CARDS = 1 << 16, MOST_LAYOUTS = 256 };

struct sizing {
    const struct card *card;
    const struct link *link;
    int n_cards;
    bool makes_fp8;
    enum cache_format cache;
    double memory_share; // of the card's memory that may be taken
    int block_size;
    double n_input, n_output;             // tokens of a request
    int only_tp, only_pp;                 // no other; 0: any
    int batches[MOST_BATCHES], n_batches; // sequences an engine
};

/* An engine that decodes n sequences. */
struct layout_speed {
    bool fits;
    double step_s;            // from one token of a sequence to its next
    double user, card;        // tokens/s of one sequence; of one card
    double card_with_prompts; // tokens/s of one card that also computes the prompts, one after the other
    struct step_time parts;   // of the step, over all stages
    const char *limit;        // what most of it goes to
    enum basis basis;
};

struct layout {
    int tp, pp, dp;
    bool by_expert;
    double weight_bytes;                  // of the fullest card
    double cache_room;                    // bytes left on it
    double seq_bytes;                     // that a sequence's cache takes there at its end
    int64_t most_seqs;                    // of an engine
    double prompt_s;                      // a prompt of n_input tokens alone
    struct layout_speed at[MOST_BATCHES]; // [n_batches]
    struct step_model *model;             // of rank 0
    struct program *program;              // of rank 0
};

/* ERR_MEMORY: it fits in no way, with what the best one lacks. ERR_UNSUPPORTED: it cannot be cut, or has a latent cache
 * and another than 16 bits is asked for. */
enum status layouts_find(const struct program *whole, const struct sizing *s, struct layout **out, int *n,
                         struct error *err);
void layouts_free(struct layout *l, int n);

/* Seconds of a step of an engine of this layout, of these sequences, with its parts in flight. */
double layout_step_s(const struct layout *l, const struct sizing *s, const struct work_kind *kinds, int n_kinds,
                     struct step_time *parts);

/* Attention and feed-forward on different cards: engines of this layout that have one of both, two halves of a batch in
 * flight between them. Feed-forward sees the tokens of all that attend, so its weights are read for more. */
struct layout_split {
    int attention, ffn;  // engines
    double step_s, card; // tokens/s of a card
    double ffn_share;    // of the step of an engine that does both
    enum basis basis;
};

/* The best of these for a card at this batch; false: the layout has stages, or there are no two engines. */
bool layout_split(const struct layout *l, const struct sizing *s, int batch, struct layout_split *out);

/* Whether another one is at least as fast for the user and a card at this batch, and faster in one. */
bool layout_is_dominated(const struct layout *all, int n, int i, int batch);
