/* dialogue.h - a conversation on a terminal, with whatever answers: an engine in the process, or a server. */
#pragma once

#include "base/buf.h"
#include "base/json/json.h"

struct dialogue_answer {
    struct buf text;
    json_t *calls;  // of tools, as a message brings them; NULL: none. The dialogue's then
    char note[128]; // what is said behind it: "212 tokens, 84 tok/s"
};

struct dialogue_model {
    /* Answers messages (an array of {"role", "content"}): prints the answer as it comes, without a line end behind
     * it, and appends it to out->text. Ends early when interrupt_taken(). */
    enum status (*answer)(void *self, json_t *messages, struct dialogue_answer *out, struct error *err);
    void *self;
};

/* Talks until the person ends it; returns the exit code. system may be NULL. Calls of tools are shown, and the person
 * types their results. */
int dialogue(const struct dialogue_model *model, const char *system);
