/* test_ops.c - every op of ops.def against its formula in double precision, on the CPU backend.
 *
 * Each row of a test is an op x shape x format; each is run under every schedule of op_rig.h (whole
 * sequences, chunks of 1, 7 and 64, ragged mixes) with block tables and state slots permuted, memory
 * poisoned with NaN, and by the reference functions as well as by the fast ones over every set of kernels.
 *
 * Bounds are relative to the largest value of a row. A float32 sum of n terms of like size in any order errs
 * by about sqrt(n) * 2^-24 of it, rarely by more than n * 2^-24; each bound says its n. */
#include "op_rig.h"

#include <math.h>

/* ---- LINEAR ---- */

static void linear_case(enum rig_format format, int out, int in, int n_rows, bool biased, const char *kernels) {
    struct rig *rig = rig_new((struct rig_options){.n_seqs = 2, .lens = {n_rows, (n_rows + 1) / 2}, .widths = {in}, .kernels = kernels});
    double *w, *b = NULL;
    const struct weight *weight = rig_weight(rig, format, out, in, &w);
    const struct weight *bias = biased ? rig_vector(rig, out, -1, 1, &b) : NULL;
    rig_result(rig, op_linear(rig->p, rig->in[0], weight, bias));
    double *want = rig_doubles(rig, (int64_t)rig->n_rows * out);
    for (int s = 0; s < 2; s++)
        for (int t = 0; t < rig->o.lens[s]; t++) {
            double *y = want + (int64_t)rig_row(rig, s, t) * out;
            rig->floor = fmax(rig->floor, rig_multiply(w, out, in, rig_wide_input(rig, 0, s, t), y));
            for (int o = 0; b && o < out; o++)
                y[o] += b[o];
        }
    char what[100];
    snprintf(what, sizeof what, "linear %s [%d, %d] x %d", rig_format_name(format), out, in, rig->n_rows);
    rig_expect(rig, want, 4 * sqrt(in) * EPS, SCHEDULE_WHOLE, what);
    rig_expect(rig, want, 4 * sqrt(in) * EPS, SCHEDULE_RAGGED, what);
    rig_free(rig);
}

static void linear_is_x_times_w_transposed_in_every_format(void **state) {
    (void)state;
    for (const char *const *kernels = rig_kernels(); *kernels; kernels++)
        for (enum rig_format f = 0; f < N_FORMATS; f++) {
            linear_case(f, 96, 128, 1, false, *kernels);
            linear_case(f, 50, 192, 5, true, *kernels);
            linear_case(f, 34, 64, 21, true, *kernels);
            linear_case(f, 200, 896, 70, false, *kernels);
        }
}

static void linear_takes_odd_shapes(void **state) {
    (void)state;
    static const int shapes[][3] = {{1, 1, 1}, {1, 2048, 3}, {3, 17, 2}, {33, 31, 9}, {6, 130, 13}, {257, 70, 33}, {64, 5, 100}};
    for (const char *const *kernels = rig_kernels(); *kernels; kernels++)
        for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
            for (enum rig_format f = 0; f < FORMAT_F8_CHANNEL; f++)
                linear_case(f, shapes[i][0], shapes[i][1], shapes[i][2], i & 1, *kernels);
}

/* ---- norms and elementwise ops ---- */

