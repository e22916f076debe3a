/* choice.h - one choice of a generation: its tokens become text, reasoning and calls.
 *
 * What is new goes to the choice's content, reasoning and calls, where the dialect takes it. On the exchange's I/O
 * thread but for choice_init. Knows no sockets and no JSON. */
#pragma once

#include "api/answer/generation.h"

/* Choice `index` of g, of that prompt, before it is submitted. */
void choice_init(struct choice *c, struct generation *g, int index, struct prompt_ids prompt);
void choice_release(struct choice *c);

/* Detokenizers behind the prompts; choices of one prompt lie side by side. Once the answers are submitted, since the
 * device works meanwhile. */
void choice_begin_texts(struct generation *g);

/* Reads the tokens that came. A stop string ends the text: c->stopped. Faults are in the generation's `failed`. */
void choice_read_tokens(struct choice *c);

/* After the last token: what was held back, and why it ended. */
void choice_end(struct choice *c);
