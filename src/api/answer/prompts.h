/* prompts.h - a field that holds one prompt or several: a text, texts, token ids, or lists of token ids. */
#pragma once

#include "api/answer/generation.h"

/* How long a prompt may be before its beginning or its end is dropped. */
struct prompt_cut {
    int64_t most; // tokens; 0: as many as there are
    bool drops_end;
};

struct prompt_source {
    const char *field;     // "prompt", "input": for sentences
    int encode_flags;      // of texts
    int64_t max;           // prompts
    const char *or_max;    // what one more would be more than, for the sentence: "answers that one request may ask for"
    struct prompt_cut cut; // special tokens that were added to a text stay
    bool keeps_text;       // of a text that was not cut, in prompt_ids.text
    bool is_cut_later;     // a text that is too long for the context may be there
};

/* Reads body's field into *out, n of them, in the exchange's arena. Ids are checked against the vocabulary when they
 * are submitted. */
enum status prompts_read(struct http_exchange *x, const json_t *body, const struct prompt_source *source,
                         struct prompt_ids **out, int *n, struct error *err);

/* The ids that the cut leaves. */
struct prompt_ids prompt_cut(struct prompt_ids prompt, struct prompt_cut cut);
