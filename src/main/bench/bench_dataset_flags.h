/* bench_dataset_flags.h - the flags of a benchmark's prompts, as rows of a verb's table: into d, a struct
 * bench_dataset_options. */
#pragma once

#include "bench/bench_dataset.h"
#include "main/flags/flags.h"

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
