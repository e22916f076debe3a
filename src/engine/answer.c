/* answer.c - what the service writes into an answer; see service.h. */
#include "engine/service.h"

#include "core/sample.h"

#include <math.h>
#include <string.h>

void answer_allocate(struct answer *a, struct arena *arena, const struct gyre_request *asked, int32_t hidden_size) {
    size_t n = (size_t)asked->max_tokens, top = (size_t)asked->n_top_logprobs;
    size_t prompt = (size_t)asked->n_prompt, prompt_top = (size_t)asked->n_prompt_top_logprobs;
    a->capacity = (int32_t)asked->max_tokens;
    a->n_prompt = (int32_t)asked->n_prompt;
    a->n_text = INT32_MAX;
    a->n_top = asked->n_top_logprobs;
    a->n_prompt_top = asked->n_prompt_top_logprobs;
    a->tokens = arena_calloc(arena, n, sizeof *a->tokens);
    if (asked->logprobs || top > 0)
        a->logprobs = arena_calloc(arena, n, sizeof *a->logprobs);
    a->top_tokens = arena_calloc(arena, n * top, sizeof *a->top_tokens);
    a->top_logprobs = arena_calloc(arena, n * top, sizeof *a->top_logprobs);
    if (asked->pooling != GYRE_POOL_NONE)
        a->pooled = arena_calloc(arena, (size_t)hidden_size, sizeof *a->pooled);
    if (asked->score_prompt) {
        a->prompt_logprobs = arena_calloc(arena, prompt, sizeof *a->prompt_logprobs);
        a->prompt_ranks = arena_calloc(arena, prompt, sizeof *a->prompt_ranks);
        a->prompt_top_tokens = arena_calloc(arena, prompt * prompt_top, sizeof *a->prompt_top_tokens);
        a->prompt_top_logprobs = arena_calloc(arena, prompt * prompt_top, sizeof *a->prompt_top_logprobs);
        for (size_t i = 0; i < prompt; i++)
            a->prompt_logprobs[i] = NAN;
    }
}

/* Row i of tops, n each: those of the event, or the most probable of all its logits. */
static void put_top(const struct gyre_event *e, int32_t n_vocab, int n, int64_t i, int32_t *tokens, float *logprobs) {
    tokens += i * n;
    logprobs += i * n;
    if (e->logits && n > MAX_TOP_LOGPROBS)
        sample_most_probable(e->logits, n_vocab, n, tokens, logprobs);
    else if (e->n_top > 0) {
        memcpy(tokens, e->top_tokens, (size_t)e->n_top * sizeof *tokens);
        memcpy(logprobs, e->top_logprobs, (size_t)e->n_top * sizeof *logprobs);
    }
}

void answer_put_token(struct answer *a, const struct gyre_event *e, int32_t n_vocab) {
    int32_t i = atomic_load_explicit(&a->n_tokens, memory_order_relaxed);
    BUG_IF(i >= a->capacity);
    a->tokens[i] = e->token;
    if (a->logprobs)
        a->logprobs[i] = e->logprob;
    put_top(e, n_vocab, a->n_top, i, a->top_tokens, a->top_logprobs);
    if (e->stops)
        atomic_store_explicit(&a->n_text, i, memory_order_relaxed);
    atomic_store_explicit(&a->n_tokens, i + 1, memory_order_release);
}

void answer_put_prompt(struct answer *a, const struct gyre_event *e, int32_t n_vocab) {
    int64_t next = e->position + 1;
    if (next >= a->n_prompt || !a->prompt_logprobs)
        return;
    a->prompt_logprobs[next] = e->logprob;
    a->prompt_ranks[next] = e->rank;
    put_top(e, n_vocab, a->n_prompt_top, next, a->prompt_top_tokens, a->prompt_top_logprobs);
}
