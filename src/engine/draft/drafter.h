/* drafter.h - who guesses what comes next: the text itself (ngram.h), a program on the device (program_drafter.h).
 *
 * After each step a drafter may look at what it made (follow); before the next one it is asked for guesses, and when
 * the tokens at their places are known it is told which were right. */
#pragma once

#include "base/status.h"
#include "engine/draft/economy.h"

#include <stdbool.h>
#include <stdint.h>

struct branches;
struct gyre;
struct guess_tree;
struct request;
struct sequence;
struct step;

enum { MOST_GUESSES = 16, MOST_SEQS_THAT_GUESS = 8 };

/* Why a sequence that decodes gets no guess. */
enum draft_off {
    DRAFT_OFF_BATCH, // more sequences than most_seqs run
    DRAFT_OFF_PRICE, // it would take longer than it saves, or a step's time without is wanted (economy.h)
    DRAFT_OFF_NONE,  // nobody has one
    N_DRAFT_OFF
};
extern const char *const draft_off_name[N_DRAFT_OFF];

struct drafter {
    /* Writes up to max tokens that may follow those of seq, of which the last may be expected; returns how many.
     * NULL: nobody guesses. */
    int (*guess)(void *context, const struct sequence *seq, int32_t *out, int max);

    /* Other guesses than those that were just given, for the same places, to out->at and out->n. Of requests that may
     * have some. NULL: there are none. */
    void (*branch)(void *context, const struct sequence *seq, struct branches *out);

    /* A guess came to be known: it was right, or it was wrong and those behind it are void. In the order of the text,
     * and when its step is collected; another guess may be in flight then. NULL: it does not care. */
    void (*judged)(void *context, struct request *r, bool is_right);

    /* A step was collected and its tokens are known; its hidden states can still be read, and its requests are there,
     * even those that have ended. Fails with the device. NULL: it does not look. */
    enum status (*follow)(void *context, const struct step *step, struct error *err);

    void (*close)(void *context); // before the device is closed; NULL: there is nothing to close
    void *context;
    int most_branches; // of a sequence
    bool is_fixed;     // num_speculative_tokens are guessed each time, whether it pays or not; for tests
    bool tells_logits; // of rows that give guesses; for tests
    bool rejects;      // guesses are kept by rejection sampling, not by the draw itself
    bool reads_hidden; // follow may ask for hidden states
    bool waits;        // the next step is planned when none is in flight: guesses follow from what is known
    int most_seqs;     // with more in a step nobody guesses: rows cost then; 0: no bound
    int64_t n_drafts, n_guessed, n_accepted;
    int64_t n_right_at[MOST_GUESSES]; // of the first guess of drafts, the second ...
    int64_t n_off[N_DRAFT_OFF];       // times that a sequence got none
    double pass_us;                   // what a guess takes of a draft, lately
    struct guess_times times;
    int64_t free_us;  // since when the host has had nothing but the next step to do; 0: another kind of step was before
    double synthetic; // a guess is taken for right with this probability, whatever it is; 0: no
    const int32_t *told; // [n_told], answers are these tokens, whatever is drawn; for benchmarks. NULL: no
    int32_t n_told;
    bool is_off; // nobody is asked for a guess, and no step followed
};

/* What a drafter has ready for a request. */
struct proposal {
    int32_t at, n; // it is for a text of so many known tokens
    int32_t tokens[MOST_GUESSES];
    int64_t follow;                // made in this one of the drafter's
    const struct guess_tree *tree; // of which they are the trunk; as long as q. NULL: of none
    float *q; // [n][vocabulary]: what each was drawn from, until the next follow; NULL: nobody asks
};
