/* op_weights.h - weights of random numbers in every format that a checkpoint may have, and what the numbers mean: each
 * is decoded by arithmetic of its own here, for oracles. */
#pragma once

#include "op_rig.h"

/* How a weight is stored. */
enum rig_format {
    FORMAT_F32,
    FORMAT_F16,
    FORMAT_BF16,
    FORMAT_BF16_SPLIT,       // three parts from three tensors
    FORMAT_BF16_INTERLEAVED, // two parts of rows 0, 2, 4 .. and 1, 3, 5 .. of one tensor
    FORMAT_BF16_TURNED,      // stored [in, out]
    FORMAT_F8_CHANNEL,       // e4m3, a bf16 scale a row
    FORMAT_F8_TENSOR,        // e4m3, three parts from three tensors, each of one f32 scale
    FORMAT_F8_BLOCK,         // e4m3, an f32 scale a block of 32 x 16
    FORMAT_I8_TENSOR,        // one scale
    FORMAT_I8_CHANNEL,       // an f32 scale a row
    FORMAT_MXFP4,
    FORMAT_NVFP4,
    FORMAT_INT4, // in words of a row, with a scale of few bits and a zero point a 32 columns
    FORMAT_INT8, // likewise, without zero points
    N_FORMATS,
    FORMAT_Q4_0 = N_FORMATS, // GGUF's blocks, of rows that are whole blocks
    FORMAT_Q8_0,
    FORMAT_Q4_K,
    FORMAT_Q6_K,
    FORMAT_Q4_K_AND_Q6_K, // two parts
    N_STORED_FORMATS
};
const char *rig_format_name(enum rig_format format);

/* A weight of random values with about unit rows; values (may be NULL) get what the stored numbers mean. */
const struct weight *rig_weight(struct rig *rig, enum rig_format format, int64_t out, int64_t in, double **values);
/* A vector of bf16 uniform in (low, high). */
const struct weight *rig_vector(struct rig *rig, int64_t n, double low, double high, double **values);
