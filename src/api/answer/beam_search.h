/* beam_search.h - a generation whose answers come from beam search, on top of the service.
 *
 *     generation ── run (one a prompt) ── beams.h: which sequences go on
 *                       └─ probes: a beam's tokens so far, to go on with the most probable ones ── service
 *
 * A probe is a greedy answer with the choices beside each token. It serves a beam as long as that takes the most
 * probable token; a beam that takes another gets a probe of its own, and probes that no beam follows are cancelled. The
 * engine knows nothing of beams: they share the cache of what they have in common because the prefix cache has it, in
 * whole blocks. The choices that the dialect writes have answers of their own, which nobody runs and which are filled
 * at the end. */
#pragma once

#include "api/answer/generation.h"
#include "api/fields/params.h"

/* use_beam_search, beam_width, length_penalty, early_stopping. */
struct beam_fields {
    int width; // 0: no beam search
    double length_penalty;
    const char *early_stopping; // "false", "true", "never"
};

/* Refuses what beam search cannot honour: fields that change what is drawn, stop strings, streaming, lists of
 * log-probabilities. */
enum status beam_fields_read(const struct generation *g, const json_t *body, const struct params *p,
                             struct beam_fields *out, struct error *err);

/* As generation_start, with the best n of each prompt's answers. */
void beam_search_start(struct generation *g, const struct gyre_request *request, const struct beam_fields *fields,
                       const struct prompt_ids *prompts, int n_prompts, int n);

/* The client is gone. */
void beam_search_gone(struct generation *g);
