/* kernels_vnni.h - products of block formats with activations of 8 bits, by the AVX-512 instructions for them. */
#pragma once

#include "backend/cpu/kernels/kernels.h"

/* The set `base`, but rows of block formats (GGUF's) are multiplied as they are stored, with x rounded to 8 bits by 32
 * columns: numerics.md says what that loses. NULL where the processor lacks the instructions (AVX-512 VNNI). Formats
 * that have no such product, and everything else, are base's. */
#if defined(__x86_64__)
const struct kernels *kernels_vnni(const struct kernels *base);
#else
static inline const struct kernels *kernels_vnni(const struct kernels *base) { return (void)base, NULL; }
#endif
