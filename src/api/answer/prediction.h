/* prediction.h - the field prediction of OpenAI's API: what the answer is expected to be, as guesses. */
#pragma once

#include "api/api.h"
#include "api/fields/request_fields.h"

/* {"type": "content", "content": a text, or an array of {"type": "text", "text": ...}}. Into f->request, f->arena.
 * A text that is longer than any answer of this model is cut. */
enum status prediction_read(struct api *api, const json_t *body, struct request_fields *f, struct error *err);
