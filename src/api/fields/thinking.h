/* thinking.h - how much a model may think before it answers, in the words of the APIs.
 *
 *     thinking_token_budget (vLLM), reasoning_budget_tokens (llama.cpp)     chat; -1: no bound
 *     thinking.budget_tokens (Anthropic)                                    messages
 *
 * The engine counts, and has the token that ends it come (gyre_thinking). A bound cannot be kept where a template shows
 * no thinking, its end is no token of its own, or a model thinks in channels, of which it may open one more. */
#pragma once

#include "api/answer/generation.h"

/* The first two. */
enum status thinking_read(struct generation *g, const json_t *body, struct error *err);

/* What was read, into the engine's request, once the prompt is there. `excludes` as in params.h. */
enum status thinking_bind(struct generation *g, struct gyre_request *r, const char *excludes, struct error *err);
