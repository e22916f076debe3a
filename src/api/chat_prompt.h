/* chat_prompt.h - a conversation as a prompt: what chat completions, messages and responses share. */
#pragma once

#include "api/generation.h"

/* What the prompt ends with. */
enum chat_end {
    CHAT_ASKS,      // the opening of an answer: the template's generation prompt
    CHAT_ENDS,      // the last message, closed
    CHAT_CONTINUES, // the last message, open: the answer goes on where its content ends
};

/* Checks that `messages` is an array of messages, each an object with a role, and makes each content one text, which is
 * what templates expect; the role "developer" becomes "system". Sentences call the array `name`. */
enum status chat_check_messages(json_t *messages, const char *name, struct error *err);

/* The parts of a content, all of them text, joined by line feeds. Sentences call the array `where`. */
enum status chat_join_parts(const json_t *parts, const char *where, struct buf *out, struct error *err);

/* Renders the template for `context` (messages, and what else it reads), tokenizes, and sets how the answer's reasoning
 * is split off. add_generation_prompt is set here, and enable_thinking to false where reasoning_effort is "none". The ids lie in the exchange's arena. */
enum status chat_prompt(struct generation *g, json_t *context, enum chat_end end, struct prompt_ids *out, struct error *err);
