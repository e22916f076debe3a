/* kernels_vnni.h - products of block formats with activations of 8 bits, by the AVX-512 instructions for them. */
#pragma once

#include "backend/cpu/kernels/kernels.h"

/* The set `base`, but rows of block formats (GGUF's) are multiplied as they are stored, with x rounded to 8 bits by 32
 * columns: numerics.md says what that loses. NULL where the processor lacks the instructions (AVX-512 VNNI). Formats
 * that have no such product, and everything else, are base's. */
#if defined(__x86_64__)
/* Formats that have one: blocks of 32 columns, and of 256. */
#define SMALL_BLOCKS(X) X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q8_0) X(IQ4_NL) X(MXFP4_HALVES)
#define LARGE_BLOCKS(X) X(Q4_K) X(Q5_K) X(Q6_K)
#define RARE_BLOCKS(X) X(Q2_K) X(Q3_K) X(IQ4_XS) X(TQ2_0)
#define X(id) void product_##id(const struct few_rows *f);
SMALL_BLOCKS(X)
LARGE_BLOCKS(X)
RARE_BLOCKS(X)
#undef X

const struct kernels *kernels_vnni(const struct kernels *base);
#else
static inline const struct kernels *kernels_vnni(const struct kernels *base) { return (void)base, NULL; }
#endif
