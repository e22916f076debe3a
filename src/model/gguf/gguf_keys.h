/* gguf_keys.h - the metadata of a GGUF file that stand for a model of Hugging Face's layout: gguf_config turned round.
 *
 * An architecture can say less than a config.json can. Whether what was written means the same model is not judged
 * here: who writes reads the file again and compares (quantize/same_spec.h). */
#pragma once

#include "base/gguf_write.h"
#include "model/gguf/gguf_model.h"

enum { GGUF_MAX_EXTRA = 2 };

/* Vectors of type F32 that are no weights: RoPE's divisors. */
struct gguf_extra {
    const char *name;
    const float *values; // in the arena
    int n;
};

struct gguf_keys {
    const struct gguf_arch *arch;
    struct gguf_extra extra[GGUF_MAX_EXTRA];
    int n_extra;
};

/* The architecture for the model; NULL: there is none here. */
const struct gguf_arch *gguf_arch_for(const struct model_spec *spec);

/* Puts general.architecture and all keys of the architecture. ERR_UNSUPPORTED names what has no key. */
enum status gguf_put_keys(const struct model_spec *spec, struct gguf_writer *w, struct arena *arena,
                          struct gguf_keys *out, struct error *err);
