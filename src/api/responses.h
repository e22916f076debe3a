/* responses.h - what reading and writing of /v1/responses share. */
#pragma once

#include "api/generation.h"

/* An item of the output that a stream has open. */
enum response_item { ITEM_NONE, ITEM_REASONING, ITEM_MESSAGE };

/* What a response keeps beside its generation. */
struct response {
    const char *echo; // the request's fields, as members of an object: "instructions":null,"temperature":1.0 ...
    char reasoning_id[64], message_id[64];
    enum response_item open;
    int n_items;                // streams: that were opened
    int64_t n_events;           // streams: that were written
    int32_t n_logprobs;         // streams: tokens whose log-probabilities were due so far
    struct buf text, reasoning; // streams: all of them so far
};

/* A stream of semantic events, each with its sequence_number, or one response object; responses_write.c. */
extern const struct dialect responses_dialect;

/* Appends the body's instructions and input to messages, as those of OpenAI's chat completions, which chat_messages_fit then makes
 * fit for the template; responses_input.c. */
enum status responses_read_input(const json_t *body, json_t *messages, struct error *err);

/* The body's functions among its tools as those of chat completions, an array in *out, the caller's. Tools of other types are
 * nothing that a template shows. */
enum status responses_read_tools(const json_t *body, json_t **out, struct error *err);
