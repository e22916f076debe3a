/* stop_filter.h - ends a text at the first of some strings, and never shows a part of one.
 *
 * Text is fed piece by piece. What could still become a stop string is held back until more text decides. The
 * string that is complete first wins; of those that are complete at the same byte, the longest. What comes before it
 * is the whole text; nothing of the stop string itself is given. */
#pragma once

#include "base/buf.h"

#include <stdbool.h>

struct stop_string {
    char *text;
    int32_t *border; // [len]: of each prefix, the length of its longest proper prefix that is also its suffix
    size_t len;
    size_t n_matched; // bytes of the text's end that are this string's beginning
};

struct stop_filter {
    struct stop_string *strings; // [n]
    size_t n;
    struct buf held;
    bool stopped;
};

/* Copies the strings, none of them empty. n may be 0: everything passes at once. */
void stop_filter_init(struct stop_filter *f, const char *const *strings, size_t n);
void stop_filter_release(struct stop_filter *f);

/* Appends to out what is certain. True when a stop string was met, now or before: the text is over. */
bool stop_filter_feed(struct stop_filter *f, struct str piece, struct buf *out);

/* The place of the stop string that was met; -1: none was. */
int stop_filter_met(const struct stop_filter *f);

/* Appends what is held back, if no stop string was met: no more text will come. */
void stop_filter_finish(struct stop_filter *f, struct buf *out);
