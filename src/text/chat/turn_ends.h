/* turn_ends.h - the tokens that end an answer, by what a tokenizer and its chat templates say. A model's config.json
 * and generation_config.json say more; all of them together count. */
#pragma once

#include "text/chat/template_chat.h"
#include "text/tokenizer.h"

/* Appends, each once: the tokens that the tokenizer calls end of sequence (eos_token) or of turn (eot_token), and those
 * added tokens that are known to end turns and that one of the templates writes. chat may be NULL. */
void turn_ends_find(const struct tokenizer *tok, const struct chat_template *chat, struct token_ids *out);

/* The same with the templates of a folder; those that cannot be read say nothing. */
void turn_ends_in_folder(const struct tokenizer *tok, const char *folder, struct token_ids *out);
