/* kernels_rare_vnni.c - products with the other blocks of 256 columns. */
#if defined(__x86_64__)
#include "backend/cpu/kernels/kernels_vnni.h"
#include "backend/cpu/kernels/products_vnni.h"

RARE_BLOCKS(PRODUCTS)
#endif
