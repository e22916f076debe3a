/* wordpiece.h - WordPiece: a word is cut, left to right, into the longest pieces of the vocabulary; pieces inside a
 * word are written with a prefix ("##"). A word that cannot be cut to its end is unknown as a whole. */
#pragma once

#include "text/merging/byte_trie.h"
#include "text/token_ids.h"

struct wordpiece {
    struct byte_trie pieces;
    struct str prefix;      // borrowed from the tokenizer
    int32_t unk_id;         // -1: an unknown word is an error
    int64_t max_characters; // of a word; longer ones are unknown
};

void wordpiece_release(struct wordpiece *w);

enum status wordpiece_encode(const struct wordpiece *w, struct str word, struct token_ids *out, struct error *err);
