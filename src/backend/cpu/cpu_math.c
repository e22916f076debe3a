/* cpu_math.c - formulas that several reference functions share. */
#include "backend/cpu/cpu.h"

#include <math.h>

float sigmoid_f32(float x) { return 1.0f / (1.0f + expf(-x)); }

float silu_f32(float x) { return x / (1.0f + expf(-x)); }

/* PyTorch's is the identity above 20. */
float softplus_f32(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

static float gelu_tanh(float x) { return 0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x))); }

static float gelu_erf(float x) { return 0.5f * x * (1.0f + erff(x * 0.7071067811865476f)); }

/* GPT-OSS: the gate is bounded from above only, up on both sides, and up is shifted by one. */
static float swiglu_clamped(float gate, float up, float limit) {
    float g = fminf(gate, limit), u = fminf(fmaxf(up, -limit), limit);
    return (u + 1.0f) * g * sigmoid_f32(1.702f * g);
}

float activate(struct act_args act, float gate, float up) {
    switch (act.act) {
    case ACT_SILU: return silu_f32(gate) * up;
    case ACT_GELU_TANH: return gelu_tanh(gate) * up;
    case ACT_GELU: return gelu_erf(gate) * up;
    case ACT_SIGMOID: return sigmoid_f32(gate) * up;
    case ACT_SWIGLU_CLAMPED: return swiglu_clamped(gate, up, act.limit);
    }
    bug(__FILE__, __LINE__, "an activation without a formula");
}

float dot_f32(const float *a, const float *b, int64_t n) {
    float sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

void rms_norm_row(const float *x, const float *w, int64_t n, float eps, bool plus_one, float *y) {
    float scale = 1.0f / sqrtf(dot_f32(x, x, n) / (float)n + eps);
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] * scale * (w ? w[i] + (plus_one ? 1.0f : 0.0f) : 1.0f);
}

void rotate_head(const struct rope *rope, const float *cos_sin, float *head) {
    int half = rope->dim / 2;
    for (int i = 0; i < half; i++) {
        float *a = rope->pairing == ROPE_HALF ? &head[i] : &head[2 * i];
        float *b = rope->pairing == ROPE_HALF ? &head[i + half] : &head[2 * i + 1];
        float x = *a, y = *b, cosine = cos_sin[i], sine = cos_sin[half + i];
        *a = x * cosine - y * sine;
        *b = y * cosine + x * sine;
    }
}
