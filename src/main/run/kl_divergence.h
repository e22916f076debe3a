/* kl_divergence.h - how far a model's distributions are from another's on the same text, in llama.cpp's terms.
 *
 * A base file has what one model said of a text, in llama.cpp's layout (its perplexity tool reads and writes the same):
 *
 *     "_logits_", u32 window, i32 n_vocab, i32 n_windows, i32 tokens [n_windows][window], then for each window rows
 *     of positions window/2 ... window - 2:  f32 scale, f32 least, u16 code [n_vocab, even]; log p = scale code + least
 *
 * Windows lie one behind another. With a BOS, that stands in place of each window's first token while it is computed;
 * the file does not tell whether there was one. */
#pragma once

#include "base/status.h"
#include "gyre.h"

enum { KL_WINDOW_MIN = 4, KL_WINDOW_MAX = 1 << 24 }; // tokens of a window; less leave hardly a row

struct kl_job {
    struct gyre *g;
    const char *path;         // of the base file
    const int32_t *tokens;    // [n_tokens]; writing
    int64_t n_tokens, window; // KL_WINDOW_MIN <= window <= n_tokens
    int32_t bos;              // -1: none
};

/* Writes the base file, whole or not at all, row by row: only a row is in memory. ERR_FULL: the disk has less room than
 * it takes. Ctrl-C is ERR_IO and leaves nothing. */
enum status kl_write_base(const struct kl_job *job, struct error *err);

/* Reads it, computes its text with the model and prints the table and the statistics; window and tokens are the file's.
 * ERR_FORMAT names what is wrong with the file, ERR_ARG a vocabulary of another size. */
enum status kl_compare(const struct kl_job *job, struct error *err);
