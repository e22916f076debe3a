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

/* Appends the text of a fit message's content: itself, or its parts one after another, as templates that walk them
 * do. */
void chat_content_text(const json_t *message, struct buf *out);

/* A conversation to be made a prompt. */
struct chat_ask {
    json_t *context; // what the template reads: messages, tools, documents ...; owned
    enum chat_end end;
    const json_t *chat_template; // the request's own, or the name of one of the model's; borrowed; NULL
};

/* Reads what chat completions and /tokenize say alike: messages, tools, documents, chat_template, chat_template_kwargs,
 * reasoning_effort, add_generation_prompt, continue_final_message. chat_ask_release in either case. */
enum status chat_ask_read(const json_t *body, struct chat_ask *out, struct error *err);
void chat_ask_release(struct chat_ask *ask);

/* Nothing here reads a model's calls, so tools of a request come with the choice of "none" (choice: its name, or
 * NULL). */
enum status chat_check_tools(const json_t *tools, const char *choice, struct error *err);

/* Puts tools, OpenAI's, into the context, unless there are none or the server keeps them from a model that is to call
 * none. */
void chat_put_tools(const struct api *api, json_t *take_tools, json_t *context);

/* Makes the messages fit for the template (chat_messages_fit; sentences about them begin with "messages") and renders
 * it. add_generation_prompt is set here, and enable_thinking to false where reasoning_effort is "none". */
enum status chat_render(const struct api *api, const struct chat_ask *ask, struct buf *prompt, struct error *err);

/* Renders, tokenizes, and sets how the answer's reasoning is split off. The ids lie in the exchange's arena. */
enum status chat_prompt(struct generation *g, const struct chat_ask *ask, struct prompt_ids *out, struct error *err);
