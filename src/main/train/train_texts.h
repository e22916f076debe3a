/* train_texts.h - the texts of `gyre train-draft`: what a model writes to the prompts of a file, and to other prompts
 * to measure with. */
#pragma once

#include "main/flags/engine_flags.h"
#include "train/trainer.h"

struct text_options {
    const char *data, *held_out;
    int64_t answers, answer_tokens, held_prompts, seed;
    double temperature; // below 0: mixed
    bool generate;
};

#define TEXT_OPTIONS_DEFAULT \
    { .answers = -1, .answer_tokens = 200, .held_prompts = 100, .temperature = -1, .generate = true }

/* Rows of the flag table. */
/* clang-format off */
#define TEXT_FLAGS(t) \
    {"data", 0, FLAG_STRING, &(t).data, "FILE", "Data", "a text, or JSON lines of prompts and chats"}, \
    {"generate", 0, FLAG_BOOL, &(t).generate, NULL, "Data", \
     "the model answers the prompts, or goes on from beginnings of sentences of the text; --no-generate: train on " \
     "the file as it is"}, \
    {"answers", 0, FLAG_INT, &(t).answers, "N", "Data", \
     "answers in all; prompts are taken in turn. Unless it is said, 2000 to a text, and one to each prompt of JSON " \
     "lines", .min = 1, .max = 1 << 24}, \
    {"answer-tokens", 0, FLAG_INT, &(t).answer_tokens, "N", "Data", "of an answer at most", .min = 1, \
     .max = 1 << 20}, \
    {"temperature", 0, FLAG_REAL, &(t).temperature, "T", "Data", \
     "of the answers; unless it is said 0.8, 0.8, 0.4 and 0 in turn", .min = 0, .max = 100}, \
    {"held-out", 0, FLAG_STRING, &(t).held_out, "FILE", "Data", \
     "prompts to measure the accepted length with, in place of the last tenth of --data"}, \
    {"held-prompts", 0, FLAG_INT, &(t).held_prompts, "N", "Data", "of them at most", .min = 1, .max = 1 << 16}
/* clang-format on */

/* Opens the model as `engine` says, and appends its texts; the held ones are its own greedy answers. Says on standard
 * output how many. */
enum status train_texts_make(const struct text_options *o, struct engine_flags *engine, const char *model,
                             struct texts *texts, struct held_out *held, struct error *err);
