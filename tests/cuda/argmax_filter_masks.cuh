/* argmax_filter_masks.cuh - of test_argmax_filter.cu: masks of several kinds, a bit a row of the head. */
#pragma once

#include <stdint.h>
#include <vector>

enum mask_kind { NO_MASK, DENSE, HALF, SPARSE_BITS, ONE_TOKEN, WORDS, WITHOUT_BEST, RANGE, N_MASK_KINDS };

/* Of all rows of a step, one behind the other. */
struct masks {
    int n_words = 0;
    std::vector<uint32_t> words;
    std::vector<int32_t> at; // [rows], in words; -1: none

    void put(int row, int bit, bool may) {
        uint32_t &word = words[at[row] + bit / 32];
        word = may ? word | 1u << bit % 32 : word & ~(1u << bit % 32);
    }
};

static bool mask_bit(int kind, int i, int out, int best, uint64_t seed) {
    uint32_t bits = (uint32_t)hash(seed + 5 + i);
    int from = (int)(hash(seed) % (unsigned)out), n = 1 + (int)(hash(seed + 1) % 400);
    switch (kind) {
    case DENSE: return bits % 16 != 0;
    case HALF: return bits % 2;
    case SPARSE_BITS: return bits % 200 == 0;
    case WORDS: return hash(seed + 7 + i / 32) % 8 == 0;
    case WITHOUT_BEST: return i != best;
    case RANGE: return i >= from && i < from + n;
    default: return false;
    }
}

/* best: of each row without a mask. As steps have them, some have the same one, or of the same kind, for all rows. Each
 * lets a token through. */
static masks some_masks(int n_rows, int out, const int *best, uint64_t seed) {
    masks m;
    int one_kind = hash(seed) % 3 == 0 ? 1 + (int)(hash(seed + 1) % (N_MASK_KINDS - 1)) : -1;
    bool all_the_same = one_kind > 0 && one_kind != WITHOUT_BEST && hash(seed + 2) % 2;
    m.n_words = (out + 31) / 32;
    for (int r = 0; r < n_rows; r++) {
        int kind = one_kind > 0 ? one_kind : (int)(hash(seed + 10 + r) % N_MASK_KINDS);
        uint64_t own = (seed + (all_the_same ? 0 : r)) * 0x9e3779b97f4a7c15u;
        m.at.push_back(kind == NO_MASK ? -1 : (int32_t)m.words.size());
        if (kind == NO_MASK)
            continue;
        m.words.resize(m.words.size() + m.n_words, 0x80000000u * (out % 32 != 0)); // nothing, behind the last row
        for (int i = 0; i < out; i++)
            m.put(r, i, mask_bit(kind, i, out, best[r], own));
        m.put(r, (int)(hash(own + 3) % (unsigned)out), kind != WITHOUT_BEST || out == 1);
        if (kind == WITHOUT_BEST && out > 1)
            m.put(r, best[r], false), m.put(r, (best[r] + 1) % out, true);
    }
    return m;
}
