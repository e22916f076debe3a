/* quantise.h - quantise.cu and requant.cuh: e4m3 with a scale a row. */
#pragma once

#include "backend/cuda/value.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- quantise.cu ---- */
/* y8 = x as e4m3 with a scale a row: the largest size / E4M3_FULL. What is not finite stays so. x of 16 or 32 bits;
 * y8.width % 16 == 0. x may have most: then it is read once, by as many blocks as there is room for. */
void launch_quantise(const struct launch *l, int n_rows, struct dmat x, struct dmat y8);

/* Where whoever made x has also written its qact y8 by a scale known beforehand (dmat.static_scale, a power of two from
 * 2^-15 to 2^15; rows at multiples of 8 bytes): e4m3(x / static_scale), clamped. A row whose largest size is from
 * STATIC_LEAST to STATIC_MOST times that, or zero, is left as it is, and the scale is its own. Any other is made anew,
 * by the least power of two for which no element is beyond E4M3_FULL, and counted.
 *
 * The qact tells an octet of x, eight columns from a multiple of eight on, if none of its elements is of size 256 or
 * more (or not a number) and one is of 1/8 at least: its values are then elements times static_scale. They would be
 * rounded to the same four bits by another power of two, but for what is subnormal by one of them: that may be off by
 * 2^-10 static_scale, or by a step of the new scale's subnormals, 2^-9 of it. Of all other octets values are those of
 * x, in 16 bits, and of x nothing else is read. So a row depends on nothing but itself and static_scale, and in a row
 * that is usual some of a hundred octets have to be written in 16 bits. x of 16 bits, with most. */
enum { STATIC_LEAST = 1, STATIC_MOST = (int)E4M3_FULL };
void launch_requantise(const struct launch *l, int n_rows, struct dmat x, struct dmat y8, struct dcounter others);

/* The same by the product that reads the qact, before it does: its blocks share the rows that are to be made, and wait
 * for one another, so all of them must have a place at once. */
enum { REQUANT_TOKENS = 128, REQUANT_MEETINGS = 4 };
struct dgrid_barrier {
    uint32_t n_come, n_held; // blocks that have come to the one that is on; how many were held
};
struct drequant {
    struct dmat value;               // whose qact x is, with most; at NULL: the qact is as it should be
    struct dgrid_barrier *of_tokens; // [REST_MEETINGS], of REST_TOKENS rows each at most; nobody else's at the same
                                     // time, zero to begin with
    struct dcounter others;          // rows that are made
};

/* What the library and gemm_fp8_split_k.cu make of e4m3 rows and e4m3 rows are unscaled products: sums of products of
 * elements, in half precision. With scales in the library itself, one a row of either, it computes up to twice as long
 * on Hopper: it has a single kernel for that, without split sums. */
/* y = the value of unscaled products. y may be raw's memory if its element has 16 bits. */
void launch_rescale(const struct launch *l, int n_rows, struct dmat raw, struct dmat y);

#ifdef __cplusplus
}
#endif
