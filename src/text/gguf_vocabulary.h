/* gguf_vocabulary.h - a model folder's tokenizer as the metadata of a GGUF file: tokenizer_gguf.c turned round.
 *
 * Read are tokenizer.json and the files beside it. What is written, by the kind of its BPE:
 *
 *     over bytes                     gpt2     tokens merges token_type, pre: the name for what cuts words
 *     with tokens for bytes, spaces  llama    tokens scores token_type; a score is the rank of the merge that makes the
 *     as U+2581                               token, below 0
 *     the same with `keeps_merges`   gemma4   tokens merges token_type
 *
 * and ids of special tokens, what stands around a text, and the chat templates "default", "tool_use" and "rag". Other
 * kinds, and patterns that no name stands for, are ERR_UNSUPPORTED with the file's name. */
#pragma once

#include "base/gguf_write.h"
#include "text/tokenizer.h"

struct gguf_vocabulary {
    int32_t n_vocab;     // rows of the model's table: ids past the tokenizer's are written as unused
    int32_t bos;         // of the model; -1: none
    const int32_t *ends; // [n_ends] tokens that end an answer, of the model
    int n_ends;
    bool keeps_merges;
};

enum status gguf_put_vocabulary(const char *folder, const struct gguf_vocabulary *v, struct gguf_writer *w,
                                struct error *err);
enum status gguf_put_chat_templates(const char *folder, struct gguf_writer *w, struct error *err);
