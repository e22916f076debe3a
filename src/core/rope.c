/* rope.c - see rope.h. */
#include "core/rope.h"

#include <math.h>

int rope_turned(const struct rope *rope) {
    int n = 0, half = rope->dim / 2;
    if (rope->pairing != ROPE_HALF || rope->by_length != ROPE_FIXED || rope->factor != 1)
        return rope->dim;
    while (n < half && rope->inv_freq[n] != 0)
        n++;
    for (int i = n; i < half; i++)
        if (rope->inv_freq[i] != 0)
            return rope->dim;
    return 2 * n;
}

void rope_cos_sin(const struct rope *rope, int64_t position, int64_t n_known, float *cos_out, float *sin_out) {
    int half = rope->dim / 2;
    const float *freq = rope->inv_freq;
    float factor = rope->factor;
    double theta = 0;
    if (rope->by_length != ROPE_FIXED && n_known > rope->original_context) {
        if (rope->by_length == ROPE_LONG) {
            freq = rope->inv_freq_long;
            factor = rope->factor_long;
        } else {
            double s = (double)n_known / (double)rope->original_context;
            theta = rope->theta * pow(rope->scaling * s - (rope->scaling - 1), (double)rope->dim / (rope->dim - 2));
        }
    }
    for (int i = 0; i < half; i++) {
        float f = theta > 0 ? (float)(1.0 / pow(theta, 2.0 * i / rope->dim)) : freq[i];
        float angle = (float)position * f;
        cos_out[i] = cosf(angle) * factor;
        sin_out[i] = sinf(angle) * factor;
    }
}
