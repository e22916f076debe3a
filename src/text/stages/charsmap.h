/* charsmap.h - the compiled rewriting rules that SentencePiece models carry (precompiled_charsmap): short texts and
 * what they become.
 *
 * Layout: u32 size of the trie in bytes; the trie, a double array of u32 units (darts-clone); then the
 * replacements, each ended by a NUL. A leaf of the trie is the offset of a replacement. */
#pragma once

#include "base/buf.h"
#include "base/status.h"

struct charsmap {
    uint32_t *units; // owned
    size_t n_units;
    char *replacements; // owned, valid UTF-8
    size_t n_replacement_bytes;
};

/* Takes the rules from blob. */
enum status charsmap_read(struct str blob, const char *where, struct charsmap *out, struct error *err);
void charsmap_release(struct charsmap *c);

/* The rule for a start of text: the shortest one, or the longest. *len is how many bytes it covers. False when
 * there is none. */
bool charsmap_find(const struct charsmap *c, struct str text, bool longest, size_t *len, struct str *replacement);

/* Rewrites text as Hugging Face's Precompiled normaliser does: a grapheme of fewer than six bytes that begins with
 * a rule becomes its replacement as a whole; of other graphemes each character goes by itself. */
void charsmap_apply_by_grapheme(const struct charsmap *c, struct str text, struct buf *out);
