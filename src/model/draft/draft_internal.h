/* draft_internal.h - what the files of drafts share. Each has a family (config and weights, for `gyre info` too), and a
 * function that opens it beside a target. */
#pragma once

#include "core/pass/pass.h"
#include "model/draft/draft.h"
#include "model/families/family.h"

#include <string.h>

/* Behind d->model->spec: its checkpoint, unless weights are phantoms, and who binds them; under `prefix`, NULL: as a
 * model's. */
enum status draft_weights_open(struct draft *d, const char *path, const char *prefix, struct binder *b,
                               struct error *err);

/* d->model: config and weights of `path` in the family's words. */
enum status draft_bind(struct draft *d, const char *path, const struct family *family, const void **weights,
                       struct error *err);

/* d->target: the target's program with a feature of the taps that the draft's spec names. */
enum status draft_feature(struct draft *d, const struct model *target, struct feature *f, struct error *err);

/* A vocabulary of the draft's own, draft.own_vocab of its spec: i + d2t[i] is a token of the target's. NULL: the
 * checkpoint says none. Then d->target_id, left NULL where there is no such vocabulary. */
const struct stored_tensor *draft_bind_offsets(struct binder *b);
enum status draft_own_vocab(struct draft *d, const struct stored_tensor *offsets, const struct draft_target *t,
                            struct error *err);

enum status mtp_open(struct draft *d, const struct draft_source *source, const struct model *target, struct error *err);
enum status dflash_open(struct draft *d, const struct draft_source *source, const struct model *target,
                        struct error *err);
enum status assistant_open(struct draft *d, const struct draft_source *source, const struct model *target,
                           struct error *err);
enum status eagle3_open(struct draft *d, const struct draft_source *source, const struct model *target,
                        struct error *err);

/* DSpark's: see dspark.c. The settings are those of a block. */
struct markov {
    const struct weight *w1, *w2; // [V, rank]; w1 NULL: there is none
    struct projection gate;       // w NULL: likewise
};
enum status dspark_read(const struct spec_reader *r, const json_t *settings);
void markov_bind(struct binder *b, struct markov *m);

/* Rows of a token, and of the state of the row that guesses the one behind it. */
void markov_record(struct program *p, const struct model_spec *s, const struct markov *m, const struct weight *lm_head);
