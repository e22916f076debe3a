/* tool_response_template.h - a format as a tokenizer's configuration says it. For this folder. */
#pragma once

#include "text/tools/tool_format.h"

/* Reads "response_template" of tokenizer_config.json, as transformers 5 has it:
 *
 *     {"fields": {"thinking":   {"open": TEXT, "close": TEXT or [TEXT ..]},
 *                 "tool_calls": {"open": TEXT or "open_pattern": "...(?P<name>...)...", "close": ..,
 *                                "content": "json" or "xml-inline", "content_args", "transform"}}}
 *
 * Patterns are read where they are texts around named groups (name; key and value of xml-inline's tag_pattern). What
 * it says takes the place of what was found before. False, with nothing changed, where it says nothing of calls that
 * can be read so. */
bool tool_response_template_take(struct tool_format *f, const json_t *template);
