/* kernels_avx512.c - the kernels for AVX-512 (F, BW, DQ, VL). */
#if defined(__x86_64__)
#include "backend/cpu/kernels/simd_avx512.h"

#define KERNELS kernels_avx512
#define KERNELS_NAME "avx512"
#include "backend/cpu/kernels/kernels_body.h"
#endif
