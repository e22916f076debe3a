/* extensions.h - what completions and chat completions take beyond OpenAI's fields, as vLLM names it.
 *
 *     prompt_logprobs              0..20: how probable each prompt token was, its rank, and so many better ones
 *     return_token_ids             token_ids of an answer, prompt_token_ids
 *     return_tokens_as_token_ids   log-probabilities call a token "token_id:123": texts may be equal, ids are not
 *     detokenize                   false: no text, for who asks for ids
 *     truncate_prompt_tokens       the most tokens of a prompt, -1: what the context leaves; truncation_side says which
 *     truncation_side              end goes: "left" (its beginning, the default) or "right"
 *     add_special_tokens           BOS and the like around a prompt; chat: false, its template writes its own
 *     echo                         the prompt before the answer; chat: the last message, if it is the assistant's
 *     use_beam_search ...          see beam_search.h */
#pragma once

#include "api/answer/beam_search.h"
#include "api/answer/prompts.h"
#include "api/fields/params.h"

/* Rows of an endpoint's table of fields. */
// clang-format off
#define EXTENSION_FIELDS \
    {"prompt_logprobs", FIELD_READ, NULL}, \
    {"return_token_ids", FIELD_READ, NULL}, \
    {"return_tokens_as_token_ids", FIELD_READ, NULL}, \
    {"detokenize", FIELD_READ, NULL}, \
    {"truncate_prompt_tokens", FIELD_READ, NULL}, \
    {"truncation_side", FIELD_READ, NULL}, \
    {"add_special_tokens", FIELD_READ, NULL}, \
    {"echo", FIELD_READ, NULL}, \
    {"use_beam_search", FIELD_READ, NULL}, \
    {"beam_width", FIELD_READ, NULL}, \
    {"length_penalty", FIELD_READ, NULL}, \
    {"early_stopping", FIELD_READ, NULL}
// clang-format on

struct extensions {
    struct prompt_cut cut;
    bool add_special;
};

/* generation_start, or beam search if body asks for it; the last fields that are read. */
void extensions_start(struct generation *g, const json_t *body, struct params *p, const struct prompt_ids *prompts,
                      int n_prompts);

/* Over params_read, once max_tokens is what it will be. `add_special` is the endpoint's default. */
enum status extensions_read(struct generation *g, const json_t *body, bool add_special, struct params *p,
                            struct extensions *out, struct error *err);
