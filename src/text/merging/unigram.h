/* unigram.h - the unigram language model: of all ways to write a text in pieces, the one whose pieces' log
 * probabilities have the greatest sum (Viterbi). */
#pragma once

#include "text/merging/byte_trie.h"
#include "text/merging/vocab.h"
#include "text/token_ids.h"

struct unigram {
    const struct vocab *vocab;
    struct byte_trie pieces; // the pieces that may be used
    double *scores;          // [vocab->n] by id, owned
    double unk_score;
    int32_t unk_id; // -1: what no piece covers is an error
    bool fuse_unk;  // neighbours without piece become one unk
    bool byte_fallback;
    int32_t byte_id[256]; // of <0xNN>, -1 for none
    bool single_floats;   // sums in float, as SentencePiece does; else in double, as Hugging Face does
};

/* Sixteen bytes a byte of the text. `(struct unigram_memory){.budget = budget}` is empty and valid; the budget may be
 * NULL. */
struct unigram_memory {
    struct budget *budget;
    struct unigram_step *steps;
    size_t cap;
};

void unigram_release(struct unigram *u);
void unigram_memory_release(struct unigram_memory *m);

/* Appends the ids of text, valid UTF-8. ERR_FORMAT when a character has no piece and there is no unk;
 * ERR_LIMIT or ERR_MEMORY when the budget has no room. */
enum status unigram_encode(const struct unigram *u, struct unigram_memory *m, struct str text, struct token_ids *out,
                           struct error *err);
