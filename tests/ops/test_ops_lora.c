/* test_ops_lora.c - LORA against its formula in double precision: sequences with and without adapters in one step, of
 * one module and of several side by side, few and many rows. How the tests are run is said in test_ops.c.
 *
 * Bound: sums of `in` terms, then of `rank`, in float32: 8 sqrt(in + rank) of its precision. */
#include "op_judge.h"
#include "op_oracle.h"
#include "op_rig.h"
#include "op_weights.h"

#include <math.h>

struct lora_case {
    const char *name;
    int in, rank, n_modules, n_runs;
    struct lora_run runs[4];
    enum rig_format format;
};

static const struct lora_case cases[] = {
    {"one module", 64, 8, 1, 1, {{96, 0}}, FORMAT_F32},
    {"q, k, v", 96, 16, 3, 3, {{128, 0}, {32, 1}, {32, 2}}, FORMAT_BF16},
    {"interleaved", 72, 5, 2, 4, {{40, 0}, {8, 1}, {24, 0}, {40, 1}}, FORMAT_F16},
    {"rank 1", 33, 1, 1, 1, {{7, 0}}, FORMAT_F32},
    {"wide", 512, 64, 2, 2, {{100, 0}, {412, 1}}, FORMAT_F32},
};

static int width_of(const struct lora_case *l) {
    int width = 0;
    for (int i = 0; i < l->n_runs; i++)
        width += l->runs[i].width;
    return width;
}

static void add_adapter(const struct lora_case *l, int adapter, const double *x, const double *a, const double *b,
                        const double *scales, double *y) {
    int out = width_of(l), at = 0;
    for (int i = 0; i < l->n_runs; at += l->runs[i++].width)
        for (int r = 0; r < l->rank; r++) {
            int module = adapter * l->n_modules + l->runs[i].module;
            double h = 0;
            for (int j = 0; j < l->in; j++)
                h += a[((int64_t)module * l->rank + r) * l->in + j] * x[j];
            for (int k = at; k < at + l->runs[i].width; k++)
                y[k] += scales[module] * h * b[((int64_t)adapter * out + k) * l->rank + r];
        }
}

static void lora_case(const struct lora_case *l, const char *kernels, int n_threads) {
    enum { N_ADAPTERS = 2 };
    int out = width_of(l);
    struct rig *rig = rig_new((struct rig_options){.n_seqs = 7,
                                                   .lens = {3, 11, 1, 40, 2, 9, 1},
                                                   .widths = {l->in, out},
                                                   .kernels = kernels,
                                                   .n_threads = n_threads,
                                                   .n_adapters = N_ADAPTERS});
    double *a, *b, *scales;
    struct lora_args args = {N_ADAPTERS, l->n_modules, l->rank, l->n_runs, l->runs};
    const struct weight *wa = rig_weight(rig, l->format, (int64_t)N_ADAPTERS * l->n_modules * l->rank, l->in, &a),
                        *wb = rig_weight(rig, l->format, (int64_t)N_ADAPTERS * out, l->rank, &b),
                        *ws = rig_vector(rig, (int64_t)N_ADAPTERS * l->n_modules, 0.5, 2, &scales);
    rig_result(rig, op_lora(rig->p, rig->in[1], rig->in[0], wa, wb, ws, args));
    double *want = rig_rows(rig);
    RIG_EACH_ROW(rig, s, t) {
        double *y = rig_at(rig, want, s, t);
        for (int i = 0; i < out; i++)
            y[i] = (double)rig_input(rig, 1, s, t)[i];
        if (s % (N_ADAPTERS + 1))
            add_adapter(l, s % (N_ADAPTERS + 1) - 1, rig_wide_input(rig, 0, s, t), a, b, scales, y);
    }
    rig_expect_in_every_schedule(rig, want, 8 * sqrt(l->in + l->rank) * EPS, l->name);
    rig_free(rig);
}

static void adapters_add_to_the_rows_that_have_them(void **state) {
    (void)state;
    if (strcmp(rig_backend()->name, "cuda") == 0)
        skip(); // refused there
    for (const char *const *kernels = rig_kernels(); *kernels; kernels++)
        for (size_t i = 0; i < ARRAY_LEN(cases); i++)
            lora_case(&cases[i], *kernels, 1 + (int)i % 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adapters_add_to_the_rows_that_have_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
