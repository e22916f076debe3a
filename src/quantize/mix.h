/* mix.h - which type each tensor of a GGUF file gets under a name that people use for the whole: "q4_k_m".
 *
 * Of such a mix most matrices have one type; the head (or the table that is the head), values and the FFN's way down
 * have finer ones, in some layers or all, as llama.cpp chooses. Vectors, routers and convolutions stay float32. Rows
 * that are no whole number of blocks take the nearest type of 32 columns, or float16. */
#pragma once

#include "core/qformat.h"

/* How a tensor is stored: blocks, or elements of a dtype where format is QFORMAT_PLAIN. */
struct storage {
    enum dtype dtype;
    enum qformat_id format;
};

struct mix;
const struct mix *mix_find(const char *name); // NULL when there is none of the name
const char *mix_name(const struct mix *m);
uint32_t mix_file_type(const struct mix *m); // general.file_type

/* What the rules ask of a model. */
struct mix_model {
    int n_layers, n_experts, queries_per_kv; // queries_per_kv: query heads that share keys
    bool tied;                               // the table is the head
};

/* name: in the file ("blk.0.attn_v.weight"). n_dims and cols: its dimensions, and the innermost one. */
struct storage mix_storage(const struct mix *m, const struct mix_model *model, const char *name, int n_dims,
                           int64_t cols);
