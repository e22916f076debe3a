/* pretokenizer.h - cutting normalised text into the words that the model sees one by one: a list of steps, each of
 * which cuts what the one before gave it, and may rewrite it. */
#pragma once

#include "text/regex/pattern.h"

enum pretokenizer_kind {
    PRETOKEN_SPLIT,        // at the matches of a pattern
    PRETOKEN_BYTE_LEVEL,   // a space in front, maybe; GPT-2's words, maybe; bytes as visible characters
    PRETOKEN_METASPACE,    // spaces become a mark, which begins each word
    PRETOKEN_SCRIPTS,      // where the writing system changes
    PRETOKEN_FIXED_LENGTH, // every so many characters
};

enum prepend_scheme { PREPEND_ALWAYS, PREPEND_FIRST, PREPEND_NEVER };

struct pretokenizer_step {
    enum pretokenizer_kind kind;
    struct pattern pattern; // SPLIT; BYTE_LEVEL: GPT-2's words
    enum split_behavior behavior;
    bool invert;
    bool add_prefix_space; // BYTE_LEVEL
    bool cuts;             // BYTE_LEVEL: use_regex; METASPACE: split
    uint32_t mark;         // METASPACE
    enum prepend_scheme prepend;
    int64_t length; // FIXED_LENGTH
};

struct pretokenizer {
    struct pretokenizer_step *steps; // [n], owned
    size_t n;
    bool raw_bytes; // the last step is BYTE_LEVEL and leaves bytes as they are, because the model reads bytes
};

/* Working memory of one caller: a text a step. `{.budget = budget}` is empty and valid; the budget may be NULL. */
struct pretokenizer_memory {
    struct budget *budget;
    struct buf *texts; // [n]
    size_t n;
};

/* Reads the "pre_tokenizer" of a tokenizer.json; null is no step. */
enum status pretokenizer_read(const json_t *value, const char *where, struct pretokenizer *out, struct error *err);
void pretokenizer_release(struct pretokenizer *p);
void pretokenizer_take_step(struct pretokenizer *p, struct pretokenizer_step step);
void pretokenizer_memory_release(struct pretokenizer_memory *m);

/* The rules of a known pattern when all that the steps do is to cut by it, and words go to the model as they are;
 * NULL otherwise. */
const struct word_rules *pretokenizer_word_rules(const struct pretokenizer *p);

typedef enum status (*word_emit)(void *arg, struct str word, struct error *err);

/* Cuts text, which is not empty, and calls emit for each word. at_start: the text begins the whole input. A word
 * is valid during the call. ERR_LIMIT or ERR_MEMORY when the steps make more of the text than the budget has room for.
 */
enum status pretokenizer_run(const struct pretokenizer *p, struct pretokenizer_memory *m, struct regex_memory *rm,
                             struct str text, bool at_start, word_emit emit, void *arg, struct error *err);
