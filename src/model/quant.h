/* quant.h - what a checkpoint says of how its weights are stored: quantization_config, hf_quant_config.json.
 *
 * The one question the binder asks is: how is module M (a tensor name less its leaf) stored? Answered for
 * DeepSeek's fp8 blocks, modelopt, compressed-tensors, GPTQ, AWQ and GPT-OSS's mxfp4; MODELS.md section 9. */
#pragma once

#include "base/arena.h"
#include "base/json.h"
#include "base/status.h"
#include "core/dtype.h"

enum quant_scheme {
    QUANT_NONE,        // plain elements
    QUANT_FP8_TENSOR,  // weight f8_e4m3, weight_scale [1]
    QUANT_FP8_CHANNEL, // weight_scale [out, 1]
    QUANT_FP8_BLOCK,   // weight_scale_inv [ceil(out/bh), ceil(in/bw)] (compressed-tensors: weight_scale)
    QUANT_INT8_CHANNEL,
    QUANT_INT4_GROUP, // compressed-tensors pack-quantized
    QUANT_GPTQ,
    QUANT_AWQ,
    QUANT_MXFP4, // GPT-OSS: X_blocks and X_scales
    QUANT_NVFP4, // modelopt or compressed-tensors
};

struct quant_storage {
    enum quant_scheme scheme;
    int bits, group_size;       // of group formats
    int block_rows, block_cols; // QUANT_FP8_BLOCK
    bool compressed_tensors;    // names and conventions of that library
};

struct quant_spec; // opaque; in the spec's arena

/* The value of "quantization_config", or of hf_quant_config.json's "quantization". */
enum status quant_spec_parse(struct arena *arena, const json_t *config, const char *where, struct quant_spec **out, struct error *err);

/* How the module's weight is stored; QUANT_NONE when excluded. spec may be NULL. */
struct quant_storage quant_of(const struct quant_spec *spec, const char *module);

const char *quant_name(const struct quant_spec *spec); // "fp8 blocks 128x128", for info; "none" for NULL
