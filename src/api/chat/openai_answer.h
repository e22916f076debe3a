/* openai_answer.h - what answers of completions and of chat completions write alike: beginnings, ends, usage.
 *
 * `object` is the answer's or the chunk's name in OpenAI's API ("chat.completion.chunk"); a generation has one. */
#pragma once

#include "api/answer/generation.h"

/* From the brace to system_fingerprint. */
void openai_head(const struct generation *g, const char *object, struct buf *out);

/* An event up to "choices":[, made once for a generation. */
void openai_chunk_head(struct generation *g, const char *object, struct buf *out);

/* Behind the "]" of its choices: usage, where each chunk has it, and the end of the event. */
void openai_chunk_end(struct generation *g, struct buf *out);

/* The event of usage alone. */
void openai_last_chunk(struct generation *g, const char *object, struct buf *out);

/* "finish_reason" and "stop_reason"; `open` is what stands there while the choice goes on. */
void openai_finish(const struct choice *c, struct str open, struct buf *out);

/* "token_ids" of what is new. */
void openai_token_ids(const struct choice *c, struct buf *out);

void openai_warnings(const struct generation *g, struct buf *out);
