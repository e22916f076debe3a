/* detokenizer.h - token ids back to text, as they come.
 *
 * What detokenizer_feed appends is whole code points only: bytes of a character that is not finished yet wait
 * for the next token, and bytes that can never become one turn into U+FFFD, one for each maximal ill-formed run.
 * All pieces together, with that of detokenizer_finish, are what decoding the whole sequence at once gives:
 * there is no other decoder.
 *
 * A decoder of the file that must see a token to its end, or a run of byte tokens, holds back until then.
 *
 * An answer is not a text by itself: decoders strip a space or join words at the beginning of a text. So a detokenizer
 * begins behind the prompt (detokenizer_begin_after), and what it then gives is the text of prompt and answer without
 * the prompt's. */
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

/* Special tokens that are text all the same: [n] ids, kept borrowed, by copies too. */
void detokenizer_show(struct detokenizer *d, const int32_t *ids, size_t n);

/* For a new detokenizer: what comes goes on from these ids, n of them, whose own text is not given out. All pieces from
 * then on are what decoding everything at once gives, but for what decoding the n ids gives. Where the two part,
 * because a character or a run of byte tokens was cut between them, the pieces begin with the first character that is
 * not the same. */
enum status detokenizer_begin_after(struct detokenizer *d, const int32_t *ids, size_t n, struct error *err);

/* Another one, in the same state. */
struct detokenizer *detokenizer_copy(const struct detokenizer *d);

/* Whether nothing that has a text has come yet: the next token begins the text. */
bool detokenizer_at_start(const struct detokenizer *d);

/* Where the next token begins, in characters of what is given out: those that are there, and what is held back will
 * become one each for bytes that wait for the rest of their character, at least. Of the token that was fed last it is
 * known better. */
size_t detokenizer_place(const struct detokenizer *d);
size_t detokenizer_last_place(const struct detokenizer *d);

/* Appends what has become certain. An id that the vocabulary does not use gives nothing (a model's logits may
 * be padded past its vocabulary). Fails only when a pattern of the file reaches its limits, or its decoder makes more
 * than 1 MiB and 16 times the bytes of the tokens. */
enum status detokenizer_feed(struct detokenizer *d, int32_t id, struct buf *out, struct error *err);

/* Appends what was held back; the detokenizer is then as new. */
enum status detokenizer_finish(struct detokenizer *d, struct buf *out, struct error *err);

/* All of it at once. */
enum status tokenizer_decode(const struct tokenizer *tok, const int32_t *ids, size_t n, int flags, struct buf *out,
                             struct error *err);
