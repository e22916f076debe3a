/* generation.h - one request's answers on their way from tokens to JSON, whatever the dialect.
 *
 * A generation has choices (n of each prompt). For each, tokens come from the service, become text, pass the stop
 * strings and, for chat, the split of reasoning from content; the dialect writes what came of it: chunks of a stream
 * as they come, or one body at the end. It starts on the thread of the pool that has the exchange; all else is on the
 * exchange's I/O thread. Lives in the exchange's arena but for what generation_release frees. */
#pragma once

#include "api/api.h"
#include "api/tools/ask.h"
#include "api/tools/calls.h"
#include "text/stop_filter.h"

struct generation;

struct choice {
    struct generation *generation;
    void (*heard)(struct choice *c); // takes the news of its answer, all of it; NULL: generation.c does
    int index;
    struct choice *next_news; // on its thread's stack
    struct answer *answer;    // NULL before it was submitted
    const struct answer
        *scored;           // whose prompt_logprobs are those of this prompt: its own, or another choice's of the prompt
    const int32_t *prompt; // [n_prompt], in the exchange's arena
    int32_t n_prompt;
    struct str prompt_text;          // prompt_ids.text
    struct detokenizer *detokenizer; // begins behind the prompt; NULL until its answer is submitted
    struct stop_filter stop;
    struct tool_parser *parser; // of a chat: reasoning, content and calls; NULL: all is content

    struct buf content, reasoning; // what is not yet written (stream), or all of it
    struct tool_calls calls;
    int32_t n_seen;                // tokens that were looked at
    int32_t n_written;             // tokens that a chunk was written for; log-probabilities of the others are due
    int32_t n_reasoning;           // tokens while the reasoning was open
    int32_t n_before_text;         // tokens of the reasoning, its tags and the blanks behind
    int32_t first_text;            // the token that begins the text, because the prompt has none; -1: none yet
    size_t n_echoed;               // characters of the prompt that stood before the answer
    struct token_ids begins;       // with log-probabilities: of each token that was read, in characters of the answer
    bool paused;                   // its stream is not read, so that it is not computed either
    bool started;                  // its first chunk was written
    bool stopped;                  // a stop string was met; what comes after is dropped
    const char *stop_string;       // that one
    bool ended;
    const char *finish_reason; // once ended
    int64_t n_predicted_right, n_predicted_wrong; // of the request's prediction
    int64_t n_cached;
};

/* How a dialect writes. `out` is appended to. Zero stands for OpenAI's way in what follows body. */
struct dialect {
    const char *id_prefix;
    void (*chunk)(struct choice *c, struct buf *out);     // content, reasoning and logprobs that are there; or the end
    void (*last)(struct generation *g, struct buf *out);  // after all choices: usage; not the [DONE]
    void (*body)(struct generation *g, struct buf *out);  // not streaming: everything
    void (*begin)(struct generation *g, struct buf *out); // what a stream begins with; NULL: nothing
    void (*fail)(struct generation *g, struct buf *out);  // in place of `last`, after g->failed; NULL: data: {"error"}
    const char *done;                                     // closes a stream; NULL: data: [DONE]
    const char *ping;                                     // of a stream that waits; NULL: a comment
    void (*settle)(struct generation *g);                 // in place of a body, of one that is detached
    void (*give_up)(struct generation *g);                // in place of settle, without memory for it
    void (*release)(struct generation *g);                // frees what is in g->own; NULL: nothing
    bool abort_fails; // it has no name for an answer that was aborted: the request fails
};

