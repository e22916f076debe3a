/* test_ops_linear_e4m3.c - LINEAR by e4m3, alone or with the GATED_ACT behind it, on a device that has it: near the
 * product of the numbers stored, and at that of the numbers read; how the tests are run is said in test_ops.c. */
#include "op_judge.h"
#include "op_linear.h"
#include "op_oracle.h"

#include <math.h>

/* On a device that has them: from one row to more than any kernel for a few rows takes, with a bias and without. */
static void linear_by_e4m3_is_near_the_product_of_the_numbers_stored(void **state) {
    (void)state;
    if (rig_backend() == &backend_cpu)
        skip();
    static const int shapes[][3] = {{16, 16, 1},     {48, 32, 2},      {96, 128, 1},   {208, 896, 70}, {512, 1024, 5},
                                    {256, 2064, 33}, {1040, 512, 130}, {2576, 400, 6}, {320, 640, 85}};
    for (const char *const *kernels = rig_kernels(); *kernels; kernels++)
        for (enum rig_format f = 0; f < N_FORMATS; f++)
            for (int i = 0; i < (int)ARRAY_LEN(shapes); i++) {
                if (is_by_e4m3(f, shapes[i][0], shapes[i][1], NULL, *kernels))
                    linear_by_e4m3_case(f, shapes[i][0], shapes[i][1], shapes[i][2], i & 1, NULL, *kernels);
                else if (is_by_e4m3(f, shapes[i][0], shapes[i][1], "fp8", *kernels))
                    linear_by_e4m3_case(f, shapes[i][0], shapes[i][1], shapes[i][2], i & 1, "fp8", *kernels);
            }
}

static void gated_linear_by_e4m3_case(int width, int in, int n_rows, enum activation act, bool biased,
                                      const char *kernels) {
    if (!rig_takes_case())
        return;
    struct rig *rig = rig_new(
        (struct rig_options){.n_seqs = 2, .lens = {n_rows, (n_rows + 1) / 2}, .widths = {in}, .kernels = kernels});
    struct by_e4m3 c = {.format = FORMAT_F8_CHANNEL, .act = &act};
    rig_result(rig, op_glu(rig->p, linear_record(rig, &c.l, FORMAT_F8_CHANNEL, 2 * width, in, biased),
                           (struct act_args){act, 7}));
    char what[100];
    snprintf(what, sizeof what, "gated linear by e4m3 [2 x %d, %d] x %d", width, in, rig->n_rows);
    by_e4m3_judge(rig, &c, of_few_sequences, ARRAY_LEN(of_few_sequences), what);
    rig_free(rig);
}

static void gated_linear_by_e4m3_is_near_the_gated_product(void **state) {
    (void)state;
    if (rig_backend() == &backend_cpu)
        skip();
    static const int shapes[][3] = {{48, 256, 1},    {144, 512, 5},  {208, 896, 13},
                                    {504, 1040, 40}, {320, 272, 85}, {96, 512, 130}};
    for (const char *const *kernels = rig_kernels(); *kernels; kernels++)
        for (int i = 0; i < (int)ARRAY_LEN(shapes); i++)
            if (is_by_e4m3(FORMAT_F8_CHANNEL, 2 * shapes[i][0], shapes[i][1], NULL, *kernels))
                gated_linear_by_e4m3_case(shapes[i][0], shapes[i][1], shapes[i][2], i & 2 ? ACT_SIGMOID : ACT_SILU,
                                          i & 1, *kernels);
}

/* Of a row with a few large values the others become subnormal in e4m3, and are to be what rounding leaves of them
 * there, not zero. */
static void heavy_tailed_case(int out, int in, int n_rows, const char *kernels) {
    if (!is_by_e4m3(FORMAT_BF16, out, in, "fp8", kernels) || !rig_takes_case())
        return;
    struct rig *rig = rig_new((struct rig_options){
        .n_seqs = 2, .lens = {n_rows, (n_rows + 1) / 2}, .widths = {in}, .kernels = kernels, .quantization = "fp8"});
    for (int64_t i = 0; i < (int64_t)rig->n_rows * rig->width; i++)
        if (rig_between(rig, 0, in / 3) == 0)
            rig->table[i] = ldexpf(rig->table[i], rig_between(rig, 5, 11));
    struct by_e4m3 c = {.format = FORMAT_BF16};
    rig_result(rig, linear_record(rig, &c.l, FORMAT_BF16, out, in, false));
    char what[100];
    snprintf(what, sizeof what, "heavy-tailed linear by e4m3 [%d, %d] x %d", out, in, rig->n_rows);
    by_e4m3_judge(rig, &c, of_few_sequences, 1, what);
    rig_free(rig);
}

