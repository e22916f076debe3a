/* word_cache.h - the ids of words met before. Text repeats itself: nine words of ten come from here.
 *
 * A fixed table of one cache line an entry; a word goes to the place its hash says and pushes out what was there.
 * Long words, and those of many ids, are not kept. */
#pragma once

#include "base/str.h"

enum { WORD_CACHE_TEXT = 30, WORD_CACHE_IDS = 8, WORD_CACHE_ENTRIES = 1 << 16 };

struct word_entry {
    uint8_t len, n_ids; // len 0: free
    char text[WORD_CACHE_TEXT];
    int32_t ids[WORD_CACHE_IDS];
};
_Static_assert(sizeof(struct word_entry) == 64, "an entry is a cache line");

/* The place of a word, which is not empty and has at most WORD_CACHE_TEXT bytes. */
struct word_entry *word_cache_place(struct word_entry *table, struct str word);

static inline bool word_entry_holds(const struct word_entry *e, struct str word) {
    return e->len == word.len && memcmp(e->text, word.ptr, word.len) == 0;
}
