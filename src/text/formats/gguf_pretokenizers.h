/* gguf_pretokenizers.h - the pre-tokenizers that GGUF files name in tokenizer.ggml.pre. */
#pragma once

#include "base/str.h"

struct gguf_pretokenizer {
    const char *names;       // " one another ", with a space before and behind each
    const char *patterns[8]; // in order, each cuts what the ones before left; ended by NULL
    bool nfc;                // text is brought to NFC first
    bool whole_word_first;   // ignore_merges
    bool add_bos;            // where tokenizer.ggml.add_bos_token says nothing
};

const struct gguf_pretokenizer *gguf_pretokenizer_find(struct str name); // NULL for a name that is not known

/* The name for these patterns (ended by NULL) and rules, the first of its row; empty: there is none. */
struct str gguf_pretokenizer_name(const char *const *patterns, bool nfc, bool whole_word_first);

extern const char gguf_gpt2_pattern[]; // of a ByteLevel that cuts
