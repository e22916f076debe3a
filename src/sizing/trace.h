/* trace.h - requests of a real service: when they came, how long prompt and answer were, which prompts begin alike.
 *
 * Two forms are read, by what the file begins with:
 *
 *     TIMESTAMP,ContextTokens,GeneratedTokens                        Azure's traces of LLM inference
 *     2023-11-16 18:15:46.6805900,374,44
 *
 *     {"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}
 *
 * The second is Mooncake's: times in milliseconds, and an id for each 512 tokens of the prompt.
 * Prompts of the first have nothing in common. Lengths are from 1 to 2^24 tokens; times do not go back. */
#pragma once

#include "base/arena.h"
#include "base/status.h"

enum { TRACE_BLOCK = 512, MOST_TRACE_REQUESTS = 1 << 20 };

struct trace_request {
    double at_s; // since the first
    int32_t n_input, n_output;
    const int32_t *blocks; // [n_blocks], one a TRACE_BLOCK tokens, the last perhaps of fewer; none: like no other
    int n_blocks;
};

struct trace {
    struct trace_request *requests; // [n], n > 0
    int n;
    struct arena memory;
};

/* ERR_FORMAT names file, line and field. */
enum status trace_open(struct trace *t, const char *path, struct error *err);
void trace_release(struct trace *t); // a zeroed one is fine
