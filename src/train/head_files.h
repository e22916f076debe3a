/* head_files.h - an EAGLE-3 head as a folder in SpecForge's layout: config.json and model.safetensors. */
#pragma once

#include "model/model.h"
#include "train/examples.h"

/* What stands beside the weights. */
struct head_config {
    struct head_shape shape;
    int layers[TEACHER_TAPS]; // of the target, whose outputs are read
};

/* Shape and layers for a target unless somebody says otherwise: its width and heads, an FFN as wide as that, the layers
 * that EAGLE-3 takes of any model. */
struct head_config head_config_for(const struct model_spec *target, int64_t vocab);

/* Weights are written in bf16; folder must be there. vocab: of all the target's tokens where its n is n_target. */
enum status head_write(const char *folder, const struct head_config *c, const struct draft_vocab *vocab,
                       const struct model_spec *target, const float *weight, struct error *err);

/* What the folder of a head for this target says: its config, its vocabulary, and then its weights. ERR_UNSUPPORTED
 * names what head.h does not compute. */
struct head_file;
enum status head_open(const char *folder, const struct model *target, struct head_file **out, struct error *err);
void head_close(struct head_file *f); // NULL is fine
const struct head_config *head_file_config(const struct head_file *f);
const struct draft_vocab *head_file_vocab(const struct head_file *f);
/* Its weights, [head_size]. ERR_UNSUPPORTED: one is of another shape. */
enum status head_read(const struct head_file *f, float *weight, struct error *err);

/* Weights to begin with: the target's last layer, norm and head where shapes agree, small random numbers elsewhere; and
 * what fc makes is the last of the tapped states, with a little of the others. */
void head_start(const struct head_config *c, const struct draft_vocab *vocab, const struct model *target, uint64_t seed,
                float *weight);
