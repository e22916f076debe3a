/* head_files.h - a head as a folder: config.json and model.safetensors. EAGLE-3's is in SpecForge's layout; that of a
 * next-token predictor has the target's config.json and the tensors named mtp. as its checkpoint would. */
#pragma once

#include "model/draft/draft.h"
#include "train/examples.h"

/* What stands beside the weights. */
struct head_config {
    struct head_shape shape;
    int layers[TEACHER_TAPS]; // of the target, whose outputs are read; not of a predictor, which reads the last norm's
};

/* Shape and layers for a target unless somebody says otherwise. EAGLE-3: the target's width and heads, an FFN as wide
 * as that, the layers that EAGLE-3 takes of any model, `vocab` tokens. A predictor: a layer as the target's last with
 * attention, and all tokens; ERR_UNSUPPORTED says why there is none for this target. */
enum status head_config_for(enum head_kind kind, const struct model *target, int64_t vocab, struct head_config *out,
                            struct error *err);

/* Weights are written in bf16; folder must be there. vocab: of all the target's tokens where its n is n_target. */
enum status head_write(const char *folder, const struct head_config *c, const struct draft_vocab *vocab,
                       const struct model_spec *target, const float *weight, struct error *err);

/* Weights as they are when they are read again from what head_write writes. */
void head_round(const struct head_shape *s, const float *weight, float *out);

/* What a folder with a head for this target says (a predictor's may be the target's): config, vocabulary, and then
 * weights. ERR_UNSUPPORTED names what head.h does not compute. */
struct head_file;
enum status head_open(enum head_kind kind, const char *folder, const struct model *target, struct head_file **out,
                      struct error *err);
void head_close(struct head_file *f); // NULL is fine
const struct head_config *head_file_config(const struct head_file *f);
const struct draft_vocab *head_file_vocab(const struct head_file *f);
/* Its weights, [head_size]. ERR_UNSUPPORTED: one is of another shape. */
enum status head_read(const struct head_file *f, float *weight, struct error *err);

/* Whether the target's checkpoint holds a predictor. */
bool head_is_stored(const struct model *target);

/* Weights to begin with: the target's last layer (a predictor: its last with attention), norm and head where shapes
 * agree, small random numbers elsewhere; and what fc makes is the last of the target's states, with a little of what
 * else it reads. */
void head_start(const struct head_config *c, const struct draft_vocab *vocab, const struct model *target, uint64_t seed,
                float *weight);
