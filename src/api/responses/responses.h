/* responses.h - what the files of /v1/responses share.
 *
 *     create.c     POST: fields, prompt, start            input.c    items as messages
 *     truncate.c   truncation "auto"                      write.c    the response object and its events
 *     stored.c     GET, DELETE, cancel, input_items       store.c    what is stored */
#pragma once

#include "api/answer/generation.h"
#include "api/chat/chat_prompt.h"
#include "api/responses/store.h"

/* An item of the output that a stream has open. */
enum response_item { ITEM_NONE, ITEM_REASONING, ITEM_MESSAGE, ITEM_CALL };

/* What a response keeps beside its generation. */
struct response {
    const char *echo; // the request's fields, as members of an object: "instructions":null,"temperature":1.0 ...
    char reasoning_id[64], message_id[64];
    bool stored, in_background;
    struct turn *before; // that it goes on from, held; NULL: none
    struct str input;    // items, if it is stored
    enum response_item open;
    int n_items;                // streams: that were opened
    int open_call;              // streams: of ITEM_CALL
    int64_t n_events;           // streams: that were written
    int32_t n_logprobs;         // streams: tokens whose log-probabilities were due so far
    struct buf text, reasoning; // streams: all of them so far
};

/* A stream of semantic events, each with its sequence_number, or one response object; write.c. */
extern const struct dialect responses_dialect;

/* The response object of one that has just begun; status "queued" or "in_progress". */
void responses_write_started(const struct generation *g, const char *status, struct buf *out);

/* Stores it as it is in the background: it goes on. False: there is no room. */
bool responses_store_started(const struct generation *g);

/* 0 where nobody has a key. */
int32_t responses_tenant(const struct http_exchange *x);

/* Appends the body's instructions, the items before (an array, or NULL) and its input to messages, as those of
 * OpenAI's chat completions, which chat_messages_fit then makes fit for the template; input.c. */
enum status responses_read_input(const json_t *body, const json_t *before, json_t *messages, struct error *err);

/* The body's functions and custom tools as those of chat completions, an array in *out, the caller's. Tools of other
 * types are nothing that a template shows: *left is the place of the first, -1 where there is none. */
enum status responses_read_tools(const json_t *body, json_t **out, int *left, struct error *err);

/* The body's input as an array of items with ids, for those who ask for it later. */
json_t *responses_input_items(const json_t *body);

/* chat_prompt for an answer of max_tokens (-1: what is left), and where that does not fit, without messages in the
 * middle of the conversation: whole turns, oldest first but for the first, which goes last. Neither the system's at
 * the beginning nor the last turn is dropped; truncate.c. */
enum status responses_truncated_prompt(struct generation *g, json_t *context, int64_t max_tokens,
                                       struct prompt_ids *out, struct error *err);
