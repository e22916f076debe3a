/* kernels_avx2.c - the kernels for AVX2, FMA and F16C. */
#if defined(__x86_64__)
#include "backend/cpu/kernels/simd_avx2.h"

// Of a core of Zen 3 with 512 KiB of second-level cache: farther ahead, what was fetched is gone before its use.
#define FEW_AHEAD_BYTES (8 << 10)
// Of 32 KiB of first-level cache; eight rows of 1,536 columns from the second-level one had 60 per cent of the speed.
#define FEW_NEAR_FLOATS (6 << 10)
#define KERNELS kernels_avx2
#define KERNELS_NAME "avx2"
#include "backend/cpu/kernels/kernels_body.h"
#endif
