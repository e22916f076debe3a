/* kernels_neon.c - the kernels for 64-bit Arm: NEON with fused multiply-adds, which all of them have. */
#if defined(__aarch64__)
#include "backend/cpu/kernels/simd_neon.h"

#define KERNELS kernels_neon
#define KERNELS_NAME "neon"
#include "backend/cpu/kernels/kernels_body.h"
#endif
