/* tokenizer_info.h - what GET /tokenizer_info answers. */
#pragma once

#include "text/chat/template_chat.h"

/* The folder's tokenizer_config.json as an object in *out, the caller's, with the chat template that is used (chat
 * may be NULL), and "tokenizer_class", which vLLM's clients expect. */
enum status tokenizer_info_read(const char *folder, const struct chat_template *chat, json_t **out, struct error *err);
