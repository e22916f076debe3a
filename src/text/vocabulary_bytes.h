/* vocabulary_bytes.h - what each token of a vocabulary stands for: for those who meet two vocabularies and know no
 * text, as the engine with a draft model that has other tokens than its target (gyre_token_bytes). */
#pragma once

#include "base/buf.h"

struct vocabulary_bytes {
    struct buf bytes;
    uint32_t *start;  // [n + 1]: token i's bytes are those from start[i] to start[i + 1]
    int32_t n, first; // `first` begins each text; -1: none does
};

/* Of a folder or file as tokenizer_open reads it. A special token has its name behind a byte 0xff, which is in no text.
 * ERR_LIMIT: bytes beyond 2^32. */
enum status vocabulary_bytes_read(const char *path, struct vocabulary_bytes *out, struct error *err);

/* Of a model and a draft beside it; empty where one of the two has no tokenizer. */
enum status vocabulary_bytes_of_both(const char *model, const char *draft, struct vocabulary_bytes out[2],
                                     struct error *err);

void vocabulary_bytes_release(struct vocabulary_bytes *v); // zeroed is fine
