/* grammar.h - a grammar that a text must follow: compiled once, then shared by any number of matchers (matcher.h).
 *
 * A grammar comes as a JSON Schema, "any JSON object", a regular expression, llama.cpp's GBNF, Lark's EBNF, a list of
 * choices, or structural tags (free text in which triggers begin grammars). Each front end makes the same
 * intermediate form (ir.h) of it. The text is UTF-8 and is matched by bytes, from its first to its last.
 *
 * What cannot be enforced is refused by name: grammar_compile never loosens a grammar. A grammar that no text can
 * satisfy is refused too. ERR_FORMAT: the source is not well-formed. ERR_UNSUPPORTED: it asks for what is not enforced.
 * ERR_LIMIT: it is beyond a limit below. The sentence says what and where. */
#pragma once

#include "base/json/json.h"
#include "base/status.h"
#include "base/str.h"

struct grammar; // immutable; counted references; any thread

enum grammar_kind {
    GRAMMAR_JSON_SCHEMA,
    GRAMMAR_JSON_OBJECT, // any JSON object
    GRAMMAR_REGEX,       // the whole text matches
    GRAMMAR_GBNF,
    GRAMMAR_LARK,
    GRAMMAR_CHOICE,         // one of some texts
    GRAMMAR_STRUCTURAL_TAG, // front/tags.h says which forms
};

/* How JSON is written where the schema leaves it open. Zeros are the default: between tokens what usual writers put
 * there (front.h, JSON_WHITESPACE). */
struct grammar_style {
    struct str whitespace; // a regular expression for the white space between JSON tokens; ptr NULL: the default
    bool compact;          // no white space at all
};

/* What a model thinks before it answers: free text from `begin` to `end`, then white space, before the text of the
 * grammar. It may be left out, unless it has begun before the text (is_open). end.ptr NULL: there is none.
 *
 * Where an answer is a message of its own, `answer` stands before it, thought or not; and behind each thought, of which
 * there may be several, `again`, in place of white space. In all four a special token may stand for its name. */
struct grammar_reasoning {
    struct str begin, end;
    bool is_open;
    struct str again, answer;
};

struct grammar_source {
    enum grammar_kind kind;
    struct str text;     // REGEX, GBNF, LARK
    const json_t *value; // JSON_SCHEMA: the schema; CHOICE: an array of strings; STRUCTURAL_TAG: its object. Borrowed
    struct grammar_style style;
    struct grammar_reasoning reasoning;
};

/* Of a text that is one of the two: GBNF has a line that begins with `name ::=`, Lark has `name:`. */
enum grammar_kind grammar_kind_of(struct str text);

/* Zeros are the defaults. */
struct grammar_limits {
    size_t source_bytes; // of a text, or of all strings of a value; 1 MiB
    uint32_t nodes;      // of the intermediate form and of regular expressions, each; 1 Mi
    size_t memory_bytes; // of one compiled grammar with what it learns while texts are matched; 128 MiB
    int64_t compile_us;  // of processor time; 0.9 s
};

/* On success *out is one reference, for grammar_release. */
enum status grammar_compile(const struct grammar_source *source, const struct grammar_limits *limits,
                            struct grammar **out, struct error *err);

struct grammar *grammar_hold(struct grammar *grammar); // one reference more; returns its argument
void grammar_release(struct grammar *grammar);         // NULL is fine

/* What it takes of memory now, with what matchers have learnt about it and keep (masks of states ...). */
size_t grammar_bytes(struct grammar *grammar);
