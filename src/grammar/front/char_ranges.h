/* char_ranges.h - sets of characters while a front end reads a class: growing lists of ranges. */
#pragma once

#include "grammar/rx.h"

struct char_ranges {
    struct code_range *at;
    size_t n, cap;
};

void char_ranges_put(struct char_ranges *r, uint32_t first, uint32_t last);
void char_ranges_release(struct char_ranges *r);

/* Sorts them, and makes one of those that meet. */
void char_ranges_join(struct char_ranges *r);

/* Takes what is not in `of` too: the complement's ranges. */
void char_ranges_put_others(struct char_ranges *r, const struct char_ranges *of);

/* Characters that differ from those in it by case alone (simple mappings). Costs a step a character
 * that is in it; joins it first. */
void char_ranges_fold(struct char_ranges *r);

/* \d \w \s: of Unicode, as Python has them, or of ECMA-262 (d and w are ASCII). */
void char_ranges_put_escape(struct char_ranges *r, char which, bool ecma);

/* A general category of Unicode (L, Lu ...), Any, or ASCII; false for another name. */
bool char_ranges_put_property(struct char_ranges *r, struct str name);

/* A POSIX class of ASCII (alpha, digit ...); false for another name. */
bool char_ranges_put_posix(struct char_ranges *r, struct str name);
