/* tool_tokens.h - which special tokens of a tokenizer are parts of a format's marks.
 *
 * Special tokens are no text for those who read an answer, but a parser of it must see those that its marks are made
 * of. */
#pragma once

#include "text/token_ids.h"
#include "text/tokenizer.h"
#include "text/tools/tool_format.h"

/* Appends their ids: those around reasoning and content; with `calls` those of calls too. */
void tool_format_tokens(const struct tool_format *f, const struct tokenizer *tok, bool calls, struct token_ids *out);
