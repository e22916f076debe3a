/* bpe_merge.h - the joining of neighbours, apart from where symbols come from and what they turn into. Private to
 * the BPE files.
 *
 * A word lies in cells, four bytes each: the first cell of a symbol says what it is, and a symbol of k > 1 cells has ~k
 * in its second and in its last one, so that both neighbours of a symbol are found from it.
 *
 *     pairs    a cell a symbol, its id                    a b c     join b c into 9     a 9 ~2
 *     by_text  a cell a byte; 0, or 1 + a fixed piece's id                              what a symbol is, its bytes say
 */
#pragma once

#include "text/merging/bpe.h"

struct bpe_candidate {
    int32_t rank;
    uint32_t at; // the cell of the left symbol
};

/* Room for n cells; false where the budget has none. */
bool bpe_cells_reserve(struct bpe_memory *m, size_t n);

static inline void bpe_cells_span(int32_t *cells, size_t begin, size_t end) {
    if (end - begin > 1)
        cells[begin + 1] = cells[end - 1] = ~(int32_t)(end - begin);
}

/* Where the symbol at `at` ends. */
static inline size_t bpe_cells_end(const int32_t *cells, size_t n, size_t at) {
    return at + 1 < n && cells[at + 1] < 0 ? at + (size_t)~cells[at + 1] : at + 1;
}

/* Where the symbol before `at` > 0 begins. */
static inline size_t bpe_cells_before(const int32_t *cells, size_t at) {
    return cells[at - 1] < 0 ? at - (size_t)~cells[at - 1] : at - 1;
}

/* Joins what the n cells of m hold. False where the budget has no room. */
bool bpe_join(const struct bpe *b, struct bpe_memory *m, const char *word, size_t n);
