/* tool_marks.h - marks in texts: what the derivation of a format and the parser of answers both ask about them.
 *
 * A mark is text around a slot: "\n<tool_call>\n", "</arg_value>". Its core is the mark without the blanks at its ends.
 * A tag is what a mark mostly is made of: <...> on one line, or [WORD]. */
#pragma once

#include "base/str.h"

static inline bool is_blank(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

static inline struct str str_from(struct str s, size_t at) { return at ? (struct str){s.ptr + at, s.len - at} : s; }
static inline struct str str_to(struct str s, size_t end) { return (struct str){s.ptr, end}; }

size_t leading_blanks(struct str s);
size_t trailing_blanks(struct str s); // 0 of what is all blank: those lead
struct str str_core(struct str s);
static inline bool str_is_blank(struct str s) { return leading_blanks(s) == s.len; }

/* A mark as special tokens are written is no text, wherever it stands. */
static inline bool mark_is_special(struct str mark) { return mark.len && memchr(mark.ptr, '|', mark.len); }

#define NOT_FOUND ((size_t)-1)

size_t text_find(struct str text, struct str what); // where it first is; an empty one nowhere
size_t text_find_last(struct str text, struct str what);

/* How many bytes at the end of text could be the beginning of what, and not all of it. */
size_t beginning_at_end(struct str text, struct str what);

/* The tag that begins at s, with its brackets: its length, or 0. */
size_t tag_length(struct str s);

/* The same, of the last tag in s, where it begins; NOT_FOUND where there is none. */
size_t last_tag(struct str s);

enum mark_match { MARK_NO, MARK_MORE, MARK_YES };

/* Whether the core of mark is at text's byte *at, which moves behind it. Blanks before it, blanks where the mark has
 * some and blanks behind a tag may be there or not. MARK_MORE: text ends too soon to say. An empty core is there. */
enum mark_match mark_at(struct str text, size_t *at, struct str mark);

/* How many bytes two texts have in common at their beginning, and at their end, cut back so that no tag of either is
 * cut in two. */
size_t common_prefix(struct str a, struct str b);
size_t common_suffix(struct str a, struct str b);
