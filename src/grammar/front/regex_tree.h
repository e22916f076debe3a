/* regex_tree.h - a regular expression as it is written, where it says something of places (^ $ lookaheads); all else is
 * an expression (rx.h) at once. Shared by the reader and what makes a language of the tree. */
#pragma once

#include "base/arena.h"
#include "grammar/front.h"
#include "grammar/front/char_ranges.h"

enum tree_kind { TREE_RX, TREE_SEQ, TREE_ALT, TREE_REPEAT, TREE_START, TREE_END, TREE_AHEAD, TREE_NOT_AHEAD };

struct tree {
    enum tree_kind kind;
    rx_id rx;            // RX
    struct tree **parts; // [n]; of REPEAT and lookaheads: one
    size_t n;
    int32_t min, max; // REPEAT
};

struct regex_reader {
    struct rx_pool *rx;
    struct str text;
    size_t at;
    unsigned flags;
    int depth;
    uint32_t steps; // of the language of a tree
    uint32_t n_read; // atoms, and members of classes
    struct arena memory;
    struct error *err;
};

enum { REGEX_MAX_DEPTH = 200, REGEX_NO_CHAR = -1 };

/* One character of the pattern; REGEX_NO_CHAR at its end. */
int32_t regex_peek(const struct regex_reader *r);
int32_t regex_take(struct regex_reader *r);
bool regex_take_if(struct regex_reader *r, char c);
enum status regex_bad(struct regex_reader *r, enum status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Looks at the time that the pool has, each so many atoms. */
enum status regex_check(struct regex_reader *r);

/* Behind a backslash (regex_class.c): a class (*c = REGEX_NO_CHAR, put into set), or one character *c. */
enum status regex_escape(struct regex_reader *r, struct char_ranges *set, bool in_class, int32_t *c);
enum status regex_class(struct regex_reader *r, struct char_ranges *set); // behind [
rx_id regex_rx_of(struct regex_reader *r, struct char_ranges *set);       // releases the set

/* The language of a tree (regex_language.c). */
enum status regex_language(struct regex_reader *r, const struct tree *tree, rx_id *out);
