/* gguf_plan.h - what a GGUF file of a model holds: its metadata, and each tensor with the type that it gets.
 *
 * Of a model in Hugging Face's layout tensors get GGUF's names and are changed as its readers expect (model/gguf has
 * the names): rows of q and k in pairs for interleaved RoPE, Gemma's norms as 1 + w, experts as stacks, kv_b_proj in
 * its halves. Of a GGUF file metadata and names are kept, and so are tensors that stay as they are. */
#pragma once

#include "base/gguf_write.h"
#include "model/model.h"
#include "quantize/target.h"

struct gguf_plan {
    struct arena arena;
    struct target *targets; // [n]
    size_t n, cap;
    struct gguf_writer head;
};

/* taken: what model_open noted. ERR_UNSUPPORTED names a tensor that no name in GGUF stands for. */
enum status gguf_plan_model(const char *folder, const struct model *m, const struct bound_list *taken,
                            const struct mix *mix, struct gguf_plan *out, struct error *err);

/* c: the file's tensors under its own names. Tensors in blocks that the mix stores otherwise are refused, by name,
 * unless may_requantize. */
enum status gguf_plan_file(const char *path, const struct checkpoint *c, const struct mix *mix, bool may_requantize,
                           struct gguf_plan *out, struct error *err);

void gguf_plan_release(struct gguf_plan *p);
