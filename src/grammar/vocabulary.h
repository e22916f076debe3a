/* vocabulary.h - the tokens of a tokenizer as a trie of bytes, walked to find which tokens a grammar allows.
 *
 * Made once a model, and shared by all its matchers on any thread. A token of text stands for its bytes inside a text
 * (tokenizer_token_bytes). A special token is an id, and its name never matches as text: only a grammar that names it
 * allows it. End tokens are those that end an answer; they are allowed where the text may end, and nowhere else. */
#pragma once

#include "base/status.h"
#include "base/str.h"

enum token_kind {
    TOKEN_TEXT,
    TOKEN_SPECIAL, // bytes is its name, as "<|im_start|>", by which grammars may ask for it
    TOKEN_UNUSED,  // an id that stands for nothing: never allowed. A text token without bytes is taken for one too
};

struct token_text {
    struct str bytes; // borrowed for the call
    enum token_kind kind;
};

struct token_trie;

/* tokens is [n_vocab], by id; ends are ids below n_vocab, of any kind. Fails with ERR_ARG, and with ERR_LIMIT past 4 Mi
 * tokens, a token of text over 64 KiB (longer ones are never allowed), or 1 GiB of bytes. */
enum status token_trie_open(const struct token_text *tokens, int32_t n_vocab, const int32_t *ends, int32_t n_ends,
                            struct token_trie **out, struct error *err);
struct token_trie *token_trie_hold(struct token_trie *trie); // one reference more; returns its argument
void token_trie_free(struct token_trie *trie);               // gives a reference back; NULL is fine

int32_t token_trie_n_vocab(const struct token_trie *trie);
int32_t token_trie_n_words(const struct token_trie *trie); // of a mask: (n_vocab + 31) / 32

/* The id of the special token of that name; -1 if there is none. */
int32_t token_trie_special(const struct token_trie *trie, struct str name);

/* Memory, with the masks of terminals that all grammars share. */
size_t token_trie_bytes(struct token_trie *trie);
