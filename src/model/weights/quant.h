/* quant.h - what a checkpoint says of how its weights are stored: quantization_config, hf_quant_config.json.
 *
 * The one question the binder asks is: how is module M (a tensor name less its leaf) stored? Answered for
 * DeepSeek's fp8 blocks, modelopt, compressed-tensors, GPTQ, AWQ, bitsandbytes and GPT-OSS's mxfp4;
 * docs/formats.md has the layouts. Other methods are refused by name when the configuration is parsed. */
#pragma once

#include "base/arena.h"
#include "base/json/json.h"
#include "base/status.h"
#include "core/dtype.h"

enum quant_scheme {
    QUANT_NONE,         // plain elements
    QUANT_FP8_TENSOR,   // weight f8_e4m3, weight_scale [1]
    QUANT_FP8_CHANNEL,  // weight_scale [out, 1]
    QUANT_FP8_BLOCK,    // weight_scale_inv [ceil(out/bh), ceil(in/bw)] (compressed-tensors: weight_scale)
    QUANT_INT8_CHANNEL, // weight i8, weight_scale [out, 1]
    QUANT_BNB_INT8,     // bitsandbytes: weight i8, SCB f32 [out], weight_format u8
    QUANT_BNB_CODES,    // bitsandbytes: nf4 or fp4, what says which lies beside each weight
    QUANT_INT4_GROUP,   // compressed-tensors pack-quantized, of 4 or 8 bits
    QUANT_GPTQ,
    QUANT_AWQ,
    QUANT_MXFP4, // GPT-OSS: X_blocks and X_scales; compressed-tensors: weight_packed and u8 weight_scale
    QUANT_NVFP4, // modelopt or compressed-tensors
};

struct quant_storage {
    enum quant_scheme scheme;
    int bits, group_size;       // of group formats; group_size 0: one group a row
    int block_rows, block_cols; // QUANT_FP8_BLOCK
    bool compressed_tensors;    // names and conventions of that library
    bool asymmetric;            // zero points are stored
    bool gptq_v2;               // zero points are stored as they are, not less one
    bool nested;                // QUANT_BNB_CODES: scales are quantised too
    bool weight_only;           // activations stay as they are: no input scales in the file
};

struct quant_spec; // opaque; in the spec's arena

/* The value of "quantization_config", or of hf_quant_config.json's "quantization". *out is NULL when it says
 * that nothing is quantised. */
enum status quant_spec_parse(struct arena *arena, const json_t *config, const char *where, struct quant_spec **out,
                             struct error *err);

/* How the module's weight is stored; QUANT_NONE when excluded. spec may be NULL. Embeddings, norms, convolutions
 * and routers are plain unless the configuration names them. */
struct quant_storage quant_of(const struct quant_spec *spec, const char *module);

const char *quant_name(const struct quant_spec *spec); // "fp8 blocks 128x128", for info; "none" for NULL

/* Whether gyre computes with every storage that the settings name; GPTQ of 3, 5, 6 and 7 bits is only described. */
bool quant_is_readable(const struct quant_spec *spec);

/* Whether the method is bitsandbytes, where the file says how a module is stored. */
bool quant_is_bnb(const struct quant_spec *spec);
