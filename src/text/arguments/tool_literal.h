/* tool_literal.h - reads an object of arguments as it streams, and writes it as JSON. For this folder and tools/.
 *
 *     strict   {"a": 1}                      as it is; control characters in strings become escapes
 *     lenient  (a=1, b='x', c=[True, None])  Python's; {a:1,b:<|"|>x<|"|>} with a quote of its own; JSON too
 *
 * What Python's ast.literal_eval reads is written as what it gives, as json.dumps says it; a set is an array in the
 * order of its text. But \N{...} stays as it is written, and so do numbers with a fraction, and bytes and complex
 * numbers, which JSON has not. What it refuses is read as models mean it: bare words are texts, and a quote within a
 * text that is not escaped ends it only where what follows can follow a string there.
 *
 * What is written is a prefix of a JSON text at any time. Depth is bounded. Kept is a word, and what is not decided:
 * (x) until it is known to be a tuple or not, {x until it is a set or a dictionary. */
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

/* What a level is opened as, beside '{' a dictionary, '[' a list and '(' the arguments of a call. The last two are not
 * decided: PAREN is a tuple or what stands in it, BRACE a set or a dictionary. */
enum { LITERAL_TUPLE = 't', LITERAL_SET = 's', LITERAL_PAREN = 'p', LITERAL_BRACE = 'b' };

static inline char literal_closer(char open) {
    return open == '{' || open == LITERAL_BRACE || open == LITERAL_SET ? '}' : open == '[' ? ']' : ')';
}

/* A look at strings that may be parts of the running one: 'a' 'b'. */
struct literal_look {
    size_t at;  // byte behind the quote that may end the running one
    size_t n;   // strings that are whole
    char quote; // of the open one; \0 between them
    bool triple;
};

struct literal {
    enum literal_state state;
    bool strict;
    bool is_value;    // not an object of arguments: any value in brackets
    struct str quote; // around strings, beside " and '; may be empty
    char open[LITERAL_DEPTH];
    size_t mark[LITERAL_DEPTH]; // in json, of what is not decided
    int depth, n_undecided;
    bool comma; // seen, not yet written: a value must follow
    bool is_key;
    bool ended; // no more text will come
    struct buf word;
    struct buf json; // lenient: not yet told

    // the running string
    char quoted_by; // " or ', or \0: by the quote
    bool triple, raw;
    struct literal_look look;
    size_t n_parts;     // ends of strings, from this one's on, that are known to be ends
    size_t taken;       // bytes of all feeds
    size_t looked_till; // quotes before it are known to be no ends before a further part
};

void literal_init(struct literal *l, bool strict, struct str quote);
void literal_release(struct literal *l);

/* Takes bytes from text, *used of them, and appends JSON to out. MORE: all that can be told is; a mark or an escape may
 * be left over. DONE: the object is closed. BROKEN: at text's byte *used. */
enum literal_result literal_feed(struct literal *l, struct str text, size_t *used, struct buf *out);

/* Closes what is open, a string that is a value too; what is inside of a key or lacks a value stays open. */
void literal_close(struct literal *l, struct buf *out);

/* Where the text is cut: what is kept, as far as it came. */
void literal_cut(struct literal *l, struct buf *out);

/* Appends what a bare word says as JSON: a number, true, false, null as JSON and Python write them; false where it is
 * none of these. */
bool literal_word(struct str word, bool strict, struct buf *out);

/* ---- strings (tool_literal_string.c) ---- */

/* How many quotes a string begins with at s, which begins with one: 1 or 3; 0: more is needed. */
size_t literal_quotes(const struct literal *l, struct str s);

/* Whether c says how a string is read, before its quote, and it is one that JSON can say. */
static inline bool literal_is_prefix(char c) { return c && strchr("rRuU", c) != NULL; }

/* Reads on in a string; DONE: it is over, and its closing quote written. */
enum literal_result literal_string(struct literal *l, struct str text, size_t *used, struct buf *out);
