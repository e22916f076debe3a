/* gguf_write.h - the header of a GGUF file (version 3) as bytes: keys, then tensors, in the order in which they are
 * put.
 *
 *     struct gguf_writer w = {0};
 *     gguf_put_string(&w, "general.architecture", STR("llama"));
 *     gguf_put_array(&w, "tokenizer.ggml.tokens", GGUF_STRING, n);          // and then n items
 *     for (i < n) gguf_item_string(&w, text);
 *     uint64_t at = gguf_put_tensor(&w, "token_embd.weight", 2, (uint64_t[]){in, out}, type, n_bytes);
 *     gguf_write_head(&w, &bytes);          // data follow: each tensor at its offset, zeros up to GGUF_ALIGNMENT
 * between
 *     gguf_writer_release(&w);
 *
 * Layout: base/gguf/gguf.h. Who calls puts no key and no tensor twice. */
#pragma once

#include "base/buf.h"
#include "base/gguf/gguf.h"

enum { GGUF_ALIGNMENT = 32 };

struct gguf_writer {
    struct buf keys, tensors;
    uint64_t n_keys, n_tensors, data_bytes; // data_bytes: of the tensors so far, each padded
};

void gguf_writer_release(struct gguf_writer *w); // an empty one is fine

void gguf_put_u32(struct gguf_writer *w, const char *key, uint32_t value);
void gguf_put_f32(struct gguf_writer *w, const char *key, float value);
void gguf_put_bool(struct gguf_writer *w, const char *key, bool value);
void gguf_put_string(struct gguf_writer *w, const char *key, struct str value);

/* The head of an array of n items of `type`, which the caller appends next. */
void gguf_put_array(struct gguf_writer *w, const char *key, enum gguf_type type, uint64_t n);
void gguf_item_u32(struct gguf_writer *w, uint32_t value); // of I32, too
void gguf_item_f32(struct gguf_writer *w, float value);
void gguf_item_bool(struct gguf_writer *w, bool value);
void gguf_item_string(struct gguf_writer *w, struct str value);

/* A key and its value as another file has them. */
void gguf_put_value(struct gguf_writer *w, const struct gguf_value *v);

/* dims innermost first. Returns where its data begin, from the beginning of all data. */
uint64_t gguf_put_tensor(struct gguf_writer *w, const char *name, int n_dims, const uint64_t *dims, uint32_t type,
                         uint64_t n_bytes);

/* Appends everything in front of the data, padded so that data begin at a multiple of GGUF_ALIGNMENT. */
void gguf_write_head(const struct gguf_writer *w, struct buf *out);
