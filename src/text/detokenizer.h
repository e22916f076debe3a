/* detokenizer.h - token ids back to text, as they come.
 *
 * What detokenizer_feed appends is whole code points only: bytes of a character that is not finished yet wait
 * for the next token, and bytes that can never become one turn into U+FFFD, one for each maximal ill-formed run.
 * All pieces together, with that of detokenizer_finish, are what decoding the whole sequence at once gives:
 * there is no other decoder.
 *
 * A decoder of the file that must see a token to its end, or a run of byte tokens, holds back until then. */
#pragma once

#include "base/buf.h"
#include "text/tokenizer.h"

struct detokenizer;

enum detokenize_flags {
    DETOKENIZE_SKIP_SPECIAL = 1, // special tokens give nothing
};

/* Borrows tok. */
struct detokenizer *detokenizer_open(const struct tokenizer *tok, int flags);
void detokenizer_free(struct detokenizer *d); // NULL is fine

/* Appends what has become certain. An id that the vocabulary does not use gives nothing (a model's logits may
 * be padded past its vocabulary). Fails only when a pattern of the file reaches its limits, or its decoder makes more
 * than 1 MiB and 16 times the bytes of the tokens. */
enum status detokenizer_feed(struct detokenizer *d, int32_t id, struct buf *out, struct error *err);

/* Appends what was held back; the detokenizer is then as new. */
enum status detokenizer_finish(struct detokenizer *d, struct buf *out, struct error *err);

/* All of it at once. */
enum status tokenizer_decode(const struct tokenizer *tok, const int32_t *ids, size_t n, int flags, struct buf *out, struct error *err);
