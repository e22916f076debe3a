/* gguf_translation.h - how the translation of metadata works together. Private to this folder.
 *
 * Keys are named without their architecture: "attention.head_count". Each key that is looked at counts as read. */
#pragma once

#include "model/gguf/gguf_model.h"

enum { GGUF_MAX_READ = 96 };

struct gguf_translation {
    const struct gguf *g;
    const struct gguf_arch *arch;
    json_t *config;
    int64_t n_layers, head_dim, hidden_size;
    const struct gguf_value *read[GGUF_MAX_READ]; // of the architecture's keys
    size_t n_read;
    struct error *err;
};

/* The value of a key, or NULL. */
const struct gguf_value *gguf_key(struct gguf_translation *t, const char *key);
const char *gguf_key_name(const struct gguf_translation *t, const char *key); // with the architecture; for one use

/* A whole number from `least` to 2^24, into config's `name`; a missing key is an error, or left out. */
enum status gguf_copy_dim(struct gguf_translation *t, const char *key, int64_t least, const char *name);
enum status gguf_copy_dim_if(struct gguf_translation *t, const char *key, int64_t least, const char *name);
enum status gguf_read_dim(struct gguf_translation *t, const char *key, int64_t least, int64_t *out);
enum status gguf_copy_real_if(struct gguf_translation *t, const char *key, const char *name);

/* A number, or an array of one for each layer that are all the same (n_layers of them are compared). */
enum status gguf_read_same(struct gguf_translation *t, const char *key, int64_t least, int64_t fallback, int64_t *out);

void gguf_set_int(struct gguf_translation *t, const char *name, int64_t value);
void gguf_set_string(struct gguf_translation *t, const char *name, const char *value);

const struct gguf_tensor *gguf_tensor_named(const struct gguf *g, const char *name); // NULL when there is none

/* The floats of a small tensor of type F32, as a list; NULL in *out when there is no such tensor. */
enum status gguf_float_list(struct gguf_translation *t, const char *tensor, json_t **out);

extern const struct gguf_arch gguf_archs[]; // ended by no name