static void values_beside_large_ones_are_read_as_e4m3_has_them(void **state) {
    (void)state;
    if (rig_backend() == &backend_cpu)
        skip();
    static const int shapes[][3] = {{208, 896, 5}, {320, 1024, 70}, {512, 2048, 130}};
    for (const char *const *kernels = rig_kernels(); *kernels; kernels++)
        for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
            heavy_tailed_case(shapes[i][0], shapes[i][1], shapes[i][2], *kernels);
}

/* Rows of x and of W whose elements are all as large as any, with signs that agree or are all opposite: no sum of e4m3
 * is larger, wherever it is kept. Of terms that are all alike a tensor core drops the same bits each time, those below
 * 2^-13 of the sum so far at most: hence the bound. */
static void largest_sums_case(int in, int n_rows, const char *kernels) {
    enum { OUT = 64 };
    if (!is_by_e4m3(FORMAT_BF16, OUT, in, "fp8", kernels) || !rig_takes_case())
        return;
    struct rig *rig = rig_new((struct rig_options){
        .n_seqs = 2, .lens = {n_rows, (n_rows + 1) / 2}, .widths = {in}, .kernels = kernels, .quantization = "fp8"});
    struct linear l;
    val y = linear_record(rig, &l, FORMAT_BF16, OUT, in, false);
    uint16_t *stored = (uint16_t *)(uintptr_t)rig->p->ops[rig->p->n_ops - 1].weights[0]->parts[0].data;
    for (int i = 0; i < in; i++) {
        float sign = rig_between(rig, 0, 1) ? 1 : -1;
        for (int64_t o = 0; o < OUT; o++)
            stored[o * in + i] = f32_to_bf16((float)(l.w[o * in + i] = (double)(o % 3 ? sign : -sign) / 16));
        for (int64_t t = 0; t < rig->n_rows; t++)
            rig->table[t * rig->width + i] = t % 5 ? sign : -sign;
    }
    rig_result(rig, y); // which places them
    const double *want = linear_rows(rig, &l, READING_AS_IT_IS), *got = rig_run(rig, SCHEDULE_WHOLE),
                 lost = fmin(in * 0x1p-14, 0.45);
    for (int64_t i = 0; i < (int64_t)rig->n_rows * OUT; i++)
        if (rig_tells(rig, (int)(i / OUT)) && !(fabs(got[i] - want[i]) <= (lost + 0.01) * fabs(want[i])))
            fail_msg("row %d of %d of %d columns: %g for %g", (int)(i / OUT), rig->n_rows, in, got[i], want[i]);
    rig_free(rig);
}

static void sums_of_e4m3_that_are_as_large_as_any_are_finite_and_right(void **state) {
    (void)state;
    if (rig_backend() == &backend_cpu)
        skip();
    static const int cases[][2] = {{18944, 3},   {3584, 7},   {18944, 40}, {512, 130},
                                   {18944, 130}, {3584, 300}, {32768, 100}};
    int most = rig_is_brief() ? 32752 : 32768; // which is as large as to be timed
    for (const char *const *kernels = rig_kernels(); *kernels; kernels++)
        for (size_t i = 0; i < ARRAY_LEN(cases); i++)
            largest_sums_case(MIN(cases[i][0], most), cases[i][1], *kernels);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_by_e4m3_is_near_the_product_of_the_numbers_stored),
        cmocka_unit_test(gated_linear_by_e4m3_is_near_the_gated_product),
        cmocka_unit_test(values_beside_large_ones_are_read_as_e4m3_has_them),
        cmocka_unit_test(sums_of_e4m3_that_are_as_large_as_any_are_finite_and_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
