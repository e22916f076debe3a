/* math_exp.h - exp of a float32 as a few products, of which a loop becomes vector code: error below 2^-21. */
#pragma once

#include <stdint.h>
#include <string.h>

static inline float exp_f32(float x) {
    x = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
    float n = x * 1.44269504f + 12582912.0f; // 1.5 * 2^23: the low bits are x / log 2, rounded
    int32_t bits;
    memcpy(&bits, &n, sizeof bits);
    float whole = (float)(bits - 0x4b400000);
    float r = x - whole * 0.693147181f;
    float p =
        1 + r * (1 + r * (0.5f + r * (0.166666667f + r * (0.0416666667f + r * (0.00833333333f + r * 0.00138888889f)))));
    int32_t power = (bits - 0x4b400000 + 127) << 23;
    float scale;
    memcpy(&scale, &power, sizeof scale);
    return p * scale;
}
