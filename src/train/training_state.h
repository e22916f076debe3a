/* training_state.h - a training on disk, so that it can go on: one file, safetensors by its form, with the weights and
 * AdamW's sums in float32, the texts, and the options as text. A training that goes on has the same bits as one that
 * was never stopped. */
#pragma once

#include "train/trainer.h"

/* `options` is whatever the caller wants back. */
enum status training_save(const char *path, const struct trainer *t, const struct texts *texts, const char *options,
                          struct error *err);

/* What a file holds: read first, then given to a trainer of that shape. */
struct training_state {
    char *options; // text
    int64_t step;
    struct texts texts, held_texts;
    int64_t *n_prompt; // [held_texts.n]
    struct draft_vocab vocab;
    struct head_config config;
    int64_t n_weights;
    float *weight, *m, *v; // [n_weights]
};
enum status training_load(const char *path, int32_t n_target, struct training_state *out, struct error *err);
void training_state_release(struct training_state *s); // zeroed is fine
