/* bpe_merge.h - the joining of neighbours, apart from where symbols come from and what they turn into. Private to
 * the BPE files. */
#pragma once

#include "text/bpe.h"

/* A symbol covers bytes [begin, next symbol's begin) of the word. */
struct bpe_symbol {
    uint32_t begin, end;
    int32_t id;           // by_text: -1, or the fixed piece that it is
    int32_t rank, joined; // of this symbol with its right neighbour: INT32_MAX when they do not join; the token they make
    int32_t prev, next;   // positions; -1 at the ends. Used for long words only
};

/* Room for n symbols. */
void bpe_memory_reserve(struct bpe_memory *m, size_t n);

/* Joins the n symbols of m; returns how many are left, moved to the front. */
size_t bpe_join(const struct bpe *b, struct bpe_memory *m, const char *word, size_t n);
