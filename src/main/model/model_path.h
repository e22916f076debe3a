/* model_path.h - what is wrong with the MODEL that a person gave, in one sentence about the model.
 *
 * The files' own readers say what is wrong with a file. Before them, this tells a name of the hub, a GGUF file, the
 * weights or the settings alone, a folder around the model's or one without a tokenizer, and what to do in place of it.
 */
#pragma once

#include "base/status.h"

enum model_use {
    MODEL_TEXT,          // its tokenizer is needed
    MODEL_TOKENIZER,     // the same, and a tokenizer's own file will do
    MODEL_COMPUTE,       // its settings and weights are needed
    MODEL_SETTINGS,      // its settings are needed; a file of them will do
    MODEL_CHAT_TEMPLATE, // its chat template is needed; a file of that will do
};

/* OK where nothing of the above is wrong: what is there may still be faulty. */
enum status model_path_check(const char *path, enum model_use use, struct error *err);

/* Whether there are weights that may be read. What is there may still be faulty, and is not taken for none. */
bool model_path_has_weights(const char *path);

/* Whether a word on the command line, in place of a verb, is meant as a model. */
bool model_path_is_likely(const char *word);
