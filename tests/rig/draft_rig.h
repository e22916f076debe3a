/* draft_rig.h - folders of drafts with random weights, in the layouts that published ones have: trained ones are too
 * large for this repository. A draft that guesses nonsense must change no token either; and the same weights in another
 * layout must give the same guesses. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { RIG_PATH = 64 };

struct rig_tensor {
    const char *name;
    int rank;
    int64_t shape[3];
    const void *data; // NULL: random numbers, which depend on `seed` alone
    uint64_t seed;
    const char *dtype; // "F32" where NULL
};

/* Writes config.json and model.safetensors into a new folder, whose name it leaves in path. */
void rig_write_draft(const char *config, const char *file_name, const struct rig_tensor *tensors, size_t n,
                     char path[RIG_PATH]);
void rig_remove_draft(const char *path);

/* A copy of the target, whose tensors are in one file, and these in a second shard. */
void rig_write_beside(const char *target, const struct rig_tensor *tensors, size_t n, char path[RIG_PATH]);

/* The tensor's random numbers. */
void rig_fill(const struct rig_tensor *t, float *out);

/* Puts `with` in place of `text`, of the same length, which must be in the file. */
void rig_replace(const char *path, const char *file_name, const char *text, const char *with);

/* A DFlash draft for tests/models/qwen3, and an assistant for tests/models/gemma4. */
void rig_dflash(char path[RIG_PATH]);
void rig_assistant(char path[RIG_PATH]);

/* A copy of a Qwen3.5 with a next-token predictor, two shards. */
void rig_qwen3_5_mtp(const char *target, char path[RIG_PATH]);

/* EAGLE-3 heads for a target of `hidden` channels and `vocab` tokens, one set of weights; the last two in a vocabulary
 * of their own, the last with its own table of the target's tokens. */
enum rig_layout { RIG_SPECFORGE, RIG_LAYERS, RIG_SPECULATORS, RIG_OWN_VOCAB, RIG_OWN_EMBED };
void rig_eagle3(enum rig_layout layout, int hidden, int vocab, char path[RIG_PATH]);
