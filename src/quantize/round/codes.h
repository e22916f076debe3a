/* codes.h - rows of numbers as the formats of compressed-tensors checkpoints store them. Layouts: docs/formats.md.
 *
 *     fp8     E4M3 and a float32 a row            nvfp4   E2M1, E4M3 a 16 columns, a float32 a tensor
 *     int8    i8 and a float32 a row              mxfp4   E2M1, a power of two a 32 columns
 *     int4    4 bits and a scale of the model's own dtype a group of columns
 *
 * Scales of rows make the largest number the largest code. Those of groups are searched for the least squared error
 * (scales.h), of weights with `importance` where it is given. */
#pragma once

#include "core/dtype.h"

#include <stdbool.h>
#include <stdint.h>

enum code_format { CODES_FP8, CODES_INT8, CODES_INT4, CODES_NVFP4, CODES_MXFP4, N_CODE_FORMATS };

struct codes {
    enum code_format format;
    int group;              // columns of a scale; 0: a row
    enum dtype scale_dtype; // of fp8, int8 and int4
    float tensor_scale;     // of nvfp4: what all is divided by
};

/* Bytes of codes, and scales, of a row of n columns. */
int64_t codes_bytes(const struct codes *c, int64_t n);
int64_t codes_scales(const struct codes *c, int64_t n);

/* x [n] to codes and scales of a row; y [n] is what is read back. Thread-safe. */
void codes_write(const struct codes *c, const float *x, const float *importance, int64_t n, uint8_t *codes,
                 uint8_t *scales, float *y);

/* The scale of one group of int4, as stored, for which `put` gives the bits. */
float int4_scale(const struct codes *c, const float *x, const float *importance, int64_t n, uint8_t *put);

/* The scale of nvfp4 for a tensor with numbers up to `most`, as a divisor. */
float nvfp4_tensor_scale(float most);
