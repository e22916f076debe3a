/* kernels_portable.c - the kernels for every processor: vectors of four, SSE2 or NEON. */
#include "backend/cpu/kernels/simd_portable.h"

#define KERNELS kernels_portable
#define KERNELS_NAME "portable"
#include "backend/cpu/kernels/kernels_body.h"
