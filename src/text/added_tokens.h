/* added_tokens.h - tokens that are cut out of the text before the model sees it: <|im_end|>, [MASK] and the like.
 *
 * Matching is leftmost, longest. Tokens marked `normalized` are looked for, in their normalised form, in text
 * that is normalised; the others before that. */
#pragma once

#include "text/merging/byte_trie.h"
#include "text/merging/vocab.h"
#include "text/stages/normalizer.h"

struct added_token {
    int32_t id;
    bool special;        // not for readers; found in text only when the caller asks for it
    bool single_word;    // found only where no word character stands beside it
    bool lstrip, rstrip; // takes along the white space on that side
    bool normalized;
};

struct added_tokens {
    struct added_token *tokens; // [n], owned, in the order of the file
    size_t n, cap;
    struct byte_trie raw, normalized; // values: indices of tokens
};

void added_tokens_release(struct added_tokens *a);
void added_tokens_append(struct added_tokens *a, struct added_token token);

/* Builds the tries; called once all tokens are there. A token's text is vocab's or, where that has none, extra's. */
enum status added_tokens_build(struct added_tokens *a, const struct vocab *vocab, const struct vocab *extra,
                               const struct normalizer *normalizer, struct error *err);

/* A walk over a text: `(struct added_walk){.text = text}` begins one. */
struct added_walk {
    struct str text;
    size_t at;      // where the search goes on
    size_t covered; // end of the last token found
};

/* The next token (*token), with the plain text before it in [*begin, *end); at last the plain text behind the last
 * token, with *token NULL. False past that. The plain text may be empty (begin >= end). */
bool added_tokens_next(const struct added_tokens *a, const struct byte_trie *trie, bool parse_special,
                       struct added_walk *walk, size_t *begin, size_t *end, const struct added_token **token);
