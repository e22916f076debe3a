/* regex_parse.h - what the files of the pattern translation share: regex_syntax.c (groups, quantifiers),
 * regex_class.c (characters and sets of them), regex_fold.c (letters without case). Private to them. */
#pragma once

#include "base/buf.h"
#include "base/status.h"

struct regex_options {
    bool caseless, dot_all, extended;
};

struct regex_parser {
    struct str pattern;
    size_t at;
    struct buf *out;
    struct regex_options options;
    int depth; // of groups and classes
};

enum { REGEX_NEST_MAX = 100 };

static inline bool regex_at_end(const struct regex_parser *p) { return p->at == p->pattern.len; }
static inline char regex_peek(const struct regex_parser *p) { return regex_at_end(p) ? '\0' : p->pattern.ptr[p->at]; }
static inline bool regex_accept(struct regex_parser *p, const char *text) {
    if (!str_starts((struct str){p->pattern.ptr + p->at, p->pattern.len - p->at}, str_of(text)))
        return false;
    p->at += strlen(text);
    return true;
}

/* Writes a character so that PCRE2 takes it for itself, inside a class or outside. */
void regex_put_code_point(struct buf *out, uint32_t cp);

/* Items of a PCRE2 class (no brackets) for Oniguruma's \w outside classes: by a quirk of its tables that holds
 * the six Latin-1 digits and fractions (U+00B2 ...) too, while \w inside a class and \W do without them. */
#define REGEX_WORD_IN_CLASS "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
#define REGEX_WORD REGEX_WORD_IN_CLASS "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}"

/* One character that stands for itself, escaped or not. *is_one is false, with nothing consumed, when what comes
 * next means something else. */
enum status regex_parse_character(struct regex_parser *p, bool in_class, uint32_t *cp, bool *is_one, struct error *err);

/* \d \s \h \p{..} and their complements: appends class items to out, such that [items] or, when *negated, [^items]
 * is the set. *is_set is false, with nothing consumed, when something else comes next. */
enum status regex_parse_shorthand(struct regex_parser *p, bool in_class, struct buf *items, bool *negated, bool *is_set,
                                  struct error *err);

/* A whole [...]: appends a pattern that matches one character. */
enum status regex_parse_class(struct regex_parser *p, struct buf *out, struct error *err);

/* Appends the n characters of cps; without case, also what full case folding makes equal to them (ss = ß). */
void regex_put_literals(struct buf *out, const uint32_t *cps, size_t n, bool caseless);
