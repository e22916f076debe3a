/* test_ops_norm.c - ADD_NORM before what reads it, LINEAR or experts with their router, in steps of one row and of
 * several; how the tests are run is said in test_ops.c. */
#include "op_judge.h"
#include "op_oracle.h"
#include "op_rig.h"
#include "op_weights.h"

#include <math.h>
#include <stdio.h>

/* What experts read, and what is added to them: d is absent where x is the only input. */
struct normed_case {
    int width;
    bool summed, plus_one;
};

static const struct normed_case cases[] = {
    {64, true, false},    {272, true, true},   {2048, true, false},
    {2048, false, false}, {4096, true, false}, {4112, true, false}, // wider than what is done in one node
    {66, true, false},                                              // no whole pieces
};

static struct rig *normed_rig(const struct normed_case *c, const char *kernels, val *r, val *y, double **w) {
    struct rig *rig = rig_new((struct rig_options){
        .n_seqs = 1, .lens = {5}, .widths = {c->width, c->summed ? c->width : 0}, .spread = 2, .kernels = kernels});
    const struct weight *weight = rig_vector(rig, c->width, -1, 1, w);
    struct normed n = op_add_norm(rig->p, rig->in[0], c->summed ? rig->in[1] : NO_VAL, weight, NULL,
                                  (struct norm_args){.eps = 1e-5f, .plus_one = c->plus_one});
    *r = n.r, *y = n.y;
    return rig;
}

/* r and y of a row. */
static void norm_row(struct rig *rig, const struct normed_case *c, const double *w, int s, int t, double *r,
                     double *y) {
    const double *x = rig_wide_input(rig, 0, s, t);
    for (int i = 0; i < c->width; i++)
        r[i] = x[i];
    const double *d = c->summed ? rig_wide_input(rig, 1, s, t) : NULL;
    for (int i = 0; d && i < c->width; i++)
        r[i] += d[i];
    rig_rms_norm(r, w, c->width, (double)1e-5f, c->plus_one, y);
}

enum { OUT = 64 };

/* W y and, in the same row, n_r times r: as the product was read. */
static const double *product_rows(struct rig *rig, const struct normed_case *c, const char *kernels, const double *w,
                                  const double *matrix, int n_r, enum rig_reading how) {
    double *want = rig_rows(rig), *r = rig_doubles(rig, c->width), *y = rig_doubles(rig, c->width);
    RIG_EACH_ROW(rig, s, t) {
        norm_row(rig, c, w, s, t, r, y);
        rig_read(kernels, how, y, c->width);
        rig->floor = fmax(rig->floor, rig_multiply(matrix, OUT, c->width, y, rig_at(rig, want, s, t)));
        for (int i = 0; i < OUT; i++)
            rig_at(rig, want, s, t)[i] += n_r * r[i];
    }
    return want;
}

/* early: an op before the product reads what is added up. */
static void product_case(const struct normed_case *c, bool early, const char *kernels) {
    static const enum rig_schedule schedules[] = {SCHEDULE_CHUNK_1, SCHEDULE_WHOLE};
    if (!rig_takes_case())
        return;
    val r, y;
    double *w, *matrix;
    const double *want[N_ROW_READINGS];
    struct rig *rig = normed_rig(c, kernels, &r, &y, &w);
    const struct weight *weight = rig_weight(rig, FORMAT_F8_CHANNEL, OUT, c->width, &matrix);
    val beside = val_cols(r, 0, OUT);
    if (early)
        beside = op_gated_add(rig->p, beside, beside, NO_VAL);
    rig_result(rig, op_gated_add(rig->p, beside, op_linear(rig->p, y, weight, NULL), NO_VAL));
    for (int how = 0; how < N_ROW_READINGS; how++)
        want[how] = product_rows(rig, c, kernels, w, matrix, early ? 2 : 1, (enum rig_reading)how);
    for (size_t i = 0; i < ARRAY_LEN(schedules); i++) {
        const double *got = rig_run(rig, schedules[i]), *nearest = rig_nearest(rig, got, want, N_ROW_READINGS);
        char what[80];
        snprintf(what, sizeof what, "add_norm of %d, then a product", c->width);
        // twice: a few rows of up to 4,096 columns, of which one may be off by more than is usual
        rig_judge(rig, got, nearest, (struct rig_bounds){.most = 2 * RIG_F8_READ_BOUND, .rms = 2 * RIG_F8_READ_RMS},
                  schedules[i], what);
    }
    rig_free(rig);
}

static void a_product_reads_what_the_add_norm_before_it_makes(void **state) {
    (void)state;
    for (const char *const *kernels = rig_kernels(); *kernels; kernels++)
        for (size_t i = 0; i < ARRAY_LEN(cases); i++)
            product_case(&cases[i], false, *kernels);
}

static void an_op_between_reads_what_the_add_norm_added_up(void **state) {
    (void)state;
    for (const char *const *kernels = rig_kernels(); *kernels; kernels++)
        product_case(&cases[2], true, *kernels);
}

