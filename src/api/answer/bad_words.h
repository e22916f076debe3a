/* bad_words.h - the field bad_words: texts that may not be generated, as the token sequences that spell them. */
#pragma once

#include "api/api.h"
#include "api/fields/request_fields.h"

/* Into f->request, f->arena. A word stands for two sequences: the tokens that it has at the beginning of a text and
 * those that it has after a blank. (vLLM leaves the second out unless it is as long as the first, so that "little" does
 * not keep " little" away.) Other spellings, letter by letter or inside a longer token, can still come. */
enum status bad_words_read(struct api *api, const json_t *body, struct request_fields *f, struct error *err);
