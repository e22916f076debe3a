/* gyre_text.h - text in front of gyre.h: tokenize, detokenize as tokens come, render a chat, stop strings; and an
 * engine on a thread of its own, which many threads ask for texts.
 *
 *     struct gyre_llm *m;
 *     struct gyre_error err;
 *     if (gyre_llm_open(&(struct gyre_options){.model = "models/story", .backend = &backend_cpu}, &m, &err) != 0)
 *         die(err.text);
 *     struct gyre_ids prompt;
 *     gyre_tokenize(gyre_llm_text(m), "Once upon a time", 16, GYRE_ADD_SPECIAL, &prompt, &err);
 *     struct gyre_request r = gyre_llm_request_default(m);
 *     r.prompt = prompt.ids, r.n_prompt = (int64_t)prompt.n, r.max_tokens = 100;
 *     struct gyre_answer *a;
 *     gyre_llm_ask(m, &r, NULL, &a, &err);
 *     while (gyre_answer_wait(&a, 1, -1) >= 0)
 *         fwrite(a->text + a->n_bytes - a->n_new, 1, a->n_new, stdout);
 *     gyre_answer_free(a);
 *     gyre_ids_free(&prompt);
 *     gyre_llm_close(m);
 *
 * Texts are UTF-8 with a length; NUL bytes in them are bytes like others. Functions that can fail return 0, or another
 * number after one sentence in err. What is in gyre.h about struct_size holds here too. docs/c.md has a program. */
#pragma once

#include "gyre.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Made by the library, given back by the caller. A freed one is empty and may be freed again. */
struct gyre_string {
    char *text; // [n_bytes], and a NUL
    size_t n_bytes;
};
struct gyre_ids {
    int32_t *ids;
    size_t n;
};
void gyre_string_free(struct gyre_string *s);
void gyre_ids_free(struct gyre_ids *ids);

// ---- a model's text ----

/* A model folder's tokenizer and chat template. It does not change: any number of threads use one at the same time. */
struct gyre_text;

int gyre_text_open(const char *model, struct gyre_text **out, struct gyre_error *err);
void gyre_text_close(struct gyre_text *t); // NULL is fine
int32_t gyre_text_vocab_size(const struct gyre_text *t);
bool gyre_text_has_chat(const struct gyre_text *t); // whether the folder has a chat template

/* The tokens that end a sequence or a turn by the tokenizer's files and the chat template: for gyre_options.eos. */
struct gyre_ids gyre_text_eos(const struct gyre_text *t);

enum gyre_text_flags {
    GYRE_ADD_SPECIAL = 1,   // tokenize: what the vocabulary puts around a text, BOS ...
    GYRE_PARSE_SPECIAL = 2, // tokenize: special tokens written in the text become their ids
    GYRE_SKIP_SPECIAL = 4,  // detokenize: special tokens give nothing
};

/* A chat's prompt, which the template has given its special tokens, wants GYRE_PARSE_SPECIAL alone. */
int gyre_tokenize(const struct gyre_text *t, const char *text, size_t n_bytes, int flags, struct gyre_ids *out,
                  struct gyre_error *err);

/* Refuses ids that are not in the vocabulary. */
int gyre_detokenize(const struct gyre_text *t, const int32_t *ids, size_t n, int flags, struct gyre_string *out,
                    struct gyre_error *err);

/* The bytes of one token inside a text, which may be a part of a character. */
int gyre_token_bytes(const struct gyre_text *t, int32_t id, struct gyre_string *out, struct gyre_error *err);

struct gyre_message {
    const char *role, *content; // UTF-8 with a NUL at the end: "system", "user", "assistant"
};

/* The prompt that the model's chat template makes of a conversation, ready for the next answer. */
int gyre_render_chat(const struct gyre_text *t, const struct gyre_message *messages, size_t n, struct gyre_string *out,
                     struct gyre_error *err);

/* The same of a JSON object: messages, tools, add_generation_prompt, and whatever else the template reads. */
int gyre_render_chat_json(const struct gyre_text *t, const char *json, size_t n_bytes, struct gyre_string *out,
                          struct gyre_error *err);

// ---- what an answer must be ----

enum gyre_grammar_kind {
    GYRE_JSON_SCHEMA, // draft 2020-12 or 7
    GYRE_JSON_OBJECT, // any JSON object; without a text
    GYRE_REGEX,       // which the whole answer matches
    GYRE_GRAMMAR,     // llama.cpp's GBNF, or Lark's EBNF: told apart
    GYRE_CHOICE,      // a JSON array of texts
    GYRE_STRUCTURAL_TAG
};

/* Zero means the default everywhere. Everything is copied. */
struct gyre_grammar_source {
    size_t struct_size; // sizeof(struct gyre_grammar_source)
    enum gyre_grammar_kind kind;
    const char *text; // [n_bytes]
    size_t n_bytes;
    const char *whitespace; // a regular expression for the white space between JSON tokens; NULL: as usual writers do
    bool compact;           // none at all
    const char *think_begin, *think_end; // the model may think first, between these ("<think>", "</think>"); NULL: not
    bool is_thinking;                    // the prompt ends behind think_begin
};

