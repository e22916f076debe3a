/* messages_input.h - the messages of Anthropic's API as those of OpenAI's, which chat_messages_fit then makes fit for
 * the template. */
#pragma once

#include "base/json/json.h"

/* Appends the body's system and messages to out, an array. tool_use becomes tool_calls, tool_result a message of the
 * role "tool" before what else its message says, thinking reasoning_content. */
enum status messages_read_input(const json_t *body, json_t *out, struct error *err);

/* The body's tools as OpenAI's, an array in *out, the caller's. Those that a server runs are not in it: *left is the
 * place of the first, -1 where there is none. */
enum status messages_read_tools(const json_t *body, json_t **out, int *left, struct error *err);
