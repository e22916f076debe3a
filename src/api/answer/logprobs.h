/* logprobs.h - log-probabilities as the dialects write them. */
#pragma once

#include "api/answer/echo.h"

/* [{"token","logprob","bytes","top_logprobs":[...]}...] of tokens [from, to). */
void logprobs_write_tokens(const struct choice *c, int32_t from, int32_t to, struct buf *out);

/* Chat: {"content":[{"token","logprob","bytes","top_logprobs":[...]}...]} of tokens [c->n_written, c->n_seen). */
void logprobs_write_chat(const struct choice *c, struct buf *out);

/* Completions: {"tokens","token_logprobs","top_logprobs","text_offset"} of the same, and of the prompt before them if
 * it is shown (echo is not NULL). A token's top_logprobs have the token itself besides, as OpenAI's have. Offsets count
 * characters of the text that is shown; what has none there (a special token) has its place and no length. */
void logprobs_write_completion(struct choice *c, const struct echo *echo, struct buf *out);

/* vLLM's prompt_logprobs: [null, {"1234": {"logprob", "rank", "decoded_token"}, ...}, ...], for each prompt token
 * itself and the g->n_prompt_logprobs most probable ones. */
void logprobs_write_prompt(const struct choice *c, struct buf *out);

/* [1, 2, 3] */
void logprobs_write_ids(const int32_t *ids, int32_t n, struct buf *out);