/* For gyre_request.grammar of engines with this text's tokenizer, any number of times, from any thread. What cannot be
 * enforced is refused. Freed once no call uses it; t is closed once the requests have ended. Where a grammar leaves no
 * choice, what must come is put into the answer at once, as the tokenizer splits it, unless log-probabilities are asked
 * for, or what changes probabilities. */
int gyre_grammar_compile(const struct gyre_text *t, const struct gyre_grammar_source *source, struct gyre_grammar **out,
                         struct gyre_error *err);
void gyre_grammar_free(struct gyre_grammar *g); // NULL is fine

// ---- the text of an answer, token by token ----

/* Zero means the default everywhere. Everything is copied. */
struct gyre_stream_options {
    size_t struct_size;    // sizeof(struct gyre_stream_options)
    const int32_t *prompt; // what the tokens come behind: their text is decode(all) without decode(prompt)
    size_t n_prompt;
    const char *const *stop; // strings that end the text, each not empty
    size_t n_stop;
    int64_t min_tokens; // before so many tokens no stop string is looked for
    bool include_stop;  // the stop string is part of the text
    bool keep_special;  // special tokens are text too
};

struct gyre_stream;
int gyre_stream_open(const struct gyre_text *t, const struct gyre_stream_options *options, struct gyre_stream **out,
                     struct gyre_error *err);
void gyre_stream_close(struct gyre_stream *s); // NULL is fine; before the text

/* Appends what has become certain: whole characters, and nothing that may still become a stop string. */
int gyre_stream_feed(struct gyre_stream *s, int32_t id, struct gyre_error *err);
int gyre_stream_finish(struct gyre_stream *s, struct gyre_error *err); // no more tokens will come: what was held back

/* All of the text so far, as long as the stream, until it is fed again; NUL-terminated. */
const char *gyre_stream_text(const struct gyre_stream *s, size_t *n_bytes);

/* The stop string that ended the text; -1: none yet. What is fed afterwards is passed over. */
int gyre_stream_stopped(const struct gyre_stream *s);

// ---- answers ----

/* An engine on a thread of its own, with its model's text. Any thread asks at any time; what is asked together shares
 * the engine's steps. One answer is used by one thread at a time. A process that forks opens it afterwards. */
struct gyre_llm;
int gyre_llm_open(const struct gyre_options *options, struct gyre_llm **out, struct gyre_error *err);

/* Ends what still runs. Frees the answers that were not freed; no other thread may use any. NULL is fine. */
void gyre_llm_close(struct gyre_llm *m);

const struct gyre_text *gyre_llm_text(const struct gyre_llm *m);
const struct gyre_info *gyre_llm_info(const struct gyre_llm *m);

/* As gyre_request_default. */
void gyre_llm_request_init(const struct gyre_llm *m, struct gyre_request *request, size_t struct_size);
static inline struct gyre_request gyre_llm_request_default(const struct gyre_llm *m) {
    struct gyre_request r;
    gyre_llm_request_init(m, &r, sizeof r);
    return r;
}

/* Made by gyre_llm_ask, changed by gyre_answer_wait alone; members are only added, at the end. */
struct gyre_answer {
    void *user;       // of the request
    const char *text; // [n_bytes] all of it so far, whole characters, and a NUL
    size_t n_bytes;
    size_t n_new;          // bytes of it that the last wait has added
    const int32_t *tokens; // [n_tokens] all of them so far
    int64_t n_tokens;
    int n_top;                 // of the next lines: as asked
    const float *logprobs;     // [n_tokens]; NULL: not asked
    const int32_t *top_tokens; // [n_tokens][n_top], the most probable first
    const float *top_logprobs;
    int64_t n_prompt;
    int n_prompt_top;
    const float *prompt_logprobs;     // [n_prompt], NAN at 0, whole when done; NULL: score_prompt was not asked
    const int32_t *prompt_ranks;      // [n_prompt] places among all tokens by probability, from 1
    const int32_t *prompt_top_tokens; // [n_prompt][n_prompt_top]
    const float *prompt_top_logprobs;
    bool done;
    enum gyre_finish finish;   // when done; GYRE_STOP for a stop string too
    int stop_string;           // that ended it, of gyre_stream_options.stop; -1: none
    int32_t stop_token;        // likewise: the end-of-sequence token or stop id; -1: none
    const char *error;         // GYRE_FAILED: the sentence
    struct gyre_timing timing; // when done, unless a stop string ended it
};

/* Refuses as gyre_submit does; want_last_logits and pooling cannot be asked here. The text stands behind the request's
 * prompt and its min_tokens, whatever `text` says of them; NULL: no stop strings. Everything is copied. */
int gyre_llm_ask(struct gyre_llm *m, const struct gyre_request *request, const struct gyre_stream_options *text,
                 struct gyre_answer **out, struct gyre_error *err);

/* Waits until one of the answers has something new, and takes it. Returns its place; -1 when none came within `seconds`
 * (below 0: however long it takes) or all are done. */
int64_t gyre_answer_wait(struct gyre_answer *const *answers, size_t n, double seconds);

/* The same, until one of them is done. */
int64_t gyre_answer_wait_done(struct gyre_answer *const *answers, size_t n, double seconds);

/* Ends it, if it still runs. NULL is fine. */
void gyre_answer_free(struct gyre_answer *a);

#ifdef __cplusplus
}
#endif
