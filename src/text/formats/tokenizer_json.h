/* tokenizer_json.h - what the files that read JSON tokenizers share. Private to them. */
#pragma once

#include "base/gguf/gguf.h"
#include "base/json/json_reader.h"
#include "text/tokenizer_parts.h"

/* The text of a value that may come once. */
enum status json_take_section(struct json_reader *r, struct str *section, const char *name, struct error *err);

/* The next item of a list must be there; the list must end. `wanted` is the sentence of the error. */
enum status json_take_item(struct json_reader *r, const char *wanted, struct error *err);
enum status json_take_list_end(struct json_reader *r, const char *wanted, struct error *err);

/* The section "model": vocabulary, merges and settings. */
enum status tokenizer_read_json_model(struct tokenizer *t, struct str section, const char *path, struct error *err);

/* The list "merges" of a BPE model, whose vocabulary is there. */
enum status tokenizer_read_json_merges(struct bpe *b, struct str section, const char *path, struct error *err);

/* The same from a GGUF file: texts "left right". */
enum status tokenizer_read_gguf_merges(struct bpe *b, const struct gguf_value *lines, const char *path,
                                       struct error *err);

/* BPE behind a ByteLevel pre-tokenizer reads bytes, where that is the same. */
void tokenizer_choose_bytes(struct tokenizer *t);

/* A trie of all tokens of the vocabulary. */
void tokenizer_build_trie(struct byte_trie *trie, const struct vocab *v);

/* The flags of an added token, as tokenizer.json and tokenizer_config.json write them. */
enum status added_token_read(const json_t *v, const char *where, struct added_token *out, struct error *err);
