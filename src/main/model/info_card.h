/* info_card.h - gyre info MODEL --device cuda: what the model takes of a card's memory, which need not be here. */
#pragma once

#include "engine/memory_plan.h"
#include "main/flags/engine_flags.h"
#include "main/verbs.h"

#include <jansson.h>

struct card_flags {
    const char *card, *dtype, *kv_cache_dtype, *quantization;
    int64_t max_model_len, max_batched_tokens, max_seqs, block_size;
    double memory_share;
};
#define CARD_FLAGS_DEFAULT                                                                                         \
    {.card = "H200", .dtype = "auto", .kv_cache_dtype = "auto", .quantization = "none", .block_size = 64,          \
     .memory_share = 0.92}

/* Rows of a verb's table of flags, for a struct card_flags. */
#define CARD_FLAGS(f)                                                                                              \
    {"card", 0, FLAG_STRING, &(f).card, "CARD", "Memory of a card",                                                \
     "with --device cuda: H200, H100, or B200 if the library was built with ARCHS for it"},                     \
        {"gpu-memory-utilization", 0, FLAG_REAL, &(f).memory_share, "SHARE", "Memory of a card",                   \
         "of a card's memory that may be taken, as of serve", .min = 0.01, .max = 1},                              \
        {"dtype", 0, FLAG_CHOICE, &(f).dtype, "auto|float32|float16|bfloat16", "Memory of a card", "as of serve"}, \
        {"kv-cache-dtype", 0, FLAG_CHOICE, &(f).kv_cache_dtype, KV_CACHE_DTYPES,                                   \
         "Memory of a card", "as of serve"},                                                                       \
        {"quantization", 0, FLAG_CHOICE, &(f).quantization, "none|fp8|int4|nvfp4", "Memory of a card",             \
         "as of serve"},                                                                                           \
        {"max-model-len", 0, FLAG_INT, &(f).max_model_len, "N|auto", "Memory of a card", "as of serve", .min = 0,  \
         .max = 1 << 24},                                                                                          \
        {"max-num-batched-tokens", 0, FLAG_INT, &(f).max_batched_tokens, "N", "Memory of a card",                  \
         "tokens of a step, as of serve: 8192 unless said", .min = 1, .max = 1 << 20},                             \
        {"max-num-seqs", 0, FLAG_INT, &(f).max_seqs, "N", "Memory of a card",                                      \
         "sequences of a step, as of serve: 512 unless said", .min = 1, .max = 1 << 14},                           \
    {                                                                                                              \
        "block-size", 0, FLAG_INT, &(f).block_size, "N", "Memory of a card", "tokens in a block of cache",         \
            .min = 1, .max = 1 << 14                                                                               \
    }

/* The model at path on the card, as the backend of that name places it. */
enum status card_footprint(const char *path, const char *device, const struct card_flags *f, struct footprint *out,
                           struct error *err);
/* p NULL: nobody asked, which is nothing and null. */
void card_footprint_print(const struct card_flags *f, const struct footprint *p);
json_t *card_footprint_json(const struct card_flags *f, const struct footprint *p);
