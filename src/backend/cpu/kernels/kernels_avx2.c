/* kernels_avx2.c - the kernels for AVX2, FMA and F16C. */
#if defined(__x86_64__)
#include "backend/cpu/kernels/simd_avx2.h"

#define KERNELS kernels_avx2
#define KERNELS_NAME "avx2"
#include "backend/cpu/kernels/kernels_body.h"
#endif
