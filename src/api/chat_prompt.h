/* chat_prompt.h - a conversation as a prompt: what chat completions, messages and responses share. */
#pragma once

#include "api/generation.h"
#include "text/chat_messages.h"

/* What the prompt ends with. */
enum chat_end {
    CHAT_ASKS,      // the opening of an answer: the template's generation prompt
    CHAT_ENDS,      // the last message, closed
    CHAT_CONTINUES, // the last message, open: the answer goes on where its content ends
};

/* Appends the text of a fit message's content: itself, or its parts one after another, as templates that walk them do. */
void chat_content_text(const json_t *message, struct buf *out);

/* Makes the messages of `context` fit for the template (chat_messages_fit; sentences about them begin with "messages"), renders it,
 * tokenizes, and sets how the answer's reasoning is split off. add_generation_prompt is set here, and enable_thinking to false
 * where reasoning_effort is "none". The ids lie in the exchange's arena. */
enum status chat_prompt(struct generation *g, json_t *context, enum chat_end end, struct prompt_ids *out, struct error *err);
