/* op_oracle.c - see op_oracle.h. */
#include "op_oracle.h"

#include <math.h>

/* ---- formulas ---- */

double rig_multiply(const double *w, int64_t out, int64_t in, const double *x, double *y) {
    double largest = 0;
    for (int64_t o = 0; o < out; o++, w += in) {
        double even = 0, odd = 0, even_squares = 0, odd_squares = 0; // sums that do not wait for each other
        for (int64_t i = 0; i + 1 < in; i += 2) {
            double a = w[i] * x[i], b = w[i + 1] * x[i + 1];
            even += a;
            odd += b;
            even_squares += a * a;
            odd_squares += b * b;
        }
        double last = in % 2 ? w[in - 1] * x[in - 1] : 0;
        y[o] = even + odd + last;
        largest = fmax(largest, sqrt(even_squares + odd_squares + last * last));
    }
    return largest;
}

double *rig_wide_input(struct rig *rig, int i, int seq, int row) {
    double *x = rig_doubles(rig, rig->o.widths[i]);
    const float *in = rig_input(rig, i, seq, row);
    for (int k = 0; k < rig->o.widths[i]; k++)
        x[k] = (double)in[k];
    return x;
}

double rig_sigmoid(double x) { return 1 / (1 + exp(-x)); }

void rig_rms_norm(const double *x, const double *w, int n, double eps, bool plus_one, double *y) {
    double squares = 0;
    for (int i = 0; i < n; i++)
        squares += x[i] * x[i];
    double scale = 1 / sqrt(squares / n + eps);
    for (int i = 0; i < n; i++)
        y[i] = x[i] * scale * (w ? w[i] + plus_one : 1);
}

/* ---- what a device rounds ---- */

void rig_round(const char *dtype, double *x, int64_t n) {
    bool half = dtype && strcmp(dtype, "float16") == 0, brain = dtype && strcmp(dtype, "bfloat16") == 0;
    for (int64_t i = 0; (half || brain) && i < n; i++)
        x[i] = (double)(half ? f16_to_f32(f32_to_f16((float)x[i])) : bf16_to_f32(f32_to_bf16((float)x[i])));
}

static double largest_of(const double *x, int n) {
    double most = 0;
    for (int i = 0; i < n; i++)
        most = fmax(most, fabs(x[i]));
    return most;
}

/* E4M3_FULL of the CUDA backend: what the largest size of a row that a product reads becomes. */
static const float FULL = 28;

static void round_by_largest(double *x, int n, double largest, float full) {
    float most = fmaxf((float)largest, 1e-30f);
    for (int i = 0; i < n; i++)
        x[i] = (double)f8_e4m3_to_f32(f32_to_f8_e4m3((float)x[i] * (full / most))) * (double)(most / full);
}

void rig_round_e4m3(double *x, int n) { round_by_largest(x, n, largest_of(x, n), 448); }

static float e4m3_of(float x, float factor) { return f8_e4m3_to_f32(f32_to_f8_e4m3(x * factor)); }

/* e4m3_norm of the CUDA backend. */
static double norm_of_weight_row(int n) {
    return (65504 - 16 * (n / 32.0 + 16)) / (sqrt(n) * (double)FULL) - sqrt(n) * 0x1p-9;
}

void rig_round_weight_row(double *x, int n) {
    static const float times[] = {1.0f,       1.0905077f, 1.1892071f, 1.2968396f,
                                  1.4142135f, 1.5422108f, 1.6817929f, 1.8340081f},
                       per[] = {1.0f,        0.91700404f, 0.84089642f, 0.77110541f,
                                0.70710678f, 0.64841978f, 0.59460356f, 0.54525387f};
    float most = fmaxf((float)largest_of(x, n), 1e-30f);
    double least = INFINITY;
    size_t best = 0;
    for (size_t k = 0; k < ARRAY_LEN(times); k++) {
        float factor = 448 / most * per[k], scale = most / 448 * times[k];
        double off = 0;
        for (int i = 0; i < n; i++) {
            float d = fmaf(-e4m3_of((float)x[i], factor), scale, (float)x[i]);
            off += (double)d * (double)d;
        }
        best = off < least ? k : best;
        least = fmin(least, off);
    }
    double squares = 0, up = 1;
    for (int i = 0; i < n; i++)
        squares += pow((double)e4m3_of((float)x[i], 448 / most * per[best]), 2);
    while (sqrt(squares) / up > norm_of_weight_row(n))
        up *= 2;
    for (int i = 0; i < n; i++)
        x[i] =
            (double)e4m3_of((float)x[i], 448 / most * per[best] / (float)up) * (double)(most / 448 * times[best]) * up;
}

static void round_int8(double *x, int n) {
    float most = fmaxf((float)largest_of(x, n), 1e-30f);
    for (int i = 0; i < n; i++)
        x[i] = rint(x[i] * (double)(127 / most)) * (double)(most / 127);
}

/* By the k-th power of two from the least that leaves all within FULL. */
static void round_by_power(double *x, int n, int k) {
    double most = largest_of(x, n), scale = most > 0 ? exp2(ceil(log2(most / (double)FULL)) + k) : 1;
    for (int i = 0; i < n; i++)
        x[i] = (double)f8_e4m3_to_f32(f32_to_f8_e4m3((float)(x[i] / scale))) * scale;
}

void rig_read(const char *dtype, enum rig_reading how, double *x, int n) {
    if (how >= READING_POWERS) {
        rig_round(dtype, x, n);
        round_by_power(x, n, (int)how - READING_POWERS);
        return;
    }
    int block = how >= READING_BLOCKS ? 32 << (how - READING_BLOCKS) / 2 : n;
    bool of_16 = how >= READING_BLOCKS ? (how - READING_BLOCKS) % 2 : how != READING_E4M3 && how != READING_AS_IT_IS;
    double largest = largest_of(x, n);
    if (of_16)
        rig_round(dtype, x, n);
    if (how == READING_E4M3_AFTER_16)
        round_by_largest(x, n, largest, FULL);
    else if (how > READING_16)
        for (int i = 0; i < n; i += block)
            round_by_largest(x + i, MIN(block, n - i), largest_of(x + i, MIN(block, n - i)), FULL);
}

double rig_distance(const double *a, const double *b, int n) {
    double squares = 0;
    for (int i = 0; i < n; i++)
        squares += (a[i] - b[i]) * (a[i] - b[i]);
    return squares;
}

void rig_round_cached(const char *dtype, const char *kv_dtype, double *x, int n) {
    if (rig_backend() == &backend_cpu)
        return;
    if (!kv_dtype)
        rig_round(dtype, x, n);
    else if (strcmp(kv_dtype, "fp8") == 0)
        rig_round_e4m3(x, n);
    else
        round_int8(x, n);
}

/* As attention_decode_takes and attention_query_element of the CUDA backend say. */
const char *rig_query_dtype(const char *dtype, const char *kv_dtype, const struct attention_args *a, int block_size) {
    bool size = (a->head_dim == 64 || a->head_dim == 128 || a->head_dim == 256 || a->head_dim == 512) &&
                a->v_head_dim == a->head_dim;
    bool plain = rig_backend() == &backend_cpu || getenv("GYRE_TEST_KERNELS"); // which read them as they are
    plain = plain || a->reach == REACH_ALL || rig_is_int4(kv_dtype); // whose queries are rotated before
    if (plain || strcmp(dtype, "float32") == 0 || !size || a->paired_values || block_size < 16)
        return "float32";
    return kv_dtype ? "float16" : dtype;
}
