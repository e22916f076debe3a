/* chat_prompt.h - a conversation as a prompt: what chat completions, messages and responses share. */
#pragma once

#include "api/answer/generation.h"
#include "text/chat/chat_messages.h"

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

/* Puts tools, OpenAI's, into the context, unless there are none or the server keeps them from a model that is to call
 * none. After g->tools was read. */
void chat_put_tools(const struct generation *g, json_t *take_tools, json_t *context);

/* Agents bring tools that a server would run itself (web_search) beside their own. first is the place of one in the
 * body's tools, -1: there is none; others are the tools that a model here can call. Where it may choose freely among
 * such the rest is left out with a warning, else refused. */
enum status chat_leave_tools(struct generation *g, const json_t *body, int first, const json_t *choice,
                             const json_t *others, struct error *err);

/* Makes the messages fit for the template (chat_messages_fit; sentences about them begin with "messages") and renders
 * it. add_generation_prompt is set here, and enable_thinking to false where reasoning_effort is "none". */
/* own_format, if it is not NULL, gets the format of a template that the request brought; else it stays as it is. */
enum status chat_render(struct http_exchange *x, const struct chat_ask *ask, struct tool_format **own_format,
                        struct buf *prompt, struct error *err);

/* Renders, tokenizes, and sets how the answer is parted into reasoning, content and calls; g->tools, which were read
 * before, are refused where the model's calls are not understood. The ids lie in the exchange's arena. */
enum status chat_prompt(struct generation *g, const struct chat_ask *ask, struct prompt_ids *out, struct error *err);
