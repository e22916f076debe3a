/* speculation_flags.h - --speculative-config, as vllm serve has it: who guesses what comes next, as a JSON object. */
#pragma once

#include "main/engine_flags.h"

#define SPECULATION_FLAG(text)                                                                                 \
    {                                                                                                          \
        "speculative-config", 0, FLAG_STRING, &(text), "JSON", "Engine",                                       \
            "tokens are guessed and checked several at a time; answers are the same: {\"method\": \"ngram\", " \
            "\"num_speculative_tokens\": 5, \"prompt_lookup_min\": 2, \"prompt_lookup_max\": 4, "              \
            "\"disable_by_batch_size\": 8}, or {\"method\": \"draft_model\", \"model\": FOLDER}"               \
    }

/* text NULL: none. A method or key that is not known is refused by name. */
enum status speculation_read(const char *text, struct speculation *out, struct error *err);
