/* model_text.h - the text side of a model folder: its tokenizer and its chat template. */
#pragma once

#include "base/json/json.h"
#include "text/chat/template_chat.h"
#include "text/tokenizer.h"
#include "text/tools/tool_format.h"

struct model_text {
    struct tokenizer *tok;
    struct encoder *encoder;
    struct chat_template *chat;                  // NULL until model_text_open_chat
    struct tool_format *format;                  // how the model writes reasoning, with chat
    bool is_chat, prompt_thinks, prompt_thought; // of what was encoded last: by the template; it ends within, or
                                                 // behind, the model's thinking
};

/* Opens the tokenizer. The struct may be released in any state. */
enum status model_text_open(struct model_text *t, const char *folder, struct error *err);
enum status model_text_open_chat(struct model_text *t, const char *folder, struct error *err);

/* What the tokenizer and the folder's chat templates say that ends an answer: appended, each once. */
void model_text_ends(const struct model_text *t, const char *folder, struct token_ids *out);
void model_text_release(struct model_text *t);

/* A text as it stands: special tokens written in it are read as such, and the tokenizer adds its own (BOS ...). */
enum status model_text_encode(struct model_text *t, struct str text, struct token_ids *out, struct error *err);

/* A text without anything added or read into it. */
enum status model_text_encode_plain(struct model_text *t, struct str text, struct token_ids *out, struct error *err);

/* Messages, an array of {"role", "content"}, through the chat template, ready for the next answer. */
enum status model_text_encode_chat(struct model_text *t, json_t *messages, struct token_ids *out, struct error *err);
