/* bench_dataset.h - the prompts of a benchmark, under the names that vllm bench gives them:
 *
 *     random              random tokens, of lengths drawn around the ones given, behind a prefix that all share
 *     prefix_repetition   random tokens behind one of several prefixes
 *     sharegpt            a JSON file of conversations: the first turn is the prompt, the length of the second is the answer's
 *     custom              JSON lines with "prompt"
 *
 * The same seed gives the same prompts, though not those of vllm, whose generator is numpy's. Random tokens are turned
 * into text and that into tokens again, until their number is the one wanted, as a server will read the text. */
#pragma once

#include "main/flags.h"
#include "main/model_text.h"

struct bench_prompt {
    char *text;
    size_t text_bytes;
    struct token_ids ids;    // of the text, without what the tokenizer adds; empty without a tokenizer
    int64_t n_output_tokens; // to ask for
};

struct bench_dataset_flags {
    const char *name, *path;
    int64_t n_prompts, seed, input_len, output_len; // lengths below 0: not given
    int64_t random_input_len, random_output_len, random_prefix_len;
    double random_range_ratio;
    int64_t prefix_len, suffix_len, n_prefixes, prefix_output_len;
    int64_t sharegpt_output_len, custom_output_len;
    bool skip_chat_template, disable_shuffle, no_oversample;
};

#define BENCH_DATASET_DEFAULT                                                                                                       \
    {                                                                                                                               \
        .name = "random", .n_prompts = 1000, .input_len = -1, .output_len = -1, .random_input_len = 1024, .random_output_len = 128, \
        .prefix_len = 256, .suffix_len = 256, .n_prefixes = 10, .prefix_output_len = 128, .sharegpt_output_len = -1,                \
        .custom_output_len = 256                                                                                                    \
    }

/* clang-format off */
#define BENCH_DATASET_FLAGS(d) \
    {"dataset-name", 0, FLAG_CHOICE, &(d).name, "random|sharegpt|custom|prefix_repetition", "Dataset", "where the prompts come from"}, \
    {"dataset-path", 0, FLAG_STRING, &(d).path, "FILE", "Dataset", "of sharegpt (JSON) and custom (JSON lines with prompt)"}, \
    {"num-prompts", 0, FLAG_INT, &(d).n_prompts, "N", "Dataset", "requests to make", .min = 1, .max = 10000000}, \
    {"seed", 0, FLAG_INT, &(d).seed, "N", "Dataset", "the same seed gives the same prompts and arrivals", .min = 0, .max = 1e18}, \
    {"input-len", 0, FLAG_INT, &(d).input_len, "N", "Dataset", "tokens of a prompt, in place of --random-input-len", .min = 1, .max = 1 << 24}, \
    {"output-len", 0, FLAG_INT, &(d).output_len, "N", "Dataset", "tokens of an answer, in place of the dataset's own flag", .min = 1, .max = 1 << 24}, \
    {"random-input-len", 0, FLAG_INT, &(d).random_input_len, "N", "Dataset", "tokens of a random prompt", .min = 0, .max = 1 << 24}, \
    {"random-output-len", 0, FLAG_INT, &(d).random_output_len, "N", "Dataset", "tokens of its answer", .min = 1, .max = 1 << 24}, \
    {"random-range-ratio", 0, FLAG_REAL, &(d).random_range_ratio, "R", "Dataset", "lengths are drawn from (1-R) to (1+R) times those", .min = 0, .max = 0.999999}, \
    {"random-prefix-len", 0, FLAG_INT, &(d).random_prefix_len, "N", "Dataset", "tokens that all random prompts begin with, besides", .min = 0, .max = 1 << 24}, \
    {"prefix-repetition-prefix-len", 0, FLAG_INT, &(d).prefix_len, "N", "Dataset", "tokens of a prefix", .min = 1, .max = 1 << 24}, \
    {"prefix-repetition-suffix-len", 0, FLAG_INT, &(d).suffix_len, "N", "Dataset", "tokens behind it", .min = 1, .max = 1 << 24}, \
    {"prefix-repetition-num-prefixes", 0, FLAG_INT, &(d).n_prefixes, "N", "Dataset", "prefixes, shared by equal parts of the prompts", .min = 1, .max = 1 << 24}, \
    {"prefix-repetition-output-len", 0, FLAG_INT, &(d).prefix_output_len, "N", "Dataset", "tokens of an answer", .min = 1, .max = 1 << 24}, \
    {"sharegpt-output-len", 0, FLAG_INT, &(d).sharegpt_output_len, "N", "Dataset", "tokens of an answer; otherwise those of the file's", .min = 1, .max = 1 << 24}, \
    {"custom-output-len", 0, FLAG_INT, &(d).custom_output_len, "N", "Dataset", "tokens of an answer", .min = 1, .max = 1 << 24}, \
    {"skip-chat-template", 0, FLAG_BOOL, &(d).skip_chat_template, NULL, "Dataset", "send custom prompts as they are; otherwise through the tokenizer folder's template"}, \
    {"disable-shuffle", 0, FLAG_BOOL, &(d).disable_shuffle, NULL, "Dataset", "keep the order of the file"}, \
    {"no-oversample", 0, FLAG_BOOL, &(d).no_oversample, NULL, "Dataset", "make fewer requests where the file has too few prompts; otherwise some are repeated"}
/* clang-format on */

struct bench_dataset {
    struct bench_prompt *prompts; // [n]
    size_t n;
};

/* text may be without a tokenizer only for custom prompts that need no template. */
enum status bench_dataset_make(const struct bench_dataset_flags *flags, struct model_text *text, struct bench_dataset *out,
                               struct error *err);
void bench_dataset_release(struct bench_dataset *d);
