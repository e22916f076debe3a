/* bpe.h - byte-pair encoding: a word begins as characters (or bytes), and of all neighbours the pair with the
 * lowest rank is joined until none is left.
 *
 * Three kinds of files say which pairs join. Hugging Face lists pairs of tokens. tiktoken gives ranks to tokens:
 * two neighbours join when their texts together are a token. SentencePiece does the same with scores. The last
 * two differ from the first in that the way a token was made does not matter. */
#pragma once

#include "text/merging/byte_trie.h"
#include "text/merging/vocab.h"
#include "text/token_ids.h"

/* Values of unk_id that are no token: the file names none; the file names one that the vocabulary lacks. */
enum { BPE_NO_UNK = -1, BPE_LOST_UNK = -2 };

struct bpe_pair {
    uint64_t key; // (left << 32 | right) + 1; 0 is free
    int32_t rank; // lower joins first
    int32_t id;   // of the token that they make
};

struct bpe {
    const struct vocab *vocab;
    bool by_text; // ranks of texts, not of pairs
    int32_t
        *rank_of; // [vocab->n] by_text: rank by id, INT32_MAX for a token that is never made; NULL: the id is the rank
    const struct byte_trie *fixed; // by_text: pieces that are symbols from the start and join with nothing; NULL: none
    struct bpe_pair *pairs;        // open addressing, mask + 1
    uint64_t mask;
    size_t n_pairs;

    bool by_bytes;         // symbols are raw bytes (the vocabulary is byte-level), else characters
    int32_t byte_id[256];  // by_bytes: the token of a byte; else the token <0xNN>; -1: none
    bool byte_fallback;    // a character without token becomes its bytes' tokens
    bool whole_word_first; // a word that is a token is that token, whatever the ranks say
    int32_t unk_id;        // BPE_NO_UNK: what has no token vanishes, as in Hugging Face's library
    bool fuse_unk;         // neighbours without token become one unk
    struct str prefix;     // of symbols that do not begin a word (continuing_subword_prefix)
    struct str suffix;     // of the symbol that ends a word (end_of_word_suffix)
};

/* What one caller needs to encode words: up to fourteen bytes a symbol. `(struct bpe_memory){.budget = budget}` is
 * empty and valid; the budget may be NULL. */
struct bpe_memory {
    struct budget *budget;
    int32_t *cells; // see bpe_merge.h
    struct bpe_candidate *heap;
    size_t cap, heap_cap;
    struct buf text;
};

void bpe_release(struct bpe *b);
void bpe_memory_release(struct bpe_memory *m);

/* Room for n pairs, so that the table need not grow on the way. */
void bpe_reserve_pairs(struct bpe *b, size_t n);

/* Asks for the place of a pair that will be added soon. */
void bpe_prefetch_pair(const struct bpe *b, int32_t left, int32_t right);

/* left and right join into id; of equal pairs the later rank counts. */
void bpe_add_pair(struct bpe *b, int32_t left, int32_t right, int32_t rank, int32_t id);

/* Whether no token that is ever made goes on from another character to U+2581, the mark that begins words in
 * SentencePiece's vocabularies: a text may then be cut before the marks without a change to its ids. */
bool bpe_keeps_marks_apart(const struct bpe *b);

/* Appends the ids of one word. ERR_FORMAT, with nothing appended, when a character has no token and unk_id says that
 * there should be one for that; ERR_LIMIT or ERR_MEMORY when the budget has no room. */
enum status bpe_encode(const struct bpe *b, struct bpe_memory *m, struct str word, struct token_ids *out,
                       struct error *err);
