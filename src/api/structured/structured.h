/* structured.h - what a request wants its answer to look like: from its fields to a grammar.
 *
 *     response_format       text; json_object; json_schema {name, schema}; structural_tag: completions and chat alone
 *     structured_outputs    one of json, regex, choice, grammar, structural_tag, json_object, as vLLM has it, with
 *                           whitespace_pattern and disable_any_whitespace
 *     guided_json ...       the older names of the same
 *
 * A request asks once, or not at all. What its grammar is made of is read with the other fields; it is compiled once
 * the prompt is there, which tells whether reasoning comes first: then the grammar begins where that ends. Compiling
 * takes up to seconds, on the pool's thread that has the request; grammars are kept for the next one. */
#pragma once

#include "base/json/json.h"
#include "engine/constraint.h"

struct generation;

struct structured {
    const char *field;            // that asks for it, for sentences; NULL: any text will do
    struct grammar_source source; // its texts and its value lie in the body, or in `own`
    json_t *own;
    bool is_whole;                // it says what is thought before the text, too
    struct gyre_grammar compiled; // the tokens are the server's
};

/* Reads the fields that are named above. structured_release in either case. */
enum status structured_read(const json_t *body, struct structured *out, struct error *err);
void structured_release(struct structured *s);

/* Asks for it in the name of another field ("text.format", "tools"); false: the request asks already, and *err says so.
 * `take_own` is what source.value lies in, or NULL. */
enum status structured_ask(struct structured *s, const char *field, const struct grammar_source *source,
                           json_t *take_own, struct error *err);

/* A JSON schema with what stands around it: {"type": "json_schema", "schema": ...}, as Responses and Messages have it,
 * or {"type": "json_object"}, or "text", which asks for nothing. */
enum status structured_read_format(const json_t *format, const char *field, struct structured *s, struct error *err);

/* s->compiled, if it asks for anything, and g's record of how long that took. Once the prompt is there. */
enum status structured_compile(struct generation *g, struct structured *s, struct error *err);
