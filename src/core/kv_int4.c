/* kv_int4.c - see kv_int4.h. */
#include "core/kv_int4.h"

#include "base/status.h"
#include "core/dtype.h"

#include <math.h>

int64_t kv_int4_block_bytes(int64_t n_heads, int64_t k_dim, int64_t v_dim, int64_t n_tokens) {
    int64_t bytes = n_heads * n_tokens * (kv_int4_row_bytes(k_dim) + kv_int4_row_bytes(v_dim));
    return (bytes + 15) / 16 * 16;
}

/* ---- rotation ---- */

/* Signs of channels 64 i ... 64 i + 63: bits as good as random (splitmix64), or H would only be permuted. */
static uint64_t signs(uint64_t i) {
    uint64_t z = (i + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static void sign_and_scale(float *x, int n, float factor) {
    for (int i = 0; i < n; i += 64) {
        uint64_t bits = signs((uint64_t)i / 64);
        for (int k = 0; k < MIN(64, n - i); k++)
            x[i + k] *= bits >> k & 1 ? -factor : factor;
    }
}

/* Sums and differences of pairs 1, 2, 4 ... apart. */
static void hadamard(float *x, int n) {
    for (int h = 1; h < n; h *= 2)
        for (int i = 0; i < n; i += 2 * h)
            for (int k = i; k < i + h; k++) {
                float a = x[k], b = x[k + h];
                x[k] = a + b;
                x[k + h] = a - b;
            }
}

static int block_of(int n) { return n & -n; }

static void hadamards(float *x, int n) {
    for (int i = 0; i < n; i += block_of(n))
        hadamard(x + i, block_of(n));
}

void kv_int4_rotate(float *x, int n) {
    sign_and_scale(x, n, 1 / sqrtf((float)block_of(n)));
    hadamards(x, n);
}

void kv_int4_rotate_back(float *x, int n) {
    hadamards(x, n);
    sign_and_scale(x, n, 1 / sqrtf((float)block_of(n)));
}

/* ---- rounding ---- */

/* The first of the largest, or a NaN. */
static float largest_of(const float *x, int n) {
    float most = 0;
    for (int i = 0; i < n && !isnan(most); i++)
        if (!(fabsf(x[i]) <= fabsf(most)))
            most = x[i];
    return most;
}

static int code_of(float x, float per_scale) {
    float scaled = x * per_scale;
    scaled = scaled < 7 ? scaled : 7; // a NaN too
    scaled = scaled > -8 ? scaled : -8;
    return (int)((scaled + 0x1.8p23f) - 0x1.8p23f) + 8; // to the nearest, without a call
}

static float error_of(const float *x, int n, float scale) {
    float sum = 0;
    for (int i = 0; i < n; i++) {
        float off = x[i] - scale * (float)(code_of(x[i], 1 / scale) - 8);
        sum += off * off;
    }
    return sum;
}

static uint16_t scale_of(const float *x, int n) {
    static const float steps[] = {-7, -7.5f, -8, -8.5f};
    float most = largest_of(x, n), least = INFINITY;
    uint16_t best = f32_to_bf16(most / steps[0]);
    for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
        uint16_t scale = f32_to_bf16(most / steps[i]);
        float error = error_of(x, n, bf16_to_f32(scale));
        if (error < least)
            best = scale, least = error;
    }
    return best;
}

void kv_int4_keep(float *x, int n, struct kv_int4_row to) {
    kv_int4_rotate(x, n);
    for (int i = 0; i < n; i += KV_INT4_GROUP) {
        int m = MIN(KV_INT4_GROUP, n - i), half = (m + 1) / 2;
        uint16_t stored = scale_of(x + i, m);
        float scale = bf16_to_f32(stored), per_scale = scale != 0 && isfinite(scale) ? 1 / scale : 0;
        *to.scales = isfinite(scale) ? stored : f32_to_bf16(NAN);
        for (int k = 0; k < half; k++, to.codes += to.code_stride) {
            int low = code_of(x[i + k], per_scale), high = k + half < m ? code_of(x[i + k + half], per_scale) : 8;
            *to.codes = (uint8_t)(low | high << 4);
        }
        to.scales += to.scale_stride;
    }
}

void kv_int4_load(struct kv_int4_row from, int n, float *x) {
    for (int i = 0; i < n; i += KV_INT4_GROUP, from.scales += from.scale_stride) {
        int m = MIN(KV_INT4_GROUP, n - i), half = (m + 1) / 2;
        float scale = bf16_to_f32(*from.scales);
        for (int k = 0; k < half; k++, from.codes += from.code_stride) {
            x[i + k] = scale * (float)((*from.codes & 15) - 8);
            if (k + half < m)
                x[i + k + half] = scale * (float)((*from.codes >> 4) - 8);
        }
    }
}
