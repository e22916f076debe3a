/* pattern.h - what a text is searched for: a regular expression, a literal, or characters of some kind; and the
 * five ways to cut a text at what was found. */
#pragma once

#include "base/json/json.h"
#include "text/merging/word_scan.h"
#include "text/regex/regex.h"

enum pattern_kind {
    PATTERN_REGEX,
    PATTERN_WORDS,     // a known regular expression, by word_scan
    PATTERN_LITERAL,   // not empty
    PATTERN_CHARACTER, // each character for which is_match says so
    PATTERN_RUNS,      // \w+|[^\w\s]+ by Rust's sets: runs of word characters, runs of signs
};

struct pattern {
    enum pattern_kind kind;
    struct regex *regex; // owned
    const struct word_rules *words;
    char *literal; // owned
    size_t literal_len;
    bool (*is_match)(uint32_t cp);
};

void pattern_release(struct pattern *p);

/* Reads {"String": "..."} or {"Regex": "..."}. */
enum status pattern_read(const json_t *value, const char *where, struct pattern *out, struct error *err);
enum status pattern_of_regex(struct str regex, enum regex_dialect dialect, const char *where, struct pattern *out,
                             struct error *err);
void pattern_of_literal(struct str literal, struct pattern *out);
static inline struct pattern pattern_of_characters(bool (*is_match)(uint32_t)) {
    return (struct pattern){.kind = PATTERN_CHARACTER, .is_match = is_match};
}

/* Finds matches from left to right; `(struct regex_walk){.text = text}` begins. */
enum status pattern_next(const struct pattern *p, struct regex_memory *m, struct regex_walk *walk, size_t *begin,
                         size_t *end, bool *found, struct error *err);

/* What becomes of the matches when a text is cut at them. */
enum split_behavior {
    SPLIT_REMOVED,
    SPLIT_ISOLATED,
    SPLIT_MERGED_WITH_PREVIOUS,
    SPLIT_MERGED_WITH_NEXT,
    SPLIT_CONTIGUOUS
};

/* Called for each piece [begin, end) of the text, none of them empty. */
typedef enum status (*split_emit)(void *arg, size_t begin, size_t end, struct error *err);

/* Cuts text at the matches (inverted: at what lies between them). */
enum status split_text(const struct pattern *p, enum split_behavior behavior, bool invert, struct regex_memory *m,
                       struct str text, split_emit emit, void *arg, struct error *err);
