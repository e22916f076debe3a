/* token_bytes.h - a vocabulary as bytes: which tokens a text is cut into, without the tokenizer that it belongs to.
 *
 * A text is cut as byte-pair encoding does it: it begins as characters, and of all neighbours that together are a token
 * those whose token has the lowest id join first, for files number tokens in the order of their merges. That is what
 * the tokenizer would do but for its rules where words end, on which nothing depends: a guess may be anything, and a
 * draft reads what it is given. It allocates nothing once it is open. */
#pragma once

#include "gyre.h"

#include "base/status.h"

enum { MOST_CUT_BYTES = 8192, MOST_TOKEN_BYTES = 256 };

struct token_bytes {
    int32_t n, first;   // tokens; that which begins a text, -1: none
    char *bytes;        // of all
    uint32_t *start;    // [n + 1]
    int32_t *sorted;    // [n_sorted]: those with bytes, ascending by them, none twice
    int32_t n_sorted;   //
    struct text_piece *pieces; // [MOST_CUT_BYTES], of a cut: by where they begin
    struct text_join *joins;   // [3 * MOST_CUT_BYTES]: neighbours that may join, a heap
    int n_joins;
    int32_t range[257];        // of `sorted`, by the first byte
};

/* Copies. Tokens beyond n_vocab, and those of more than MOST_TOKEN_BYTES, are left out. ERR_ARG: starts do not ascend,
 * or there are none. */
enum status token_bytes_init(struct token_bytes *t, const struct gyre_token_bytes *from, int32_t n_vocab,
                             struct error *err);
void token_bytes_release(struct token_bytes *t); // zeroed is fine

/* Whether a token of one text means the same in the other: the first n have the same bytes, and no other has any.
 * Special tokens may have other names, or none, and another one may begin a text: a draft that reads one in place of
 * another guesses worse, and no more. */
bool token_bytes_equal(const struct gyre_token_bytes *a, const struct gyre_token_bytes *b);

static inline int token_length(const struct token_bytes *t, int32_t id) {
    return id >= 0 && id < t->n ? (int)(t->start[id + 1] - t->start[id]) : 0;
}
static inline const char *token_at(const struct token_bytes *t, int32_t id) { return t->bytes + t->start[id]; }

/* Names of special tokens begin with the byte 0xff, which no text has (gyre_token_bytes). */
bool token_is_special(const struct token_bytes *t, int32_t id);

/* The token of exactly these bytes; -1: none. */
int32_t token_find(const struct token_bytes *t, const char *bytes, int n);

/* Cuts n bytes, MOST_CUT_BYTES at most, into up to `max` tokens; end[i]: where token i ends. Bytes that no token has
 * are left out. Returns how many. */
int token_bytes_cut(struct token_bytes *t, const char *bytes, int n, int32_t *out, int32_t *end, int max);
