/* decoder.h - from token texts back to text: a list of stages.
 *
 * A stage receives tokens, which may come in parts, and hands tokens on; the last one's text is what the reader
 * sees. Stages that judge a token by its whole text wait for its end; the others pass text on at once. */
#pragma once

#include "base/buf.h"
#include "text/regex/pattern.h"

enum decoder_kind {
    DECODE_JOIN,          // tokens parted by spaces: what a file without decoder means
    DECODE_RAW_BYTES,     // token texts are bytes, as in tiktoken's ranks; all become one token
    DECODE_BYTE_LEVEL,    // characters stand for bytes; all become one token
    DECODE_BYTE_FALLBACK, // <0xNN> tokens: a run of them becomes its characters
    DECODE_FUSE,          // all tokens become one
    DECODE_STRIP,         // a character at the ends of a token goes
    DECODE_REPLACE,       // matches of a pattern become a text
    DECODE_METASPACE,     // the mark becomes a space, but in the first token nothing
    DECODE_WORDPIECE,     // tokens without the prefix begin a word
    DECODE_BPE_SUFFIX,    // the suffix ends a word
    DECODE_CTC,           // repeated tokens and padding go
};

struct decoder_stage {
    enum decoder_kind kind;
    struct pattern pattern; // REPLACE
    char *text;             // owned: REPLACE content; WORDPIECE prefix; BPE_SUFFIX suffix; CTC padding
    size_t text_len;
    char *delimiter;     // owned: CTC, between words
    uint32_t mark;       // METASPACE, STRIP
    bool keep_first;     // METASPACE: the first token's marks become spaces too
    bool cleanup;        // WORDPIECE, CTC: no spaces before punctuation
    int64_t start, stop; // STRIP: at most so many
};

struct decoder {
    struct decoder_stage *stages; // [n], owned
    size_t n;
};

/* Whether a stage needs a regex_memory. */
bool decoder_has_regex(const struct decoder *d);

/* No stage, nor the reader, gets more bytes than this of tokens of n bytes: honest decoders make text shorter. */
static inline size_t decoder_most_bytes(size_t n) { return (1 << 20) + 16 * n; }

/* Reads the "decoder" of a tokenizer.json; null joins with spaces. */
enum status decoder_read(const json_t *value, const char *where, struct decoder *out, struct error *err);
void decoder_release(struct decoder *d);
void decoder_take_stage(struct decoder *d, struct decoder_stage stage);

/* What DECODE_REPLACE ... DECODE_CTC make of one token, alone: appended to out. first, last: of the sequence. */
enum status decoder_rewrite(const struct decoder_stage *s, struct regex_memory *rm, struct str token, bool first,
                            bool last, struct buf *out, struct error *err);

/* The byte of a token <0xNN>; -1 for others. */
int decoder_fallback_byte(struct str token);
