/* tool_tag.h - parts of structural tags: the grammar of one call's arguments. For this folder.
 *
 * Forms, as XGrammar names them: const_string, any_text, regex, grammar, json_schema, sequence, or, tag, triggered_tags
 * and tags_with_separator; json_string is our own. */
#pragma once

#include "text/tools/tool_format.h"

/* A sequence that is being made; neighbouring texts become one. */
struct tag_sequence {
    json_t *elements;
    struct buf text; // not yet among them
};

void tag_text(struct tag_sequence *s, struct str text);
void tag_add(struct tag_sequence *s, json_t *take_element);
json_t *tag_finish(struct tag_sequence *s); // one element, or a sequence of several; releases s

/* Arguments of a tool in the format's form; strict: by its schema, of which what cannot be held to is refused by name;
 * otherwise any. */
enum status tag_arguments(const struct tool_format *f, const json_t *tool, bool strict, struct tag_sequence *out,
                          struct error *err);
