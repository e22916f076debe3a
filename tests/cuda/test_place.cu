/* test_place.cu - rows of weights as they become e4m3 (src/backend/cuda/weights/place.cu), against what value.h
 * promises of them.
 *
 * Of rows of any kind, stored in 16 or 32 bits, or as e4m3 with a scale a row or several: their norm is not beyond
 * e4m3_norm, and not smaller than need be; every value is where rounding to the nearest element leaves it; what is
 * counted is what the host counts. */
#include "backend/cuda/value.h"
#include "backend/cuda/weights/place.cu"
#include "backend/cuda/weights/place.h"

#include "products.cuh"

#include <time.h>
#include <vector>

enum { MOST_IN = 32768, MOST_ROWS = 12, POISON = 0xee, KINDS = 9 };

/* Sizes from 0 to 1, mostly; of row r of a kind. */
static double drawn(int kind, int64_t i, int64_t in, uint64_t seed) {
    double u = (hash(seed + 3 * i) + 0.5) / 4294967296.0, v = hash(seed + 3 * i + 1) / 4294967296.0;
    double normal = sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
    switch (kind) {
    case 0: return normal * 0.2;
    case 1: return 1; // all the largest
    case 2: return normal * normal * normal * 0.01;
    case 3: return i == in / 2 ? 1 : normal * 1e-3; // one far from the others
    case 4: return i == in / 3;                     // one alone
    case 5: return 0;
    case 6: return normal * 3e-5; // in float16 some are subnormal
    case 7: return (v < 0.5 ? -1 : 1) * exp2(-20 * u);
    default: return normal * 1000;
    }
}

/* What is placed. */
struct rows_stored {
    int64_t n, in, n_scales; // scales a row, of e4m3
    element e;
    std::vector<uint8_t> bytes;
    std::vector<float> scale;
    std::vector<double> is; // what they mean
    bool has_a_scale_each() const { return e == ELEMENT_E4M3 && n_scales == 1; }
};

/* how: F32, F16, BF16, e4m3 with a scale a row, or with one for each 128 columns. */
static rows_stored draw(int kind, int how, int64_t n, int64_t in, uint64_t seed) {
    bool small = how >= 3;
    rows_stored x = {n, in, how == 4 ? (in + 127) / 128 : 1, small ? ELEMENT_E4M3 : (element)how};
    x.bytes.resize(n * in * (small ? 1 : how == 0 ? 4 : 2)), x.scale.resize(n * x.n_scales), x.is.resize(n * in);
    for (float &s : x.scale)
        s = exp2f(((int)(hash(seed++) % 2000) - 1000) * 0.01f);
    for (int64_t i = 0; i < n * in; i++) {
        float f = (float)drawn(kind, i % in, in, seed + i / in * 1000003);
        __half h = __float2half(f);
        __nv_bfloat16 b = __float2bfloat16(f);
        if (small) {
            x.bytes[i] = __nv_cvt_float_to_fp8(f * (kind == 8 ? 0.1f : 448.0f), __NV_SATFINITE, __NV_E4M3);
            x.is[i] = e4m3_value(x.bytes[i]) * x.scale[i / in * x.n_scales + (x.n_scales > 1 ? i % in / 128 : 0)];
        } else if (how == 0) {
            memcpy(&x.bytes[i * 4], &f, 4), x.is[i] = f;
        } else {
            memcpy(&x.bytes[i * 2], how == 1 ? (void *)&h : (void *)&b, 2),
                x.is[i] = how == 1 ? __half2float(h) : __bfloat162float(b);
        }
    }
    return x;
}

/* As they lie on the device, with a row of poison before and one behind. */
struct rows_placed {
    std::vector<uint8_t> q;
    std::vector<float> scale;
    dplaced counts;
};

static struct {
    void *rows, *scales_in;
    uint8_t *q;
    float *scales;
    dplaced *counts;
} d;

static rows_placed place(const rows_stored &x) {
    bool small = x.e == ELEMENT_E4M3;
    MUST(cudaMemcpy(d.rows, x.bytes.data(), x.bytes.size(), cudaMemcpyHostToDevice));
    MUST(cudaMemcpy(d.scales_in, x.scale.data(), x.scale.size() * 4, cudaMemcpyHostToDevice));
    MUST(cudaMemset(d.q, POISON, (size_t)(MOST_ROWS + 2) * MOST_IN));
    MUST(cudaMemset(d.scales, POISON, (MOST_ROWS + 2) * 4));
    MUST(cudaMemset(d.counts, 0, sizeof *d.counts));
    dstored stored = {d.rows,
                      x.in,
                      x.e,
                      small ? (const float *)d.scales_in : nullptr,
                      small ? x.n_scales : 0,
                      x.n_scales > 1 ? 128 : 0};
    launch_place_rows(nullptr, &stored, x.n, {d.q, x.n + 2, x.in, ELEMENT_E4M3, d.scales}, 1, d.counts);
    MUST(cudaDeviceSynchronize());
    rows_placed y = {std::vector<uint8_t>((x.n + 2) * x.in), std::vector<float>(x.n + 2)};
    MUST(cudaMemcpy(y.q.data(), d.q, y.q.size(), cudaMemcpyDeviceToHost));
    MUST(cudaMemcpy(y.scale.data(), d.scales, y.scale.size() * 4, cudaMemcpyDeviceToHost));
    MUST(cudaMemcpy(&y.counts, d.counts, sizeof y.counts, cudaMemcpyDeviceToHost));
    return y;
}

