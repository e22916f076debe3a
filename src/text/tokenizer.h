/* tokenizer.h - text to token ids.
 *
 * A tokenizer is what a model's folder or GGUF file says about its vocabulary: tokenizer.json (every normaliser,
 * pre-tokenizer, model, post-processor and decoder of Hugging Face's tokenizers library), a SentencePiece .model,
 * tiktoken ranks or GGUF metadata. Text passes through these stations:
 *
 *     text ── added tokens ──┬─ token written in the text ──────────────────────────────┐
 *                            └─ plain text ── normalise ── added tokens ── split ── model ── post-process ── ids
 *                                               (NFC ...)   (normalized ones)  words   (BPE ...)  (BOS, EOS)
 *
 * A tokenizer does not change once it is open, so threads share it. Working memory (a word cache among it) is
 * in an encoder, of which each thread opens its own. The way back is detokenizer.h. */
#pragma once

#include "base/buf.h"
#include "text/token_ids.h"

/* A file whose ids or counts reach this is refused: no vocabulary has four million tokens. */
enum { TOKENIZER_MAX_TOKENS = 1 << 22 };

struct tokenizer;
struct encoder;

/* Opens a model folder, a tokenizer.json, a SentencePiece .model, a .tiktoken file of ranks or a GGUF file.
 *
 * A GGUF file, or a folder without safetensors that has one (base/gguf/gguf_find.h): the tokenizer of its metadata.
 * Folder: tokenizer.json is taken if there is one, else tokenizer.model (spiece.model, sentencepiece.bpe.model),
 * else the one *.tiktoken. Its tokenizer_config.json, if any, gives the names of the special tokens, adds the
 * tokens of added_tokens_decoder that the vocabulary lacks, and where there is no post-processor in
 * tokenizer.json, its add_bos_token and add_eos_token decide what stands around a text. special_tokens_map.json names
 * special tokens that it does not, and, as in transformers, others than it where it has no added_tokens_decoder; the
 * tokens of added_tokens.json count there too. Special tokens that no list has get ids behind the vocabulary.
 * A file opened by itself stands for itself, except
 * ranks: NAME.tiktoken reads its splitting pattern from NAME.pattern.txt or pattern.txt beside it, and its
 * special tokens from tokenizer_config.json or the one *_tokenizer_config.json beside it.
 *
 * Truncation and padding in tokenizer.json are left aside: a prompt is never cut silently.
 * Errors name file and field; a type that is not known is ERR_UNSUPPORTED and named. */
enum status tokenizer_open(const char *path, struct tokenizer **out, struct error *err);

/* Whether there is anything in the folder that tokenizer_open would try, or a GGUF file; false for what is neither. */
bool tokenizer_in_folder(const char *folder);

void tokenizer_free(struct tokenizer *tok); // NULL is fine

/* Working memory for one thread at a time; borrows tok. */
struct encoder *encoder_open(const struct tokenizer *tok);
void encoder_free(struct encoder *enc); // NULL is fine

/* Bounds what one text may take of working memory, in bytes, 2 MiB at least; what it takes is given back at its end.
 * Otherwise a text of n bytes may take 4 MiB + 128 n. An honest one of short words takes next to nothing, one long word
 * 14 bytes a byte, of a unigram model 16. out is not part of it, unless it has a budget of its own (token_ids.h). */
void encoder_set_budget(struct encoder *enc, size_t n_bytes);

enum encode_flags {
    ENCODE_ADD_SPECIAL = 1,   // run the post-processor: BOS, EOS, [CLS] ... as the vocabulary wants them
    ENCODE_PARSE_SPECIAL = 2, // a special token written in the text becomes its id; otherwise it is plain text.
                              // Added tokens that are not special are always read as tokens.
};

/* Appends the ids of text to out. Bytes that are not UTF-8 are read as U+FFFD, one for each maximal ill-formed
 * run (Unicode 3.9, as Rust and Python replace them). Fails when the vocabulary cannot express the text
 * (no unknown token: ERR_FORMAT), when the text would take more memory than it may, or its patterns more time
 * (ERR_LIMIT), and when the system has no memory for it (ERR_MEMORY). out is then as it was. */
enum status tokenizer_encode(struct encoder *enc, struct str text, int flags, struct token_ids *out, struct error *err);

/* Ids are below this. Some may be unused. */
int32_t tokenizer_n_vocab(const struct tokenizer *tok);

/* The token as the file writes it ("Ġthe", "▁the", "<|im_end|>"); empty for an unused id. Lives as long as tok. */
struct str tokenizer_token_text(const struct tokenizer *tok, int32_t id);

/* Appends the bytes that a token stands for inside a text (" the"; a byte token gives its one byte). */
void tokenizer_token_bytes(const struct tokenizer *tok, int32_t id, struct buf *out);

/* The same for the token that begins a text, where decoders strip a space. */
void tokenizer_first_token_bytes(const struct tokenizer *tok, int32_t id, struct buf *out);

/* The id of a token as the file writes it; -1 if there is none. */
int32_t tokenizer_find(const struct tokenizer *tok, struct str text);

/* Special tokens are those that a reader should not see: BOS, <|im_start|> ... */
bool tokenizer_is_special(const struct tokenizer *tok, int32_t id);

/* Added tokens are those that are cut out of a text before the model of the vocabulary sees it, special or not. */
bool tokenizer_is_added(const struct tokenizer *tok, int32_t id);

/* The named special tokens of tokenizer_config.json (or of the .model file). text is "" and id -1 where the
 * files name none; id is -1 too when a named text is not in the vocabulary. */
enum special_name { SPECIAL_BOS, SPECIAL_EOS, SPECIAL_UNK, SPECIAL_PAD, SPECIAL_EOT, N_SPECIAL_NAMES };
struct special_token {
    struct str text;
    int32_t id;
};
struct special_token tokenizer_special(const struct tokenizer *tok, enum special_name name);
