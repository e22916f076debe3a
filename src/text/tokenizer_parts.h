/* tokenizer_parts.h - what a tokenizer is made of. Private to the files that fill it (tokenizer_json.c,
 * sentencepiece.c, tokenizer_gguf.c, tiktoken.c, tokenizer_config.c), to tokenizer_open.c, which chooses among them,
 * and to those that run it (tokenizer.c, encoder.c, detokenizer.c). */
#pragma once

#include "base/arena.h"
#include "text/added_tokens.h"
#include "text/merging/bpe.h"
#include "text/merging/unigram.h"
#include "text/merging/wordpiece.h"
#include "text/stages/decoder.h"
#include "text/stages/normalizer.h"
#include "text/stages/postprocessor.h"
#include "text/stages/pretokenizer.h"
#include "text/tokenizer.h"

enum model_kind { MODEL_BPE, MODEL_UNIGRAM, MODEL_WORDPIECE, MODEL_WORDLEVEL };

enum token_role { ROLE_ADDED = 1, ROLE_SPECIAL = 2 };

struct tokenizer {
    struct arena memory;    // short texts that the parts borrow
    struct byte_trie fixed; // SentencePiece: user-defined pieces
    struct vocab vocab;     // the model's tokens
    struct vocab extra;     // added tokens that the model lacks: it must not find them
    enum model_kind kind;
    struct bpe bpe;
    struct unigram unigram;
    struct wordpiece wordpiece;
    int32_t unk_id;       // WORDLEVEL: -1, or what stands for an unknown word
    bool splits_at_marks; // no token goes on past a word's end into U+2581, so words can be encoded one by one

    struct normalizer normalizer;
    struct pretokenizer pretokenizer;
    struct added_tokens added;
    struct postprocessor post;
    bool has_postprocessor; // of a tokenizer.json: it decides what stands around a text, even if it adds nothing
    struct decoder decoder;

    uint8_t *roles; // [n_roles] by id, owned: 0, or token_role
    int32_t n_roles;
    char *special_text[N_SPECIAL_NAMES]; // owned; NULL: not named
};

/* Fills an empty tokenizer from one kind of file. What was filled before an error is released by the caller. */
enum status tokenizer_read_json(struct tokenizer *t, const char *path, struct error *err);
enum status tokenizer_read_sentencepiece(struct tokenizer *t, const char *path, struct error *err);
enum status tokenizer_read_gguf(struct tokenizer *t, const char *path, struct error *err);
enum status tokenizer_read_tiktoken(struct tokenizer *t, const char *path, struct error *err);

/* Adds what a tokenizer_config.json, a special_tokens_map.json and an added_tokens.json say; NULL: there is none. */
enum status tokenizer_read_beside(struct tokenizer *t, const char *config_path, const char *map_path,
                                  const char *old_path, struct error *err);

/* Adds a token of its own: the model's id when the model has the text, else `id`. ERR_FORMAT when the id is another
 * token's. A text that was added before stays as it was. */
enum status tokenizer_add_token(struct tokenizer *t, struct str text, int64_t id, struct added_token flags,
                                const char *where, struct error *err);
