/* attention_int4_cases.h - cases of attention over caches of int4, of test_ops_attention.c. */
#pragma once

#include "attention_cases.h"

/* Widths that are powers of two and not, groups that are whole and not, blocks shorter than a vector and a panel. */
#define INT4(heads, kv_heads, dim)                                                                    \
    .n_heads = heads, .n_kv_heads = kv_heads, .head_dim = dim, .v_head_dim = dim, .kv_dtype = "int4", \
    .bound = RIG_INT4_CACHE_BOUND
static const struct attention_case int4_cases[] = {
    {.name = "int4, 64", INT4(14, 2, 64), .rope_dim = 64, .scale = 0.1f},
    {.name = "int4, 128, blocks of 64", INT4(16, 2, 128), .rope_dim = 32, .block_size = 64, .scale = 0.06f},
    {.name = "int4, 80, blocks of 1", INT4(4, 2, 80), .rope_dim = 80, .block_size = 1, .scale = 0.1f},
    {.name = "int4, 96, window, softcap", INT4(2, 1, 96), .window = 9, .softcap = 3, .block_size = 4, .scale = 0.1f},
    {.name = "int4, 256, one head each", INT4(2, 2, 256), .block_size = 128, .chunk = 24, .scale = 0.03f},
    {.name = "int4, odd widths",
     .n_heads = 4,
     .n_kv_heads = 2,
     .head_dim = 46,
     .v_head_dim = 15,
     .scale = 0.1f,
     .kv_dtype = "int4",
     .bound = RIG_INT4_CACHE_BOUND},
    {.name = "int4, paired", INT4(8, 4, 16), .rope_dim = 16, .paired = true, .sinks = true, .scale = 0.1f},
    {.name = "int4, k is v",
     INT4(4, 2, 48),
     .scale = 0.1f,
     .q_norm = true,
     .v_norm = true,
     .v_from_k = true,
     .rope_dim = 48,
     .block_size = 32},
    {.name = "int4, shared keys, window",
     SHARED_KEYS(6, 2, 96, 40),
     .plus_one = true,
     .window = 30,
     .block_size = 8,
     .scale = 0.05f,
     .kv_dtype = "int4",
     .bound = RIG_INT4_CACHE_BOUND},
    {.name = "int4, the keys before", INT4(4, 2, 64), .sinks = true, .reach = REACH_BEFORE, .scale = 0.1f},
    {.name = "int4, all keys", INT4(4, 2, 64), .reach = REACH_ALL, .scale = 0.1f},
};

/* What attention_decode_int4.cu takes: blocks of 64. */
#define FAST_INT4(heads, kv_heads, dim, by) INT4(heads, kv_heads, dim), .rope_dim = dim, .block_size = 64, .scale = by
static const struct attention_case fast_int4_cases[] = {
    {.name = "int4, 64", FAST_INT4(6, 2, 64, 0.1f)},
    {.name = "int4, 64, one KV head, sinks, window", FAST_INT4(16, 1, 64, 0.1f), .sinks = true, .window = 100},
    {.name = "int4, 128, seven heads each, normed", FAST_INT4(14, 2, 128, 0.06f), .q_norm = true},
    {.name = "int4, 128, one head each, softcap", FAST_INT4(3, 3, 128, 0.06f), .softcap = 3, .sinks = true},
    {.name = "int4, 128, sixteen heads each, chunks", FAST_INT4(16, 1, 128, 0.06f), .chunk = 96},
    {.name = "int4, 256, window and softcap", FAST_INT4(4, 2, 256, 0.03f), .window = 150, .softcap = 10},
    {.name = "int4, 256, eight heads each, k is v", FAST_INT4(8, 1, 256, 0.03f), .v_norm = true, .v_from_k = true},
};
