/* op_oracle_int4.c - what a cache of int4 keeps of a row, by the definition in core/kv_int4.h, in double precision. */
#include "op_oracle.h"

#include <math.h>

enum { GROUP = 32, CANDIDATES = 4 };
#define UNSURE 1e-4 // of a step, or of an error
#define UNSURE_OF_LARGEST 1e-5

bool rig_is_int4(const char *kv_dtype) { return kv_dtype && strcmp(kv_dtype, "int4") == 0; }

static uint64_t splitmix64(uint64_t state) {
    uint64_t z = state + 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static double sign_of(int channel) {
    uint64_t word = splitmix64((uint64_t)(channel / 64) * 0x9E3779B97F4A7C15u);
    return word >> channel % 64 & 1 ? -1 : 1;
}

/* The element of the rotation in row r and column c, within a block of b. */
static double element(int r, int c, int b) { return (__builtin_popcount((unsigned)(r & c)) % 2 ? -1 : 1) / sqrt(b); }

static void rotate(double *x, int n, bool back) {
    double y[1024] = {0};
    int b = 1;
    while (n % (2 * b) == 0)
        b *= 2;
    BUG_IF(n > 1024);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < b; k++) {
            int from = i / b * b + k;
            y[i] += element(i % b, k, b) * x[from] * (back ? 1 : sign_of(from));
        }
    for (int i = 0; i < n; i++)
        x[i] = y[i] * (back ? sign_of(i) : 1);
}

static double code_of(double x, double scale) { return scale == 0 ? 0 : fmin(7, fmax(-8, rint(x / scale))); }

static double error_of(const double *x, int n, double scale) {
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += pow(x[i] - scale * code_of(x[i], scale), 2);
    return sum;
}

static double bfloat16(double x) {
    rig_round("bfloat16", &x, 1);
    return x;
}

/* Whether two of the largest are of different signs, so that either may be the largest. */
static bool has_two_largest(const double *x, int n, double most) {
    bool up = false, down = false;
    for (int i = 0; i < n; i++)
        if (fabs(x[i]) > fabs(most) * (1 - UNSURE_OF_LARGEST))
            *(x[i] > 0 ? &up : &down) = true;
    return up && down;
}

static bool round_group(double *x, int n) {
    static const double steps[CANDIDATES] = {-7, -7.5, -8, -8.5};
    double most = 0, scale[CANDIDATES], error[CANDIDATES];
    bool sure = true;
    int best = 0;
    for (int i = 0; i < n; i++)
        if (fabs(x[i]) > fabs(most))
            most = x[i];
    for (int i = 0; i < CANDIDATES; i++) {
        scale[i] = bfloat16(most / steps[i]);
        error[i] = error_of(x, n, scale[i]);
        best = error[i] < error[best] ? i : best;
    }
    for (int i = 0; i < CANDIDATES; i++) { // another scale of one that loses might win
        double exact = most / steps[i];
        sure &= scale[i] == scale[best] || error[i] > error[best] * (1 + UNSURE);
        sure &= bfloat16(exact * (1 + UNSURE_OF_LARGEST)) == bfloat16(exact * (1 - UNSURE_OF_LARGEST));
    }
    sure &= !has_two_largest(x, n, most);
    for (int i = 0; i < n; i++) {
        double at = scale[best] == 0 ? 0 : x[i] / scale[best];
        sure &= at > 7 || at < -8 || fabs(at - rint(at)) < 0.5 - UNSURE;
        x[i] = scale[best] * code_of(x[i], scale[best]);
    }
    return sure;
}

bool rig_round_int4(double *x, int n) {
    bool sure = true;
    rotate(x, n, false);
    for (int i = 0; i < n; i += GROUP)
        sure &= round_group(x + i, MIN(GROUP, n - i));
    rotate(x, n, true);
    return sure;
}
