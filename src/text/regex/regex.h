/* regex.h - patterns of tokenizer files, compiled and matched by PCRE2 (with its JIT where there is one).
 *
 * A pattern is compiled once and shared by threads; what a match needs to write to is in a regex_memory, one a
 * thread. Matching is bounded, each match and all of a text by steps and by time: a pattern that backtracks without end
 * is an error, not a hang. */
#pragma once

#include "base/status.h"
#include "base/str.h"

enum regex_dialect {
    REGEX_ONIGURUMA, // tokenizer.json, see regex_syntax.h
    REGEX_RUST,      // tiktoken's patterns: as PCRE2 reads them, $ at the end of the text only
};

struct regex;
struct regex_memory;

/* Errors name `where`, the pattern and what is wrong with it. */
enum status regex_compile(struct str pattern, enum regex_dialect dialect, const char *where, struct regex **out,
                          struct error *err);
void regex_free(struct regex *re); // NULL is fine

struct regex_memory *regex_memory_open(void);
void regex_memory_free(struct regex_memory *m); // NULL is fine

/* Before a text of so many bytes. All matches in it together may take 50 million steps of backtracking and 64 a byte,
 * so that the same text is refused everywhere; and, as a step may read far, 1 s of this thread's processor time and 2
 * us a byte. What else the thread does until the text's end counts with that time. */
void regex_memory_begin(struct regex_memory *m, size_t n_bytes);

/* A text that comes in parts: between them the thread's time does not count, and each brings steps and time of its own.
 */
void regex_memory_pause(struct regex_memory *m);
void regex_memory_go_on(struct regex_memory *m, size_t n_bytes);

/* One walk over a text, as Oniguruma's binding does it: an empty match right behind the last match is passed over.
 * `(struct regex_walk){.text = text}` begins one. */
struct regex_walk {
    struct str text; // valid UTF-8
    size_t at;       // where the next search begins
    bool matched;    // there was a match, which ended at last_end
    size_t last_end;
};

/* The next match is [*begin, *end); *found is false when there is none. */
enum status regex_next(const struct regex *re, struct regex_memory *m, struct regex_walk *walk, size_t *begin,
                       size_t *end, bool *found, struct error *err);
