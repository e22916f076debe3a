/* test_ops.c - every op of ops.def against its formula in double precision, on the CPU backend. Here those that work on
 * one row at a time; test_ops_rows.c has EMBED, test_ops_linear*.c and test_ops_gated.c LINEAR, test_ops_attention.c,
 * _moe.c and _recurrent.c what they say, test_ops_refusals.c what a backend does not take.
 *
 * Each row of a test is an op x shape x format; each is run under every schedule of op_rig.h (whole
 * sequences, chunks of 1, 7 and 64, ragged mixes) with block tables and state slots permuted, memory
 * poisoned with NaN, and by the reference functions as well as by the fast ones over every set of kernels.
 *
 * Bounds are relative to the largest value of a row. A float32 sum of n terms of like size in any order errs
 * by about sqrt(n) * 2^-24 of it, rarely by more than n * 2^-24; each bound says its n. They hold in 16 bits too:
 * op_oracle.h says what is rounded there and where more is left. */
#include "op_judge.h"
#include "op_oracle.h"
#include "op_rig.h"
#include "op_weights.h"

#include <math.h>

/* Runs the case of each number below n on each set of kernels. */
static void each_case(int n, void (*run)(int number, const char *kernels)) {
    for (const char *const *kernels = rig_kernels(); *kernels; kernels++)
        for (int i = 0; i < n; i++)
            run(i, *kernels);
}

static struct rig *two_sequences(const char *kernels, float spread, int width0, int width1, int width2) {
    return rig_new((struct rig_options){
        .n_seqs = 2, .lens = {5, 3}, .widths = {width0, width1, width2}, .spread = spread, .kernels = kernels});
}

/* ---- norms ---- */

