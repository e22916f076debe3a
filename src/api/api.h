/* api.h - the OpenAI-compatible server: what its endpoints share.
 *
 *     HTTP exchange ─ handler, on a thread of the pool: JSON to request ─ tokenize ─ service_submit ─ hold
 *     engine thread ─ news ─ http_wake ··· on the exchange's thread: look, detokenise, write JSON when asked to fill
 *
 * One file an endpoint; each adds a row to routes.c. A handler that reads a body runs on a thread of the pool
 * (prep_pool.h), to which its exchange is lent; everything else about an exchange happens on its I/O thread; only
 * service and http_wake cross. Endpoints see tokens and text, never tensors or blocks. */
#pragma once

#include "api/keys/keys.h"
#include "api/prep_pool.h"
#include "api/record.h"
#include "api/request_log.h"
#include "engine/service.h"
#include "http/http.h"
#include "text/chat/template_chat.h"
#include "text/detokenizer.h"
#include "text/token_ids.h"
#include "text/tools/tool_format.h"

#include <pthread.h>
#include <stdatomic.h>

struct api_limits {
    int64_t max_choices;   // n of a request, and prompts of one, together
    size_t max_stops;      // strings
    size_t max_stop_bytes; // of them together: each answer keeps them, and five bytes for one of theirs
    size_t max_logit_bias; // entries; also of bad_words and stop_token_ids
    int64_t max_logprobs;  // of each token; 20. -1: as many as there are
};

/* Of what a request leaves out; NAN: as the model's generation_config.json has it. */
struct request_defaults {
    double temperature, top_p, min_p, repetition_penalty, top_k;
    int64_t max_new_tokens; // the most that any answer may have; 0: no bound but the context
};

/* All borrowed but what is marked. */
struct api_options {
    const char *version;
    const char *fingerprint;  // of weights, build and numerics: answers of servers with the same one can be compared
    const char *const *names; // model names that requests may use; the first is ours
    size_t n_names;
    const struct gyre_adapter *adapters; // the engine's: requests may use their names, too
    size_t n_adapters;
    struct keyring *keyring; // API keys, one of which a request must send; NULL: anybody may ask
    const struct tokenizer *tokenizer;
    const struct chat_template *chat; // NULL: chat requests are refused; it may be one without a template of its own
    const json_t *template_kwargs; // an object of what the template reads where a request does not say it; may be NULL
    bool trust_request_chat_template; // "chat_template" of a request may be a template; such an option needs `chat`
    bool no_jumps;                    // what a grammar leaves no choice for is written by the model, too
    bool exclude_tools_when_none;     // tools are not shown to the model where "tool_choice" is "none"
    const json_t *tokenizer_info;     // the answer of /tokenizer_info
    enum gyre_pooling pooling;        // of embeddings
    bool normalize;                   // embeddings have length 1, unless a request says otherwise
    const char *no_pooling;           // NULL; or why embeddings are refused
    struct http_options http;         // routes, context and hooks are filled in here
    int n_text_threads;               // 2: on which requests are read, see prep_pool.h
    struct request_defaults defaults;
    size_t stored_bytes; // that stored responses may take; 0: none are
    int max_queued;
    int64_t max_wait_us;     // requests that would wait longer for their first step are refused; 0: none
    int64_t step_timeout_us; // a step that takes longer hangs; 120 s
    int (*reopen)(void *context, int engine, struct gyre **out, struct gyre_error *err); // as service_options
    void *reopen_context;
    struct api_limits limits;           // zero: defaults
    enum request_log_format log_format; // on stderr
};

struct choice;

/* What an I/O thread is told by the engine's. */
struct api_thread {
    _Alignas(64) _Atomic(struct choice *) news; // a stack
    bool to_wake;                               // engine thread
    _Alignas(64) struct buf piece, shown;       // the I/O thread's: a token's text on its way
};

struct api {
    struct api_options options;
    atomic_bool ends; // api_stop was called
    struct service *service;
    struct http_server *http;
    struct prep_pool *pool;
    struct response_store *responses;
    struct tool_format *format; // how the model writes reasoning and calls
    struct token_ids marks[2];  // special tokens of its marks: without those of calls, and with them
    struct grammar_cache *grammars;
    struct token_trie *tokens; // for grammars, under grammar_lock until the first request with one has made it
    pthread_mutex_t grammar_lock;
    struct api_thread *threads; // [n_threads]
    int n_threads;
    int64_t created; // seconds since 1970
    struct records records;
    struct request_log log;
    pthread_mutex_t lock;
    size_t longest_token;      // bytes
    struct encoder **encoders; // [n_encoders] of max_encoders, idle ones, each used by one thread at a time
    size_t n_encoders, max_encoders;
};

