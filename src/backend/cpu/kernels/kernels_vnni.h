/* kernels_vnni.h - products of block formats with activations of 8 bits, by AVX-512 VNNI (blocks.h): which
 * formats have one. */
#pragma once

#include "backend/cpu/kernels/blocks.h"

/* Formats that have one: blocks of 32 columns, and of 256. */
#define SMALL_BLOCKS(X) X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q8_0) X(IQ4_NL) X(MXFP4_HALVES)
#define LARGE_BLOCKS(X) X(Q4_K) X(Q5_K) X(Q6_K)
#define RARE_BLOCKS(X) X(Q2_K) X(Q3_K) X(IQ4_XS) X(TQ2_0)
#define X(id) block_product product_##id;
SMALL_BLOCKS(X)
LARGE_BLOCKS(X)
RARE_BLOCKS(X)
#undef X