static void add_norm_case(int number, const char *kernels) {
    if (!rig_takes_case())
        return;
    bool with_d = number & 1, scaled = number & 2, plus_one = number & 4, want_r = number & 8;
    int width = 96 + 5 * (number & 7);
    struct rig *rig = two_sequences(kernels, 1, width, width, 0);
    double *w, *r_scale = NULL;
    const struct weight *weight = rig_vector(rig, width, -1, 1, &w);
    const struct weight *scale = scaled ? rig_vector(rig, 1, 0.5, 2, &r_scale) : NULL;
    struct norm_args args = {.eps = 1e-5f, .plus_one = plus_one};
    struct normed n = op_add_norm(rig->p, rig->in[0], with_d ? rig->in[1] : NO_VAL, weight, scale, args);
    rig_result(rig, want_r ? n.r : n.y);
    double *want = rig_rows(rig);
    RIG_EACH_ROW(rig, s, t) {
        double *x = rig_wide_input(rig, 0, s, t), *d = rig_wide_input(rig, 1, s, t), *y = rig_at(rig, want, s, t);
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

static void add_norm_adds_scales_and_normalises(void **state) {
    (void)state;
    each_case(16, add_norm_case);
}

/* Enough rows for all ways that a device has of sharing them out, widths at which a thread has another number of
 * columns. */
static void wide_add_norm_case(int n_rows, int width, bool sandwiched, const char *kernels) {
    if (!rig_takes_case())
        return;
    struct rig *rig = rig_new((struct rig_options){
        .n_seqs = 2, .lens = {n_rows, (n_rows + 1) / 2}, .widths = {width, width}, .spread = 1, .kernels = kernels});
    double *w, *v = NULL, *r_scale;
    const struct weight *weight = rig_vector(rig, width, -1, 1, &w), *scale = rig_vector(rig, 1, 0.5, 2, &r_scale);
    const struct weight *before = sandwiched ? rig_vector(rig, width, -1, 1, &v) : NULL;
    struct norm_args args = {.eps = 1e-5f};
    val d = sandwiched ? op_norm(rig->p, rig->in[1], NO_VAL, before, args) : rig->in[1];
    struct normed n = op_add_norm(rig->p, rig->in[0], d, weight, scale, args);
    rig_result(rig, op_gated_add(rig->p, n.r, n.y, NO_VAL));
    double *want = rig_rows(rig), *normed = rig_doubles(rig, width);
    RIG_EACH_ROW(rig, s, t) {
        double *x = rig_wide_input(rig, 0, s, t), *other = rig_wide_input(rig, 1, s, t), *y = rig_at(rig, want, s, t);
        if (sandwiched)
            rig_rms_norm(other, v, width, (double)1e-5f, false, normed);
        for (int i = 0; i < width; i++)
            x[i] = (x[i] + (sandwiched ? normed : other)[i]) * *r_scale;
        rig_rms_norm(x, w, width, (double)1e-5f, false, y);
        for (int i = 0; i < width; i++)
            y[i] += x[i];
    }
    rig_expect(rig, want, 8 * sqrt(width) * EPS, SCHEDULE_WHOLE, "add_norm of many rows");
    rig_free(rig);
}

static void add_norm_of_many_rows_is_that_of_each(void **state) {
    (void)state;
    static const int shapes[][2] = {{50, 1028}, {180, 3584}, {302, 3584}, {50, 5376}, {180, 8192}};
    for (const char *const *kernels = rig_kernels(); *kernels; kernels++)
        for (size_t i = 0; i < 2 * ARRAY_LEN(shapes); i++)
            wide_add_norm_case(shapes[i / 2][0], shapes[i / 2][1], i & 1, *kernels);
}

static void norm_case(int number, const char *kernels) {
    if (!rig_takes_case())
        return;
    bool gated = number & 1, weighted = number & 2;
    int group = 24, width = 3 * group;
    struct rig *rig = two_sequences(kernels, 3, width, width, 0);
    double *w = NULL;
    const struct weight *weight = weighted ? rig_vector(rig, group, -1, 1, &w) : NULL;
    struct norm_args args = {.eps = 1e-6f, .group = group, .scale = gated ? 0.25f : 0};
    rig_result(rig, op_norm(rig->p, rig->in[0], gated ? rig->in[1] : NO_VAL, weight, args));
    double *want = rig_rows(rig);
    RIG_EACH_ROW(rig, s, t) {
        double *x = rig_wide_input(rig, 0, s, t), *g = rig_wide_input(rig, 1, s, t), *y = rig_at(rig, want, s, t);
        for (int i = 0; i < width; i += group)
            rig_rms_norm(x + i, w, group, (double)1e-6f, false, y + i);
        for (int i = 0; gated && i < width; i++)
            y[i] *= 0.25 * g[i] * rig_sigmoid(g[i]);
    }
    rig_expect_in_every_schedule(rig, want, 4 * sqrt(width) * EPS, "norm");
    rig_free(rig);
}

/* The sandwich of Gemma, which a backend may do at once: what the NORM reads must still be there, and nobody else may
 * want its rows. */
static void sandwich_case(int number, const char *kernels) {
    if (!rig_takes_case())
        return;
    static const int widths[] = {96, 132, 99, 2048};
    bool plus_one = number & 1, scaled = number & 2, read_twice = number & 4;
    int width = widths[number >> 3];
    struct rig *rig = two_sequences(kernels, 2, width, width, 0);
    double *w, *v, *r_scale = NULL;
    const struct weight *weight = rig_vector(rig, width, -1, 1, &w), *before = rig_vector(rig, width, -1, 1, &v);
    const struct weight *scale = scaled ? rig_vector(rig, 1, 0.5, 2, &r_scale) : NULL;
    struct norm_args args = {.eps = 1e-5f, .plus_one = plus_one}, other = {.eps = 1e-3f, .plus_one = plus_one};
    val d = op_norm(rig->p, rig->in[1], NO_VAL, before, other);
    struct normed n = op_add_norm(rig->p, rig->in[0], d, weight, scale, args);
    rig_result(rig, read_twice ? op_gated_add(rig->p, n.y, d, NO_VAL) : n.y);
    double *want = rig_rows(rig), *normed = rig_doubles(rig, width);
    RIG_EACH_ROW(rig, s, t) {
        double *x = rig_wide_input(rig, 0, s, t), *y = rig_at(rig, want, s, t);
        rig_rms_norm(rig_wide_input(rig, 1, s, t), v, width, (double)1e-3f, plus_one, normed);
        for (int i = 0; i < width; i++)
            x[i] = (x[i] + normed[i]) * (r_scale ? *r_scale : 1);
        rig_rms_norm(x, w, width, (double)1e-5f, plus_one, y);
        for (int i = 0; read_twice && i < width; i++)
            y[i] += normed[i];
    }
    rig_expect_in_every_schedule(rig, want, 8 * sqrt(width) * EPS, "norm, then add_norm");
    rig_free(rig);
}

static void a_norm_before_an_add_norm_may_be_folded_into_it(void **state) {
    (void)state;
    each_case(32, sandwich_case);
}

/* What experts and a shared one make, which a backend may add up where it is normed. */
static void summed_case(int number, const char *kernels) {
    if (!rig_takes_case())
        return;
    static const int widths[] = {99, 2048};
    bool scaled = number & 1, read_twice = number & 2, many = number & 4;
    int width = widths[number >> 3];
    struct rig *rig = rig_new((struct rig_options){
        .n_seqs = 2, .lens = {many ? 63 : 5, 3}, .widths = {width, width, width}, .spread = 2, .kernels = kernels});
    double *w, *r_scale = NULL;
    const struct weight *weight = rig_vector(rig, width, -1, 1, &w);
    const struct weight *scale = scaled ? rig_vector(rig, 1, 0.5, 2, &r_scale) : NULL;
    val d = op_gated_add(rig->p, rig->in[1], rig->in[2], NO_VAL);
    val y = op_add_norm(rig->p, rig->in[0], d, weight, scale, (struct norm_args){.eps = 1e-5f}).y;
    rig_result(rig, read_twice ? op_gated_add(rig->p, y, d, NO_VAL) : y);
    double *want = rig_rows(rig);
    RIG_EACH_ROW(rig, s, t) {
        double *x = rig_wide_input(rig, 0, s, t), *a = rig_wide_input(rig, 1, s, t), *b = rig_wide_input(rig, 2, s, t);
        for (int i = 0; i < width; i++)
            x[i] = (x[i] + a[i] + b[i]) * (r_scale ? *r_scale : 1);
        rig_rms_norm(x, w, width, (double)1e-5f, false, rig_at(rig, want, s, t));
        for (int i = 0; read_twice && i < width; i++)
            rig_at(rig, want, s, t)[i] += a[i] + b[i];
    }
    double most = 8 * sqrt(width) * EPS;
    if (many) { // more rows than a device may do so in one step, then few
        rig_expect(rig, want, most, SCHEDULE_WHOLE, "gated_add, then add_norm of many rows");
        rig_expect(rig, want, most, SCHEDULE_ONE_BY_ONE, "gated_add, then add_norm of few rows");
    } else {
        rig_expect_in_every_schedule(rig, want, most, "gated_add, then add_norm");
    }
    rig_free(rig);
}

static void a_gated_add_before_an_add_norm_may_be_done_by_it(void **state) {
    (void)state;
    each_case(16, summed_case);
}

static void norm_works_on_groups_with_and_without_gate_and_weight(void **state) {
    (void)state;
    each_case(4, norm_case);
}

/* ---- element by element ---- */

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

static void gated_act_case(int number, const char *kernels) {
    if (!rig_takes_case())
        return;
    enum activation act = (enum activation)number;
    int width = 77;
    struct rig *rig = rig_new(
        (struct rig_options){.n_seqs = 2, .lens = {50, 3}, .widths = {2 * width}, .spread = 12, .kernels = kernels});
    rig_result(rig, op_glu(rig->p, rig->in[0], (struct act_args){act, 7}));
    double *want = rig_rows(rig);
    RIG_EACH_ROW(rig, s, t) {
        const float *x = rig_input(rig, 0, s, t);
        for (int i = 0; i < width; i++)
            rig_at(rig, want, s, t)[i] = gated(act, 7, (double)x[i], (double)x[width + i]);
    }
    rig_expect_in_every_schedule(rig, want, 16 * EPS, "gated_act"); // a dozen roundings
    rig_free(rig);
}

static void gated_act_has_the_five_activations(void **state) {
    (void)state;
    each_case(ACT_SWIGLU_CLAMPED + 1, gated_act_case);
}

/* GATED_ADD of a softcapped input: both, and a value of one column. */
static void gated_add_case(int number, const char *kernels) {
    if (!rig_takes_case())
        return;
    int width = 40;
    struct rig *rig = two_sequences(kernels, 20, width, width, 1);
    val capped = op_softcap(rig->p, rig->in[0], 5);
    rig_result(rig, op_gated_add(rig->p, capped, rig->in[1], number ? rig->in[2] : NO_VAL));
    double *want = rig_rows(rig);
    RIG_EACH_ROW(rig, s, t) {
        double *x = rig_wide_input(rig, 0, s, t), *add = rig_wide_input(rig, 1, s, t);
        double gate = number ? rig_sigmoid((double)*rig_input(rig, 2, s, t)) : 1;
        for (int i = 0; i < width; i++)
            rig_at(rig, want, s, t)[i] = 5 * tanh(x[i] / 5) + gate * add[i];
    }
    rig_expect_in_every_schedule(rig, want, 8 * EPS, "gated_add");
    rig_free(rig);
}

static void gated_add_and_softcap_follow_their_formulas(void **state) {
    (void)state;
    each_case(2, gated_add_case);
}

static void diff_heads_case(int number, const char *kernels) {
    if (!rig_takes_case())
        return;
    int heads = 2 * (number + 1), width = 20, dim = 10;
    struct rig *rig = two_sequences(kernels, 1, heads * width, 0, 0);
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
    double *want = rig_rows(rig);
    RIG_EACH_ROW(rig, s, t) {
        double *x = rig_wide_input(rig, 0, s, t), *y = rig_at(rig, want, s, t);
        for (int i = 0; i < heads / 2 * width; i++)
            y[i] = x[i] - lambda * x[heads / 2 * width + i];
    }
    rig_expect_in_every_schedule(rig, want, 8 * EPS, "diff_heads");
    rig_free(rig);
}

static void diff_heads_subtracts_the_second_half(void **state) {
    (void)state;
    each_case(3, diff_heads_case);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(add_norm_adds_scales_and_normalises),
        cmocka_unit_test(add_norm_of_many_rows_is_that_of_each),
        cmocka_unit_test(a_norm_before_an_add_norm_may_be_folded_into_it),
        cmocka_unit_test(a_gated_add_before_an_add_norm_may_be_done_by_it),
        cmocka_unit_test(norm_works_on_groups_with_and_without_gate_and_weight),
        cmocka_unit_test(gated_act_has_the_five_activations),
        cmocka_unit_test(gated_add_and_softcap_follow_their_formulas),
        cmocka_unit_test(diff_heads_subtracts_the_second_half),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