static void add_norm_adds_scales_and_normalises(void **state) {
    (void)state;
    for (int k = 0; k < 8; k++) {
        bool with_d = k & 1, scaled = k & 2, plus_one = k & 4;
        int width = 96 + 5 * k;
        struct rig *rig = rig_new((struct rig_options){.n_seqs = 2, .lens = {5, 3}, .widths = {width, width}});
        double *w, *r_scale = NULL;
        const struct weight *weight = rig_vector(rig, width, -1, 1, &w);
        const struct weight *scale = scaled ? rig_vector(rig, 1, 0.5, 2, &r_scale) : NULL;
        struct norm_args args = {.eps = 1e-5f, .plus_one = plus_one};
        struct normed n = op_add_norm(rig->p, rig->in[0], with_d ? rig->in[1] : NO_VAL, weight, scale, args);
        bool want_r = k == 3;
        rig_result(rig, want_r ? n.r : n.y);
        double *want = rig_doubles(rig, (int64_t)rig->n_rows * width);
        for (int s = 0; s < 2; s++)
            for (int t = 0; t < rig->o.lens[s]; t++) {
                double *x = rig_wide_input(rig, 0, s, t), *d = rig_wide_input(rig, 1, s, t),
                       *y = want + (int64_t)rig_row(rig, s, t) * width;
                for (int i = 0; i < width; i++)
                    x[i] = (x[i] + (with_d ? d[i] : 0)) * (r_scale ? *r_scale : 1);
                if (want_r)
                    memcpy(y, x, (size_t)width * sizeof *y);
                else
                    rig_rms_norm(x, w, width, (double)1e-5f, plus_one, y);
            }
        rig_expect_in_every_schedule(rig, want, 4 * sqrt(width) * EPS, "add_norm");
        rig_free(rig);
    }
}

static void norm_works_on_groups_with_and_without_gate_and_weight(void **state) {
    (void)state;
    for (int k = 0; k < 4; k++) {
        bool gated = k & 1, weighted = k & 2;
        int group = 24, width = 3 * group;
        struct rig *rig = rig_new((struct rig_options){.n_seqs = 2, .lens = {5, 3}, .widths = {width, width}, .spread = 3});
        double *w = NULL;
        const struct weight *weight = weighted ? rig_vector(rig, group, -1, 1, &w) : NULL;
        struct norm_args args = {.eps = 1e-6f, .group = group, .scale = gated ? 0.25f : 0};
        rig_result(rig, op_norm(rig->p, rig->in[0], gated ? rig->in[1] : NO_VAL, weight, args));
        double *want = rig_doubles(rig, (int64_t)rig->n_rows * width);
        for (int s = 0; s < 2; s++)
            for (int t = 0; t < rig->o.lens[s]; t++) {
                double *x = rig_wide_input(rig, 0, s, t), *g = rig_wide_input(rig, 1, s, t),
                       *y = want + (int64_t)rig_row(rig, s, t) * width;
                for (int i = 0; i < width; i += group)
                    rig_rms_norm(x + i, w, group, (double)1e-6f, false, y + i);
                for (int i = 0; gated && i < width; i++)
                    y[i] *= 0.25 * g[i] * rig_sigmoid(g[i]);
            }
        rig_expect_in_every_schedule(rig, want, 4 * sqrt(width) * EPS, "norm");
        rig_free(rig);
    }
}

static double gated(enum activation act, double limit, double g, double u) {
    switch (act) {
    case ACT_SILU: return g * rig_sigmoid(g) * u;
    case ACT_GELU_TANH: return 0.5 * g * (1 + tanh(sqrt(2 / M_PI) * (g + 0.044715 * pow(g, 3)))) * u;
    case ACT_GELU: return g * 0.5 * erfc(-g / sqrt(2)) * u;
    case ACT_SIGMOID: return rig_sigmoid(g) * u;
    case ACT_SWIGLU_CLAMPED: g = fmin(g, limit); return (fmax(fmin(u, limit), -limit) + 1) * g * rig_sigmoid(1.702 * g);
    }
    return NAN;
}

