/* echo.h - the prompt as a text before the answer, and where in it its tokens lie. */
#pragma once

#include "api/answer/generation.h"

struct echo {
    struct buf text;
    struct token_ids begins; // of each prompt token, in characters of the text
    int32_t first;           // the token that begins the text; n_prompt if there is none
};

/* The text that the client sent, as it was, or what ids decode to. A token that is not in the text (BOS that the
 * tokenizer put there) has no length in it; where a normaliser changed the text, places are as near as lengths tell.
 * Released by the caller. */
void echo_make(const struct choice *c, struct echo *out);
void echo_release(struct echo *e);

/* The first token that has a text which readers see; n if there is none. */
int32_t echo_first_text(const struct tokenizer *tok, const int32_t *ids, int32_t n);
