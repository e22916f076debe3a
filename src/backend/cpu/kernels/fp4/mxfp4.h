/* mxfp4.h - MXFP4 as products of integers take it (OCP Microscaling Formats 1.0, 5.3 and 5.4). */
#pragma once

#include <stdint.h>
#include <string.h>

/* Twice the values of e2m1, by their four bits: integers. */
static const int8_t e2m1_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* Half of 2^(e - 127), as the values are doubled; of e < 2 a subnormal number. */
static inline __attribute__((always_inline)) float e8m0_half(uint8_t e) {
    uint32_t bits = e < 2 ? UINT32_C(0x00200000) << e : (uint32_t)(e - 1) << 23;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}