enum { EXPERTS = 4, FFN = 32 };

/* Of the shared expert: with a bias no router computes it. */
enum gate { UNGATED, GATED, GATED_WITH_BIAS, N_GATES };

/* What all experts make of y by the router's weights, that no choice depends on, and r. */
static void experts_case(const struct normed_case *c, enum gate gated, const char *kernels) {
    if (!rig_takes_case())
        return;
    val r, y;
    double *w, *router, *gate_row = NULL, *bias = NULL, *w13, *w2;
    int d = c->width, all = EXPERTS + 1;
    struct rig *rig = normed_rig(c, kernels, &r, &y, &w);
    val logits = op_linear(rig->p, y, rig_weight(rig, FORMAT_BF16, EXPERTS, d, &router), NULL);
    const struct weight *b = gated == GATED_WITH_BIAS ? rig_vector(rig, 1, -1, 1, &bias) : NULL;
    val gate = gated ? op_linear(rig->p, y, rig_weight(rig, FORMAT_BF16, 1, d, &gate_row), b) : NO_VAL;
    struct route_args a = {.how = ROUTE_SOFTMAX, .n_experts = EXPERTS, .top_k = EXPERTS, .scale = 1, .n_shared = 1};
    struct routed routed = op_moe_route_gated(rig->p, logits, gate, NULL, NULL, a);
    val made = op_moe_ffn(rig->p, y, routed, rig_weight(rig, FORMAT_BF16, all * 2 * FFN, d, &w13),
                          rig_weight(rig, FORMAT_BF16, (int64_t)all * d, FFN, &w2), NULL, NULL,
                          (struct moe_args){.n_experts = all, .top_k = all, .ffn_size = FFN, .act = {ACT_SILU, 0}});
    rig_result(rig, op_gated_add(rig->p, r, made, NO_VAL));
    rig_round(kernels, router, (int64_t)EXPERTS * d);
    rig_round(kernels, w13, (int64_t)all * 2 * FFN * d), rig_round(kernels, w2, (int64_t)all * d * FFN);
    if (gated)
        rig_round(kernels, gate_row, d);
    double *want = rig_rows(rig), *x = rig_doubles(rig, d), *n = rig_doubles(rig, d), *one = rig_doubles(rig, d);
    RIG_EACH_ROW(rig, s, t) {
        double logit[EXPERTS], sum = 0, shared = 0, hidden[2 * FFN];
        norm_row(rig, c, w, s, t, x, n);
        rig_round(kernels, n, d);
        rig_multiply(router, EXPERTS, d, n, logit);
        for (int e = 0; e < EXPERTS; e++)
            sum += exp(logit[e]);
        if (gated)
            rig_multiply(gate_row, 1, d, n, &shared), shared += bias ? bias[0] : 0;
        for (int i = 0; i < d; i++)
            rig_at(rig, want, s, t)[i] = x[i];
        for (int e = 0; e < all; e++) {
            double weight = e < EXPERTS ? exp(logit[e]) / sum : gated ? rig_sigmoid(shared) : 1;
            rig_multiply(w13 + (int64_t)e * 2 * FFN * d, 2 * FFN, d, n, hidden);
            for (int i = 0; i < FFN; i++)
                hidden[i] = hidden[i] * rig_sigmoid(hidden[i]) * hidden[FFN + i];
            rig_round(kernels, hidden, FFN);
            rig->floor = fmax(rig->floor, weight * rig_multiply(w2 + (int64_t)e * d * FFN, d, FFN, hidden, one));
            for (int i = 0; i < d; i++)
                rig_at(rig, want, s, t)[i] += weight * one[i];
        }
    }
    double exact = 8 * sqrt(d + FFN) * EPS;
    bool narrow = rig_backend() != &backend_cpu && strcmp(kernels, "float32") != 0;
    struct rig_bounds bounds = narrow ? rig_bounds_of_16(rig, exact) : (struct rig_bounds){.most = exact};
    bounds.most *= narrow ? 4 : 1; // sums halfway between two numbers of 16 bits go either way, twice in a row
    bounds.rms *= getenv("GYRE_TEST_KERNELS") ? 4 : 1; // plain kernels round what is between once more
    rig_expect_bounds(rig, want, bounds, "add_norm, then experts and what routes to them");
    rig_free(rig);
}

static void experts_and_their_router_read_what_an_add_norm_makes(void **state) {
    (void)state;
    for (const char *const *kernels = rig_kernels(); *kernels; kernels++)
        for (size_t i = 0; i < 5; i++)
            for (int gated = UNGATED; gated < N_GATES; gated++)
                experts_case(&cases[i], (enum gate)gated, *kernels);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_product_reads_what_the_add_norm_before_it_makes),
        cmocka_unit_test(an_op_between_reads_what_the_add_norm_added_up),
        cmocka_unit_test(experts_and_their_router_read_what_an_add_norm_makes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