struct generation {
    struct api *api;
    struct http_exchange *x;
    const struct dialect *dialect;
    char id[64];
    int64_t created;
    const char *model;
    struct str chunk_head; // what every chunk of its stream begins with, once the dialect has made one
    bool stream, include_usage, continuous_usage, echo, logprobs, include_stop;
    bool return_ids, ids_as_tokens, no_text; // see extensions.h
    int n_top;
    int n_prompt_logprobs; // -1: not asked
    bool add_special;      // to a chat's prompt
    bool cuts_prompt;      // one that is too long is cut to fit
    int64_t min_tokens;    // before so many tokens no stop string is looked for
    const int32_t *stop_ids;
    size_t n_stop_ids;
    int detokenize_flags;
    const struct tool_format *format; // of a chat, how its answers are written; NULL: they are text
    struct tool_format *own_format;   // ... where the request brought a template
    struct str opened;                // what the end of the prompt has begun, in that form
    bool prompt_ends_reasoning;
    struct tool_ask tools;
    const char *const *stops;
    size_t n_stops;
    struct choice *choices; // [n_choices]
    int n_choices, n_ended, n_prompts;
    struct beam_search *search; // NULL: the service runs the choices' answers
    bool is_picked;             // the best are, and
    int64_t n_cached;           // ... what was cached before they were
    int n_best;    // of the choices of a prompt so many are shown, the most probable by token; 0: all, in their order
    int n_shown;   // choices that a body has: the first ones, once all have ended
    bool begun;    // dialect->begin was called
    bool aborted;  // and the dialect has no name for that
    bool detached; // the exchange is answered before it is over, and is held until then
    bool goes_on;  // that has come so far: whether the client is gone does not matter any more
    _Atomic bool abort_asked;  // of a search, which then ends its answers itself: generation_abort
    int n_done;                // answers that the service has ended
    int thread;                // I/O thread of the exchange
    struct choice *early_news; // that came while the exchange was lent: a stack, of that thread
    int64_t n_prompt_tokens;   // of distinct prompts
    void *own;                 // the dialect's
    const char *warnings;      // JSON strings, comma between; "" if there are none
    struct error failed;       // of a choice: the whole request fails
};

/* What is left of max_tokens (-1: to the end of the context) where the server bounds every answer. */
int64_t generation_bound(const struct api *api, int64_t n_prompt, int64_t max_tokens);

/* Submits `request` n times for each prompt (seeds count up) and starts the answer. On a refusal everything is
 * undone and an error sent. The generation, prompts and stops must lie in the exchange's arena. */
struct prompt_ids {
    int32_t *ids;
    size_t n;
    struct str text; // what the client sent, if that is to be shown again; else empty with ptr NULL
};
void generation_start(struct generation *g, const struct gyre_request *request, const struct prompt_ids *prompts,
                      int n_prompts, int n);

/* In parts, for who fills the answers himself (beam_search.c): makes the choices, without answers; holds the exchange,
 * once they have some; refuses before there is anything to wait for; replies with what they say, or g->failed, and
 * ends; or ends without a reply, when the client is gone. */
void generation_prepare(struct generation *g, const struct prompt_ids *prompts, int n_prompts, int n);
void generation_begin(struct generation *g);
void generation_refuse(struct generation *g, int32_t tenant, const struct error *err);
void generation_conclude(struct generation *g);
void generation_abandon(struct generation *g);

/* Ends its answers as aborted, soon. Any thread, under the lock of the records while one of them shows it. */
void generation_abort(struct generation *g);

/* Frees what was read for one that does not start. */
void generation_drop(struct generation *g);

/* For routes. */
bool generation_fill(struct http_exchange *x, struct buf *out);
void generation_gone(struct http_exchange *x, enum http_gone why);

/* For http: the news that came while its exchange was lent to the thread that submitted it. */
void generation_returned(struct http_exchange *x);

/* For http: the news of an I/O thread. */
void generation_woken(void *api, int thread);

/* Called by the service on the engine thread. */
void generation_news(void *api, struct answer *a);
void generation_flush(void *api);

/* Of best_of: the best of each prompt come first, n_shown of them. After all have ended. */
void generation_pick_best(struct generation *g);

/* What ended the choice, for JSON: its stop string, its stop token's id, or null. */
void generation_stop_reason(const struct choice *c, struct buf *out);

/* Of g->failed, as HTTP has it. */
int generation_failed_status(const struct generation *g);

int64_t generation_n_tokens(const struct generation *g);            // generated, of all choices
void generation_usage(const struct generation *g, struct buf *out); // "usage":{...}

/* The same before what is new of c is written: of a chunk that comes ahead of it. */
void generation_usage_before(const struct choice *c, struct buf *out);