struct row_seen {
    double norm, most, squared_error, squared, lost, present;
    int wrong; // values that are not where they should be
};

/* One row as placed, and what it was stored as. */
static row_seen look_at(const double *is, const uint8_t *q, double scale, int64_t in) {
    row_seen s = {};
    for (int64_t i = 0; i < in; i++) {
        double e = e4m3_value(q[i]), off = e * scale - is[i];
        s.norm += e * e;
        s.most = fmax(s.most, fabs(e));
        s.squared_error += off * off;
        s.squared += is[i] * is[i];
        s.present += is[i] != 0;
        s.lost += is[i] != 0 && e == 0;
        s.wrong += !(fabs(off) <= (fabs(is[i]) / 16 + scale * 0x1p-10) * 1.0001); // half of a distance
    }
    s.norm = sqrt(s.norm);
    return s;
}

static bool l2_copy(double a, double b, double off, double least) {
    return fabs(a - b) <= off * fmax(fabs(a), fabs(b)) + least;
}

static bool is_counted(const dplaced &got, const row_seen &all) {
    return got.n_beyond == 0 && got.n_lost == (unsigned long long)all.lost &&
           got.n_present == (unsigned long long)all.present && l2_copy(got.squared, all.squared, 1e-4, 0) &&
           l2_copy(got.squared_error, all.squared_error, 1e-3, 1e-12 * all.squared);
}

/* Whether all is as it should be; *largest: of the norms, in shares of what is promised. */
static bool check(const rows_stored &x, const rows_placed &y, double *largest) {
    double norm = e4m3_norm(x.in);
    int too_large = 0, too_small = 0, stray = 0;
    row_seen all = {};
    for (int64_t r = 0; r < x.n; r++) {
        row_seen s = look_at(&x.is[r * x.in], &y.q[(r + 1) * x.in], y.scale[r + 1], x.in);
        // At half of the norm or more, or as large as can be: of what has a scale each that is its own, of others one
        // by which the largest is over 448 / 2.
        bool kept = x.has_a_scale_each() ? y.scale[r + 1] == x.scale[r] : s.most >= 224;
        too_small += s.squared > 0 && !kept && s.norm < 0.49 * norm;
        too_large += s.norm > norm;
        *largest = fmax(*largest, s.norm / norm);
        all.lost += s.lost, all.present += s.present, all.squared += s.squared, all.squared_error += s.squared_error,
            all.wrong += s.wrong;
    }
    for (int64_t i = 0; i < x.in; i++)
        stray += y.q[i] != POISON || y.q[(x.n + 1) * x.in + i] != POISON;
    bool fine = !all.wrong && !too_large && !too_small && !stray && is_counted(y.counts, all);
    if (!fine)
        printf("stored as %d with %lld scales, %lld rows of %lld: %d values wrong, rows: %d too large, %d too small; "
               "%d strays; counted "
               "%llu lost "
               "for %.0f, %llu present for %.0f, squares %g for %g, error %g for %g\n",
               (int)x.e, (long long)x.n_scales, (long long)x.n, (long long)x.in, all.wrong, too_large, too_small, stray,
               y.counts.n_lost, all.lost, y.counts.n_present, all.present, y.counts.squared, all.squared,
               y.counts.squared_error, all.squared_error);
    return fine;
}

int main(int argc, char **argv) {
    static const int widths[] = {3584, 18944, 28672, 32768, 128};
    const char *given = argc > 1 ? argv[1] : getenv("GYRE_TEST_SEED");
    uint64_t seed = given ? strtoull(given, nullptr, 10) : (uint64_t)time(nullptr);
    printf("seed %llu\n", (unsigned long long)seed);
    MUST(cudaMalloc(&d.rows, (size_t)MOST_ROWS * MOST_IN * 4));
    MUST(cudaMalloc(&d.scales_in, MOST_ROWS * (MOST_IN / 128) * 4));
    MUST(cudaMalloc(&d.q, (size_t)(MOST_ROWS + 2) * MOST_IN));
    MUST(cudaMalloc(&d.scales, (MOST_ROWS + 2) * 4));
    MUST(cudaMalloc(&d.counts, sizeof *d.counts));
    auto random = [&](int n) { return (int)(hash(seed++) % (unsigned)n); };
    int n_bad = 0;
    double largest = 0;
    for (int t = 0; t < 160; t++) {
        int64_t in = t % 4 ? 16 * (1 + random(300)) : widths[t / 4 % 5], n = 1 + random(MOST_ROWS);
        rows_stored x = draw(t % KINDS, random(5), n, in, seed);
        if (!check(x, place(x), &largest)) {
            printf("... of kind %d\n", t % KINDS);
            n_bad++;
        }
    }
    printf("largest norm %.3f of what is promised\n", largest);
    n_bad += !(largest > 0.9); // or nothing was tested
    printf(n_bad ? "%d CASES FAILED\n" : "all fine\n", n_bad);
    return n_bad != 0;
}
