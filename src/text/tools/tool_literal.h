/* tool_literal.h - reads an object of arguments as it streams, and writes it as JSON. For this folder.
 *
 *     strict   {"a": 1}                      as it is; control characters in strings become escapes
 *     lenient  (a=1, b='x', c=[True, None])  Python's; {a:1,b:<|"|>x<|"|>} with a quote of its own; JSON too
 *
 * What is written is a prefix of a JSON text at any time. Depth is bounded, and so is what is kept: a word. */
#pragma once

#include "base/buf.h"

enum literal_result { LITERAL_MORE, LITERAL_DONE, LITERAL_BROKEN };

enum literal_state {
    LITERAL_VALUE,
    LITERAL_ITEM_OR_END,
    LITERAL_KEY_OR_END,
    LITERAL_COLON,
    LITERAL_COMMA_OR_END,
    LITERAL_STRING,
    LITERAL_WORD,
    LITERAL_OVER,
};

enum { LITERAL_DEPTH = 200, LITERAL_WORD_BYTES = 64 << 10, LITERAL_BLANKS = 256 };

struct literal {
    enum literal_state state;
    bool strict;
    struct str quote; // around strings, beside " and '; may be empty
    char open[LITERAL_DEPTH];
    int depth;
    bool comma; // seen, not yet written: a value must follow
    bool is_key;
    char quoted_by; // " or ', or \0: by the quote
    bool ended;     // no more text will come
    struct buf word;
};

void literal_init(struct literal *l, bool strict, struct str quote);
void literal_release(struct literal *l);

/* Takes bytes from text, *used of them, and appends JSON to out. MORE: all that can be told is; a mark or an escape may
 * be left over. DONE: the object is closed. BROKEN: at text's byte *used. */
enum literal_result literal_feed(struct literal *l, struct str text, size_t *used, struct buf *out);

/* Closes what is open, a string that is a value too; what is inside of a key or lacks a value stays open. */
void literal_close(struct literal *l, struct buf *out);

/* Appends what a bare word says as JSON: a number, true, false, null as JSON and Python write them; false where it is
 * none of these. */
bool literal_word(struct str word, bool strict, struct buf *out);
