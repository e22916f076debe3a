/* bench_dataset.h - the prompts of a benchmark, under the names that vllm bench gives them:
 *
 *     random              random tokens, of lengths drawn around the ones given, behind a prefix that all share
 *     prefix_repetition   random tokens behind one of several prefixes
 *     sharegpt            a JSON file of conversations: the first turn is the prompt, the length of the second is
 *                         the answer's
 *     custom              JSON lines with "prompt"
 *
 * The same seed gives the same prompts, though not those of vllm, whose generator is numpy's. Random tokens are turned
 * into text and that into tokens again, until their number is the one wanted, as a server will read the text. */
#pragma once

#include "text/chat/template_chat.h"
#include "text/tokenizer.h"

struct bench_prompt {
    char *text;
    size_t text_bytes;
    struct token_ids ids;    // of the text, without what the tokenizer adds; empty without a tokenizer
    int64_t n_output_tokens; // to ask for
};

/* What reads the prompts: tok and encoder are NULL without a tokenizer, chat without a template. */
struct bench_text {
    const struct tokenizer *tok;
    struct encoder *encoder;
    struct chat_template *chat;
};

struct bench_dataset_options {
    const char *name, *path;
    int64_t n_prompts, seed, input_len, output_len; // lengths below 0: not given
    int64_t random_input_len, random_output_len, random_prefix_len;
    double random_range_ratio;
    int64_t prefix_len, suffix_len, n_prefixes, prefix_output_len;
    int64_t sharegpt_output_len, custom_output_len;
    bool skip_chat_template, disable_shuffle, no_oversample;
};

#define BENCH_DATASET_DEFAULT                                                                                       \
    {                                                                                                               \
        .name = "random", .n_prompts = 1000, .input_len = -1, .output_len = -1, .random_input_len = 1024,           \
        .random_output_len = 128, .prefix_len = 256, .suffix_len = 256, .n_prefixes = 10, .prefix_output_len = 128, \
        .sharegpt_output_len = -1, .custom_output_len = 256                                                         \
    }

struct bench_dataset {
    struct bench_prompt *prompts; // [n]
    size_t n;
};

/* The text may be without a tokenizer only for custom prompts that need no template. */
enum status bench_dataset_make(const struct bench_dataset_options *options, const struct bench_text *text,
                               struct bench_dataset *out, struct error *err);
void bench_dataset_release(struct bench_dataset *d);