/* Takes the engines over, n of one model (service_open_several), and listens. */
enum status api_open(struct gyre *const *take_engines, int n, const struct api_options *options, struct api **out,
                     struct error *err);

/* Accepts nothing new, lets requests in flight finish for up to patience_ms (http_hurry(api->http) ends that), and ends
 * all threads. Then api_free, when nobody can call http_hurry any more. Both take NULL. */
void api_stop(struct api *api, int patience_ms);
void api_free(struct api *api);

extern const struct http_route api_routes[]; // routes.c
extern const size_t api_n_routes;

static inline struct api *api_of(const struct http_exchange *x) { return http_context(x); }

/* http's hook: false after a 401 or 429 was sent (keys.c). */
bool api_admit(struct http_exchange *x);

/* http's hook: the exchange goes to the pool, or is told 429 or 503. */
void api_hand_over(struct http_exchange *x);

/* The pool's work: calls the handler. An allocation that fails in it ends that request alone, with 503. */
void api_work(struct http_exchange *x);

/* What the key of the exchange says about its request to the engine; tokens that it may use are charged to the key. */
void api_key_apply(struct http_exchange *x, struct gyre_request *r, int64_t n_prompt_tokens, int n_answers);

/* Whether a request of the tenant would wait for longer than api_options.max_wait_us: then ERR_FULL and a sentence, and
 * api_reply_busy says the same time. */
enum status api_check_wait(struct http_exchange *x, int32_t tenant, struct error *err);

/* 429 with Retry-After: the queue is too long for the tenant (503 while the server shuts down). */
void api_reply_busy(struct http_exchange *x, int32_t tenant, const char *message);

/* 429 with Retry-After, and in the error's object `reason`, `retry_after_ms` and, where there is one,
 * `estimated_wait_ms`. */
struct api_wait {
    const char *reason; // "key_limit", "key_queue", "overloaded"
    int64_t retry_us, estimate_us;
    bool has_estimate;
};
void api_reply_wait(struct http_exchange *x, const struct api_wait *wait, const char *message);

/* Whether the engine's step takes longer than any should. */
bool api_step_hangs(const struct api *api, const struct service_state *state);

/* ---- answers ---- */

void api_reply_json(struct http_exchange *x, int status, struct str body);

/* What an answer's head has besides, for Anthropic's clients: the request's id under their name. Returns how many, 0
 * or 1. */
size_t api_extra_headers(struct http_exchange *x, struct http_header *out);

/* {"error": {"message", "type", "param", "code"}}, or Anthropic's body below /v1/messages. param NULL: the
 * message's prefix: if that is a name. */
void api_reply_error(struct http_exchange *x, int status, const char *param, const char *message);

/* A status of ours as HTTP: ERR_ARG and ERR_FORMAT 400, ERR_FULL 429 with Retry-After, ERR_DEVICE 503 ... */
void api_reply_fault(struct http_exchange *x, const struct error *err);

/* A sentence of the engine as clients may read it: one that names a file of this machine is left to the log. */
const char *api_public_text(const char *sentence);

/* The same body, for http's own errors and for streams. */
void api_error_body(void *context, struct str path, int status, const char *message, struct buf *out);
void api_append_error(struct buf *out, struct str path, int status, const char *param, const char *message);

/* The request's body as an object in *out (the caller's), or an error was sent and false. */
bool api_read_body(struct http_exchange *x, json_t **out);

/* ---- tokens ---- */

/* Appends the ids of a text. Any thread. A text of more than 8 MiB, and 16 bytes a token of the context, is refused:
 * what tokenizing takes of memory and time grows with it. */
enum status api_tokenize(struct api *api, struct str text, int flags, struct token_ids *out, struct error *err);
size_t api_most_text(const struct api *api); // bytes that it takes

/* A token_splitter (engine/constraint.h) of the api. */
int api_split_behind(void *api, const int32_t *before, int n_before, struct str text, int32_t *out, int max);

/* Refuses a text that cannot fit the context, before it is tokenized: with more than four times the bytes of a context
 * full of the longest token (normalizers may make text shorter, though hardly by that much). Not for what is cut to
 * fit. */
enum status api_check_prompt(const struct api *api, struct str text, struct error *err);

/* The key pays for so many tokens that were made of its text, or made text, whatever becomes of the request. */
void api_charge_text(struct http_exchange *x, size_t n_tokens);

/* The adapter that `model` names, as in gyre_request; 0: none. */
int32_t api_adapter_of(const struct api *api, const json_t *body);

/* False after a 404 was sent: `model` is there, is not empty and is none of our names, nor an adapter's. */
bool api_check_model(struct http_exchange *x, const json_t *body);

/* "chatcmpl-" and 128 random bits. */
void api_new_id(const char *prefix, char out[64]);
