/* trainer.h - trains a head on examples: AdamW, a cosine from the highest rate down, gradients cut to length
 * 1.
 *
 * What a step computes depends on the options, the examples and its number alone: not on threads, nor on whether the
 * training was stopped and went on in between. */
#pragma once

#include "model/draft/draft.h"
#include "train/acceptance.h"
#include "train/head_files.h"

struct trainer_options {
    int guesses;    // steps of a chain that are trained, 1 to MOST_HEAD_STEPS
    int batch;      // pieces a step
    int64_t window; // rows of a piece at most
    int64_t n_steps;
    double lr;
    uint64_t seed; // of the order
    int n_threads; // 0: one a processor
};

struct held_out {
    struct texts texts;       // prompts with the target's greedy answers
    int64_t *n_prompt;        // [texts.n]
    struct examples examples; // whose pieces are whole texts
    int64_t longest;
};
void held_out_release(struct held_out *h);

struct trainer {
    struct trainer_options o;
    struct head_config config;
    const struct examples *examples;
    const struct held_out *held; // may be empty
    const struct draft_vocab *vocab;
    int64_t step;  // that were done
    int64_t epoch; // that `order` is of, -1: none
    int64_t *order;
    struct crew *crew;
    struct batch_room room, held_room;
    struct head_f32 head;
    float *m, *v, *rounded; // [head_size]; rounded to bf16, as the head will be used
    float *lm_head;         // [vocab, hidden], the target's, which a predictor shares; NULL: it has its own
    double *squares;        // sums of blocks
};

/* The weights are zero: head_start, head_read or training_load fills trainer.head.weight. All is borrowed, the target's
 * embedding among it. */
enum status trainer_init(struct trainer *t, const struct trainer_options *o, const struct head_config *c,
                         const struct draft_vocab *vocab, const struct draft_target *target,
                         const struct examples *examples, const struct held_out *held, struct error *err);
void trainer_release(struct trainer *t); // zeroed is fine

int64_t trainer_epoch_steps(const struct trainer *t);

/* One step; t->head.total and .loss tell of it. ERR_FORMAT if the loss is no number any more. */
enum status trainer_step(struct trainer *t, struct error *err);

/* What a step takes, without making one. */
double trainer_step_seconds(struct trainer *t);

/* With the weights as they will be stored. */
void trainer_measure(struct trainer *t, struct acceptance *out);
