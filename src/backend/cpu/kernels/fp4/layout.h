/* layout.h - what kernels_fp4_*.c share: how x lies for products.h, and who arranges it so. */
#pragma once

#include "backend/cpu/kernels/blocks.h"
#include "backend/cpu/kernels/fp4/mxfp4.h"

#include <immintrin.h>

#define ALWAYS_INLINE inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

enum {
    FP4_STEP = 128,    // columns
    FP4_SCALES = 8,    // of a step at most
    FP4_X_FLOATS = 64, // of a step of one row of x, as arranged: at 0 even columns, ...
    FP4_ODD = 16,      // ... odd ones, ...
    FP4_LESS = 32,     // ... -FP4_MORE S, ...
    FP4_SCALE_X = 48,  // ... and s_x
    FP4_MORE = 12      // what makes of doubled values unsigned ones
};

/* Of AVX2, for all sets of x86-64. */
void fp4_arrange(int how, const float *x, int64_t x_stride, int n_x, int64_t n, float *out);

/* e2m1_values, each FP4_MORE larger. */
static ALWAYS_INLINE __m128i fp4_table(void) {
    return _mm_add_epi8(_mm_loadu_si128((const __m128i *)(const void *)e2m1_values), _mm_set1_epi8(FP4_MORE));
}
