/* request_fields.h - a request as JSON, in the field names of OpenAI's completions and of those who extend them, to
 * what the engine takes.
 *
 *     {"prompt": "Once upon", "max_tokens": 40, "temperature": 0.7, "stop": ["\n\n"], "seed": 7, "ignore_eos": true}
 *
 * A field that is not known, or has the wrong type, is an error that names it: a misspelt one would otherwise be
 * dropped and nobody would know. null stands for a field that is not given. Ranges are the engine's to judge. */
#pragma once

#include "base/arena.h"
#include "base/json/json.h"
#include "gyre.h"

struct request_fields {
    struct arena arena;          // everything below lies in it
    struct gyre_request request; // request.prompt is NULL when the prompt is text
    const char *prompt;          // "prompt"; NULL when there are "prompt_ids"
    const char **stop;           // stop strings, which are the caller's to find
    size_t n_stop;
    int32_t max_logprobs; // what top_logprobs may be; 0: GYRE_MAX_TOP_LOGPROBS
    int32_t n_vocab;      // what -1 stands for there, if that is allowed; 0: it is not known
};

/* Reads one of prompt and prompt_ids, and the sampling fields, over `base`, which stands for those that are not given.
 */
enum status request_fields_read(const json_t *object, const struct gyre_request *base, struct request_fields *out,
                                struct error *err);

/* The prompt only; other fields are errors. */
enum status request_prompt_read(const json_t *object, const struct gyre_request *base, struct request_fields *out,
                                struct error *err);

/* The sampling fields alone, over f->request; other fields are not looked at. */
enum status request_sampling_read(const json_t *object, struct request_fields *f, struct error *err);

/* How many log-probabilities a field asks for: -1 is all of the vocabulary, as vLLM has it; *out stays where it is not
 * given. */
enum status request_logprobs_read(const json_t *object, const char *name, const struct request_fields *f, int *out,
                                  struct error *err);

/* Whether it is a field of that. */
bool request_is_sampling_field(const char *name);

void request_fields_release(struct request_fields *f);
