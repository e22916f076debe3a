/* front.h - the front ends: each reads one kind of source into the intermediate form (ir.h).
 *
 * Each returns the node of a whole text in *out. On failure *err has a sentence that names what is wrong and where.
 * None loosens what it reads. They may be called many times on one ir: a structural tag holds schemas and grammars. */
#pragma once

#include "base/json/json.h"
#include "grammar/grammar.h"
#include "grammar/ir.h"

/* White space between JSON tokens where the style says nothing: none, one space, or a line end with an indent of up to
 * 40 characters, as json.dumps, JSON.stringify and pretty printers write it. */
#define JSON_WHITESPACE "( |\\n[ \\t]{0,40})?"

/* schema/: JSON Schema, draft 2020-12 and 7. */
enum status schema_read(struct ir *ir, const json_t *schema, const struct grammar_style *style, ir_id *out,
                        struct error *err);
enum status json_object_read(struct ir *ir, const struct grammar_style *style, ir_id *out, struct error *err);

/* front/: the rest. `where` is what errors call the source ("structured_outputs.regex"). */
enum status regex_read_rx(struct rx_pool *rx, struct str pattern, unsigned flags, rx_id *out, struct error *err);
enum regex_flags {
    REGEX_SEARCH = 1,      // unanchored, as `pattern` of a schema: ^ and $ anchor, otherwise anything may stand around
    REGEX_IGNORE_CASE = 2, // simple case folding
    REGEX_DOT_ALL = 4,     // . matches line ends
    REGEX_ECMA = 8,        // \d and \w are ASCII, \s is ECMA-262's; without it they are Unicode's, as in Python
};
enum status regex_read(struct ir *ir, struct str pattern, ir_id *out, struct error *err);
enum status gbnf_read(struct ir *ir, struct str text, ir_id *out, struct error *err);
enum status lark_read(struct ir *ir, struct str text, ir_id *out, struct error *err);
enum status choice_read(struct ir *ir, const json_t *choices, ir_id *out, struct error *err);
enum status tags_read(struct ir *ir, const json_t *tag, const struct grammar_style *style, ir_id *out,
                      struct error *err);

/* A regular expression as terminals: one, or, where it has several stretches of free text, cut between them. */
ir_id ir_of_rx(struct ir *ir, rx_id rx);

/* The texts of a node as JSON writes a string: in quotes, with what must be escaped escaped in one way
 * (schema/quoted.c). Of special tokens and members of objects there is no such text: they fail the ir. */
ir_id ir_quoted(struct ir *ir, ir_id text);

/* A text in which special tokens may stand for their names, where the vocabulary has them (tags.c). */
ir_id ir_marked(struct ir *ir, struct str text);

/* What stands before the text of a grammar, and then it (reasoning.c). */
ir_id ir_after_reasoning(struct ir *ir, const struct grammar_reasoning *reasoning, ir_id text);
