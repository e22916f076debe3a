/* token_trie.h - a tokenizer's tokens as grammars read them (grammar/vocabulary.h). */
#pragma once

#include "grammar/vocabulary.h"
#include "text/tokenizer.h"

/* `ends` end an answer; those that are not the tokenizer's are left out. */
enum status tokenizer_trie(const struct tokenizer *tok, const int32_t *ends, int n_ends, struct token_trie **out,
                           struct error *err);
