/* names.h - what a GGUF file calls a tensor that a family took of a checkpoint. */
#pragma once

#include "model/model.h"

struct file_names {
    const struct gguf_arch *arch; // NULL: none is for the model
    const char *prefix;           // of the checkpoint's names, before "layers."
    struct arena *arena;
};

/* Of a model of either layout. Strings live in the arena, which is borrowed. */
void file_names_init(struct file_names *n, const struct model_spec *s, const struct bound_list *taken,
                     struct arena *arena);

/* Of an expert's tensor that of its stack; NULL: there is no such name. */
const char *file_name(const struct file_names *n, const char *name);

/* Which expert's the tensor is; -1: none's. */
int expert_of(const char *name);
