/* kernels_small_vnni.c - products with blocks of 32 columns. */
#if defined(__x86_64__)
#include "backend/cpu/kernels/kernels_vnni.h"
#include "backend/cpu/kernels/products_vnni.h"

SMALL_BLOCKS(PRODUCTS)
#endif
