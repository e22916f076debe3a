/* sentencepiece_rules.h - how a SentencePiece model rewrites text before it is cut into pieces. */
#pragma once

#include "text/merging/byte_trie.h"
#include "text/stages/charsmap.h"

struct sentencepiece_rules {
    struct charsmap charsmap;        // the longest rule counts
    const struct byte_trie *fixed;   // user-defined pieces, which are not rewritten; borrowed
    bool add_dummy_prefix;           // a space in front, so that a word is the same at the start of a text
    bool remove_extra_whitespaces;   // none at the ends, no two in a row
    bool escape_whitespaces;         // a space is written as U+2581
    bool treat_whitespace_as_suffix; // the dummy space goes behind
};

/* Appends text, valid UTF-8, rewritten. */
void sentencepiece_rewrite(const struct sentencepiece_rules *rules, struct str text, struct buf *out);
