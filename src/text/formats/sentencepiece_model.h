/* sentencepiece_model.h - the pieces of a SentencePiece vocabulary and how they are used, from a .model file or from a
 * GGUF file's metadata, and the tokenizer that they make. Private to the readers of those. */
#pragma once

#include "text/tokenizer_parts.h"

enum piece_type { PIECE_NORMAL = 1, PIECE_UNKNOWN, PIECE_CONTROL, PIECE_USER_DEFINED, PIECE_UNUSED, PIECE_BYTE };
enum trainer_model { TRAINER_UNIGRAM = 1, TRAINER_BPE = 2 };

struct piece {
    float score;
    enum piece_type type; // 0: not known
};

/* `(struct sentencepiece_model){.unk_id = -1}` is empty; texts are borrowed. */
struct sentencepiece_model {
    const char *path;
    struct piece *pieces; // [n], by id
    size_t n, cap;
    int32_t unk_id;
    uint64_t model_type;
    bool byte_fallback, suffix_spaces;
    struct str names[N_SPECIAL_NAMES];
    struct str charsmap;
    bool add_dummy_prefix, remove_extra_whitespaces, escape_whitespaces;
};

/* The next piece. ERR_FORMAT for a text that is empty, no UTF-8 or there already, a score that is not finite, an
 * unknown type, a second piece of the type UNKNOWN. */
enum status sentencepiece_add(struct tokenizer *t, struct sentencepiece_model *m, struct str text, struct piece piece,
                              struct error *err);

/* Makes t, an empty tokenizer but for the vocabulary that sentencepiece_add filled. */
enum status sentencepiece_build(struct tokenizer *t, const struct sentencepiece_model *m, struct error *err);
