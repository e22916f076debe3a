/* grammar_sample.h - random texts of a grammar, byte by byte: tests check that every one of them is valid. */
#pragma once

#include "grammar/matcher.h"

enum sample_end {
    SAMPLE_FINISHED, // a text of the grammar
    SAMPLE_CUT,      // the beginning of one, of max_bytes
    SAMPLE_STUCK,    // no byte is allowed, and the text may not end: a fault of ours, or the matcher is dead
};

/* Appends a text to *out, from where the matcher (opened without a vocabulary) is. The same seed gives the same
 * text. The longer it gets the likelier are bytes that close strings, arrays and objects. */
enum sample_end grammar_sample(struct matcher *matcher, uint64_t seed, size_t max_bytes, struct buf *out);
