/* engine_chat.h - a conversation with an engine in the process: `gyre run MODEL` without a prompt. */
#pragma once

#include "gyre.h"
#include "main/flags/flags.h"
#include "main/model/model_text.h"

struct engine_chat_options {
    struct gyre_request request; // sampling and max_tokens
    const char *system;          // the first system message; NULL: none
    const char *const *stop;
    size_t n_stop;
};

/* Talks until the person ends it; returns the exit code. The model's chat template must be open. */
int engine_chat(struct gyre *g, struct model_text *text, const struct engine_chat_options *options);
