/* speculation_flags.h - --speculative-config, as vllm serve has it: who guesses what comes next, as a JSON object. */
#pragma once

#include "main/flags/engine_flags.h"

#define SPECULATION_FLAGS(text, e)                                                                                    \
    {"speculative-config",                                                                                            \
     0,                                                                                                               \
     FLAG_STRING,                                                                                                     \
     &(text),                                                                                                         \
     "JSON",                                                                                                          \
     "Engine",                                                                                                        \
     "tokens are guessed and checked several at a time; answers are the same: {\"method\": \"ngram\", "               \
     "\"num_speculative_tokens\": 5, \"disable_by_batch_size\": 8}, or {\"method\": \"eagle3\", \"model\": FOLDER}"}, \
        {"draft-acceptance",                                                                                          \
         0,                                                                                                           \
         FLAG_CHOICE,                                                                                                 \
         &(e).draft_acceptance,                                                                                       \
         "draw|rejection",                                                                                            \
         "Engine",                                                                                                    \
         "a guess counts if it is drawn; or by rejection sampling, which changes texts, and not how likely they "     \
         "are"},                                                                                                      \
    {                                                                                                                 \
        "synthetic-acceptance", 0, FLAG_REAL, &(e).synthetic_acceptance, "TOKENS", "Engine",                          \
            "for benchmarks: a step with guesses gives so many tokens on average, whatever is guessed", .min = 0,     \
                                                                                                        .max = 17     \
    }

/* text NULL: none. A method or key that is not known is refused by name. */
enum status speculation_read(const char *text, struct speculation *out, struct error *err);
