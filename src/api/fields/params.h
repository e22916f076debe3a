/* params.h - the fields that completions and chat have in common, read with errors that name them. */
#pragma once

#include "api/answer/generation.h"
#include "api/fields/request_fields.h"
#include "api/structured/structured.h"

/* What an endpoint does with a field that is not a sampling field. */
enum field_kind {
    FIELD_READ,        // the endpoint reads it itself
    FIELD_SET_ASIDE,   // known, and without meaning here: user, metadata ...
    FIELD_UNSUPPORTED, // refused by name unless null, false, empty, or what `only` says
};

struct field {
    const char *name;
    enum field_kind kind;
    const char *only; // of FIELD_UNSUPPORTED: JSON text of a value that asks for nothing
};

/* Over the service's defaults, OpenAI's. */
struct params {
    struct request_fields fields; // arena and sampling
    struct structured structured;
    int n;
    bool stream;
};

/* Reads stream, stream_options, n, seed, what asks for structured output (structured/structured.h), stop, bad_words,
 * sampling, priority, cache_salt, skip_special_tokens, include_stop_str_in_output, and looks at every other field of
 * body by the table (names end with NULL). What nobody knows is listed in g->warnings. False after an error was sent.
 * params_release in either case. */
bool params_read(struct generation *g, const json_t *body, const struct field *table, struct params *out);

/* Adds a sentence to g->warnings, which the look at every field begins. */
void params_warn(struct generation *g, const char *sentence);

/* The look at every field alone; without `generates` only the table's are known, not those of sampling and streaming.
 */
enum status params_check_fields(struct generation *g, const json_t *body, const struct field *table, bool generates,
                                struct error *err);

/* The grammar of structured output, into the engine's request: once the prompt is there, before generation_start.
 * excludes: a field with which there is none; NULL: there may be one. */
enum status params_compile_structured(struct generation *g, struct params *p, const char *excludes, struct error *err);

void params_release(struct params *p);
