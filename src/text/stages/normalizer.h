/* normalizer.h - rewriting text before it is split: a list of steps, run one after another. */
#pragma once

#include "text/formats/sentencepiece_rules.h"
#include "text/regex/pattern.h"
#include "text/stages/charsmap.h"
#include "text/stages/normal_form.h"

enum normalizer_kind {
    NORMALIZE_FORM,          // NFC, NFD, NFKC, NFKD
    NORMALIZE_LOWERCASE,     //
    NORMALIZE_STRIP_ACCENTS, // marks go
    NORMALIZE_STRIP,         // white space at the ends goes
    NORMALIZE_REPLACE,       // matches of a pattern become a text
    NORMALIZE_PREPEND,       // unless the text is empty
    NORMALIZE_APPEND,        //
    NORMALIZE_BERT_CLEAN,    // control characters go, white space becomes a space
    NORMALIZE_BERT_CHINESE,  // spaces around ideographs
    NORMALIZE_BERT_ACCENTS,  // NFD, then nonspacing marks go
    NORMALIZE_CHARSMAP,      // SentencePiece's compiled rules
    NORMALIZE_NMT,           // the clean-up of Google's translation models
    NORMALIZE_BYTE_LEVEL,    // bytes as visible characters
    NORMALIZE_SENTENCEPIECE, // all that a SentencePiece model does
};

struct normalizer_step {
    enum normalizer_kind kind;
    enum normal_form form;
    bool left, right;       // STRIP
    struct pattern pattern; // REPLACE
    char *content;          // REPLACE, PREPEND, APPEND: owned
    size_t content_len;
    struct charsmap charsmap;
    struct sentencepiece_rules *rules; // SENTENCEPIECE: owned
};

struct normalizer {
    struct normalizer_step *steps; // [n], owned
    size_t n;
};

/* Working memory of one caller. `{.budget = budget}` is empty and valid; the budget may be NULL. */
struct normalizer_memory {
    struct budget *budget;
    struct buf text[2]; // a step reads one and writes the other
    struct normal_memory form;
    bool lost_start; // after a run: what stood at the start of the text was taken away, nothing put in its place
};

/* Reads the "normalizer" of a tokenizer.json; null is no step. */
enum status normalizer_read(const json_t *value, const char *where, struct normalizer *out, struct error *err);
void normalizer_release(struct normalizer *n);
void normalizer_memory_release(struct normalizer_memory *m);

/* Appends a step, which is taken over. */
void normalizer_take_step(struct normalizer *n, struct normalizer_step step);

/* *out is text itself when nothing changes, else lies in m until its next use. ERR_LIMIT or ERR_MEMORY when the steps
 * make more of the text than the budget has room for. */
enum status normalizer_run(const struct normalizer *n, struct normalizer_memory *m, struct regex_memory *rm,
                           struct str text, struct str *out, struct error *err);
