/* kernels_large_vnni.c - products with q4_k, q5_k and q6_k. */
#if defined(__x86_64__)
#include "backend/cpu/kernels/kernels_vnni.h"
#include "backend/cpu/kernels/products_vnni.h"

LARGE_BLOCKS(PRODUCTS)
#endif