static void gated_act_has_the_five_activations(void **state) {
    (void)state;
    for (enum activation act = 0; act <= ACT_SWIGLU_CLAMPED; act++)
        for (const char *const *kernels = rig_kernels(); *kernels; kernels++) {
            int width = 77;
            struct rig *rig =
                rig_new((struct rig_options){.n_seqs = 2, .lens = {50, 3}, .widths = {2 * width}, .spread = 12, .kernels = *kernels});
            rig_result(rig, op_glu(rig->p, rig->in[0], (struct act_args){act, 7}));
            double *want = rig_doubles(rig, (int64_t)rig->n_rows * width);
            for (int s = 0; s < 2; s++)
                for (int t = 0; t < rig->o.lens[s]; t++)
                    for (int i = 0; i < width; i++) {
                        const float *x = rig_input(rig, 0, s, t);
                        want[(int64_t)rig_row(rig, s, t) * width + i] = gated(act, 7, (double)x[i], (double)x[width + i]);
                    }
            rig_expect(rig, want, 16 * EPS, SCHEDULE_WHOLE, "gated_act"); // a dozen roundings
            rig_expect(rig, want, 16 * EPS, SCHEDULE_CHUNK_1, "gated_act");
            rig_free(rig);
        }
}

/* GATED_ADD of a softcapped input: both, and a value of one column. */
static void gated_add_and_softcap_follow_their_formulas(void **state) {
    (void)state;
    for (int k = 0; k < 2; k++) {
        int width = 40;
        struct rig *rig = rig_new((struct rig_options){.n_seqs = 2, .lens = {5, 3}, .widths = {width, width, 1}, .spread = 20});
        val capped = op_softcap(rig->p, rig->in[0], 5);
        rig_result(rig, op_gated_add(rig->p, capped, rig->in[1], k ? rig->in[2] : NO_VAL));
        double *want = rig_doubles(rig, (int64_t)rig->n_rows * width);
        for (int s = 0; s < 2; s++)
            for (int t = 0; t < rig->o.lens[s]; t++)
                for (int i = 0; i < width; i++) {
                    double gate = k ? rig_sigmoid((double)*rig_input(rig, 2, s, t)) : 1;
                    want[rig_row(rig, s, t) * width + i] =
                        5 * tanh((double)rig_input(rig, 0, s, t)[i] / 5) + gate * (double)rig_input(rig, 1, s, t)[i];
                }
        rig_expect_in_every_schedule(rig, want, 8 * EPS, "gated_add");
        rig_free(rig);
    }
}

static void diff_heads_subtracts_the_second_half(void **state) {
    (void)state;
    int heads = 6, width = 20, dim = 10, half = heads * width / 2;
    struct rig *rig = rig_new((struct rig_options){.n_seqs = 2, .lens = {5, 3}, .widths = {heads * width}});
    const struct weight *w[4];
    double *v[4], dot[2] = {0, 0};
    for (int i = 0; i < 4; i++)
        w[i] = rig_vector(rig, dim, -0.5, 0.5, &v[i]);
    for (int i = 0; i < dim; i++) {
        dot[0] += v[0][i] * v[1][i];
        dot[1] += v[2][i] * v[3][i];
    }
    double lambda = exp(dot[0]) - exp(dot[1]) + (double)0.35f;
    rig_result(rig, op_diff_heads(rig->p, rig->in[0], w, (struct diff_args){heads, width, 0.35f}));
    double *want = rig_doubles(rig, (int64_t)rig->n_rows * half);
    for (int s = 0; s < 2; s++)
        for (int t = 0; t < rig->o.lens[s]; t++)
            for (int h = 0; h < heads / 2; h++)
                for (int i = 0; i < width; i++) {
                    const float *x = rig_input(rig, 0, s, t);
                    want[rig_row(rig, s, t) * half + h * width + i] =
                        (double)x[h * width + i] - lambda * (double)x[(h + heads / 2) * width + i];
                }
    rig_expect_in_every_schedule(rig, want, 8 * EPS, "diff_heads");
    rig_free(rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_is_x_times_w_transposed_in_every_format),
        cmocka_unit_test(linear_takes_odd_shapes),
        cmocka_unit_test(add_norm_adds_scales_and_normalises),
        cmocka_unit_test(norm_works_on_groups_with_and_without_gate_and_weight),
        cmocka_unit_test(gated_act_has_the_five_activations),
        cmocka_unit_test(gated_add_and_softcap_follow_their_formulas),
        cmocka_unit_test(diff_heads_subtracts_the_second_half),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
