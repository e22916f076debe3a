/* train_prompts.h - what `gyre train-draft` reads: a text, or JSON lines of prompts and chats, as tokens.
 *
 *     {"prompt": "..."}  {"prompt_ids": [...]}  {"messages": [...]}
 *     {"conversations": [{"from": "human", "value": "..."}]}
 *
 * Of a text prompts are openings: from the beginning of a sentence on, 4 to 32 tokens. */
#pragma once

#include "main/model/model_text.h"
#include "train/texts.h"

struct prompt_source {
    const char *path;
    struct model_text *text;    // with a chat template, if the folder has one
    const char *model;          // whose
    int32_t vocab_size;         // ids of prompts are below it
    int64_t longest;            // tokens
    int64_t n_openings, n_held; // of a text: prompts to train on, and at most so many for the measurement
    uint64_t seed;
    bool as_it_is; // prompts with the answers that they have, and a text whole, cut after `longest` tokens
};

/* Prompts in their order, and of the file's last tenth those to measure with; held NULL: all are for training. */
enum status train_prompts_read(const struct prompt_source *s, struct texts *prompts, struct texts *held,
                               struct error *err);

/* Prompts to measure with alone, of another file. */
enum status train_prompts_read_held(const struct prompt_source *s, struct texts *held, struct error *err);
