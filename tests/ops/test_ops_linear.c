/* test_ops_linear.c - LINEAR in every format and of any shape, in steps of every size, timed or recalled, and whoever
 * reads it; how the tests are run is said in test_ops.c. */
#include "op_judge.h"
#include "op_linear.h"
#include "op_oracle.h"

#include <math.h>

static void linear_is_x_times_w_transposed_in_every_format(void **state) {
    (void)state;
    static const int shapes[][3] = {{96, 128, 1}, {50, 192, 5}, {34, 64, 21}, {200, 896, 70}};
    for (const char *const *kernels = rig_kernels(); *kernels; kernels++)
        for (enum rig_format f = 0; f < N_FORMATS; f++)
            for (int i = 0; i < (int)ARRAY_LEN(shapes); i++)
                if (!is_by_e4m3(f, shapes[i][0], shapes[i][1], NULL, *kernels))
                    linear_case(f, shapes[i][0], shapes[i][1], shapes[i][2], i == 1 || i == 2, *kernels);
}

/* Of a device: what the CPU's products of blocks round, test_block_products.c knows. */
static void linear_by_ggufs_blocks_is_the_product_of_what_the_cpu_makes_of_them(void **state) {
    (void)state;
    if (rig_backend() == &backend_cpu)
        skip();
    static const int shapes[][3] = {{96, 256, 1}, {50, 512, 5}, {208, 768, 21}, {160, 1024, 70}};
    for (const char *const *kernels = rig_kernels(); *kernels; kernels++)
        for (enum rig_format f = FORMAT_Q4_0; f < N_STORED_FORMATS; f++)
            for (int i = 0; i < (int)ARRAY_LEN(shapes); i++)
                linear_case(f, shapes[i][0], shapes[i][1], shapes[i][2], i % 2, *kernels);
}

static void linear_takes_odd_shapes(void **state) {
    (void)state;
    static const int shapes[][3] = {{1, 1, 1},    {1, 2048, 3},  {3, 17, 2},  {33, 31, 9},
                                    {6, 130, 13}, {257, 70, 33}, {64, 5, 100}};
    for (const char *const *kernels = rig_kernels(); *kernels; kernels++)
        for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
            for (enum rig_format f = 0; f < FORMAT_F8_CHANNEL; f++)
                linear_case(f, shapes[i][0], shapes[i][1], shapes[i][2], i & 1, *kernels);
}

/* Down to where a float is no longer normal: what of a number is too small for a format is nothing, not something else.
 */
static void linear_takes_inputs_of_every_size(void **state) {
    (void)state;
    for (const char *const *kernels = rig_kernels(); *kernels; kernels++)
        for (enum rig_format f = 0; f < FORMAT_F8_CHANNEL; f++) {
            if (strcmp(*kernels, "float16") == 0 || !rig_takes_case()) // which refuses the rig's table
                continue;
            struct rig *rig =
                rig_new((struct rig_options){.n_seqs = 2, .lens = {9, 4}, .widths = {160}, .kernels = *kernels});
            for (int64_t i = 0; i < (int64_t)rig->n_rows * rig->width; i++)
                rig->table[i] = i % 5 ? ldexpf(rig->table[i], -rig_between(rig, 100, 140)) : rig->table[i];
            struct linear l;
            rig_result(rig, linear_record(rig, &l, f, 64, 160, false));
            rig_round(rig->o.kernels, l.w, 64 * 160);
            rig_expect(rig, linear_rows(rig, &l, READING_16), 4 * sqrt(160) * EPS, SCHEDULE_WHOLE,
                       "linear of inputs of every size");
            rig_free(rig);
        }
}

/* Large enough for a device to look for the fastest way, and to keep what it found for the second time. Not for
 * sanitizers: the search is thousands of launches of the library's kernels. */
static void linear_is_right_when_its_plan_is_timed_and_when_it_is_recalled(void **state) {
    (void)state;
    if (rig_is_brief())
        skip();
    char folder[] = "/tmp/gyre-cache-XXXXXX";
    EXPECT(mkdtemp(folder) != NULL);
    setenv("XDG_CACHE_HOME", folder, 1);
    for (const char *const *kernels = rig_kernels(); *kernels; kernels++)
        for (int time = 0; time < 2; time++) {
            linear_case(FORMAT_BF16, 1040, 2064, 37, true, *kernels);
            if (is_by_e4m3(FORMAT_F8_CHANNEL, 1040, 2064, NULL, *kernels))
                linear_by_e4m3_case(FORMAT_F8_CHANNEL, 1040, 2064, 37, true, NULL, *kernels);
        }
}

static void linear_takes_random_shapes(void **state) {
    (void)state;
    enum { SHAPES = 8, MOST_OUT = 700 };
    int most_in = rig_is_brief() ? RIG_TIMED_BYTES / (MOST_OUT * 4) : 900; // of float32
    struct rig *dice = rig_new((struct rig_options){.n_seqs = 1, .lens = {1}, .widths = {1}});
    for (const char *const *kernels = rig_kernels(); *kernels; kernels++)
        for (int i = 0; i < SHAPES; i++) {
            int out = rig_between(dice, 1, MOST_OUT), in = rig_between(dice, 1, most_in),
                rows = rig_between(dice, 1, 90);
            enum rig_format format = (enum rig_format)rig_between(dice, 0, FORMAT_F8_CHANNEL - 1);
            linear_case(format, out, in, rows, i & 1, *kernels);
            out = (out + 15) / 16 * 16, in = (in + 15) / 16 * 16;
            if (is_by_e4m3(FORMAT_F8_CHANNEL, out, in, NULL, *kernels))
                linear_by_e4m3_case(FORMAT_F8_CHANNEL, out, in, rows, i & 1, NULL, *kernels);
        }
    rig_free(dice);
}

/* ---- every number of rows ---- */

static void sized_case(enum rig_format format, bool gated, const char *kernels) {
    if (!rig_takes_case() || rig_is_brief())
        return;
    bool cpu = rig_backend() == &backend_cpu;
    int out = cpu ? 32 : 288, in = cpu ? 32 : 400;
    enum activation act = ACT_SILU;
    enum rig_schedule sizes = SCHEDULE_SIZES;
    struct rig *rig = rig_new(rig_sizes((struct rig_options){.widths = {in}, .kernels = kernels}));
    struct by_e4m3 c = {.format = format, .act = gated ? &act : NULL};
    val y = linear_record(rig, &c.l, format, out, in, true);
    rig_result(rig, gated ? op_glu(rig->p, y, (struct act_args){act, 0}) : y);
    char what[100];
    snprintf(what, sizeof what, "%s %s in steps of every size", gated ? "gated linear" : "linear",
             rig_format_name(format));
    if (is_by_e4m3(format, out, in, NULL, kernels)) {
        by_e4m3_judge(rig, &c, &sizes, 1, what);
    } else {
        rig_round(rig->o.kernels, c.l.w, (int64_t)out * in);
        rig_expect(rig, by_e4m3_rows(rig, &c, READING_16), 8 * sqrt(in) * EPS, sizes, what);
    }
    rig_free(rig);
}

/* A path is chosen by the number of rows, and a graph captured for each that a step may be padded to. */
static void linear_is_right_in_steps_of_every_size(void **state) {
    (void)state;
    for (const char *const *kernels = rig_kernels(); *kernels; kernels++)
        for (int gated = 0; gated < 2; gated++) {
            sized_case(FORMAT_BF16, gated, *kernels);
            sized_case(FORMAT_F8_CHANNEL, gated, *kernels);
        }
}

/* ---- who reads it ---- */

enum reader {
    READ_BY_GATED_ACT,
    READ_BY_ADD_NORM,
    READ_BY_NORMED_ADD_NORM,
    READ_BY_TWO,
    READ_BY_GATED_ADD,
    READ_BY_QKV_PREP,
    N_READERS
};

/* What the reader of y = x W^T + b makes of it; of ADD_NORM the norm of x + y, or of x + norm(y). */
static val record_reader(struct rig *rig, enum reader reader, val x, val y, double **w) {
    struct program *p = rig->p;
    struct norm_args norm = {.eps = 1e-5f};
    if (reader == READ_BY_GATED_ACT)
        return op_glu(p, y, (struct act_args){ACT_SILU, 0});
    if (reader == READ_BY_QKV_PREP) {
        struct qkv_args a = {.rope = -1, .n_heads = 4, .n_kv_heads = 2, .head_dim = 64, .v_head_dim = 64, .eps = 1e-5f};
        a.cache = program_cache_kv(p, a.n_kv_heads, a.head_dim, a.v_head_dim, 0);
        return op_qkv_prep(p, y, rig_vector(rig, a.head_dim, 0.5, 1.5, &w[0]), NULL, a);
    }
    if (reader == READ_BY_GATED_ADD)
        return op_gated_add(p, x, y, NO_VAL);
    if (reader == READ_BY_NORMED_ADD_NORM)
        y = op_norm(p, y, NO_VAL, rig_vector(rig, y.width, 0.5, 1.5, &w[1]),
                    (struct norm_args){.eps = 1e-5f, .group = y.width, .scale = 1});
    val r = op_add_norm(p, x, y, rig_vector(rig, y.width, 0.5, 1.5, &w[0]), NULL, norm).y;
    return reader == READ_BY_TWO ? op_gated_add(p, y, r, NO_VAL) : r;
}

static void want_of_reader(enum reader reader, const double *x, double *y, int n, double **w, double *want) {
    if (reader == READ_BY_GATED_ACT) {
        for (int i = 0; i < n / 2; i++)
            want[i] = y[i] * rig_sigmoid(y[i]) * y[n / 2 + i];
        return;
    }
    for (int h = 0; reader == READ_BY_QKV_PREP && h < 4; h++)
        rig_rms_norm(y + 64 * h, w[0], 64, 1e-5, false, want + 64 * h);
    for (int i = 0; reader == READ_BY_GATED_ADD && i < n; i++)
        want[i] = x[i] + y[i];
    if (reader == READ_BY_QKV_PREP || reader == READ_BY_GATED_ADD)
        return;
    double r[512], d[512];
    memcpy(d, y, (size_t)n * sizeof *d);
    if (reader == READ_BY_NORMED_ADD_NORM)
        rig_rms_norm(y, w[1], n, 1e-5, false, d);
    for (int i = 0; i < n; i++)
        r[i] = x[i] + d[i];
    rig_rms_norm(r, w[0], n, 1e-5, false, want);
    for (int i = 0; reader == READ_BY_TWO && i < n; i++)
        want[i] += y[i];
}

/* Products may stay without their scales until they are read. */
static void reader_case(enum reader reader, int n_rows, bool biased, const char *quantization, const char *kernels) {
    if (!rig_takes_case())
        return;
    enum { IN = 512 };
    int out = reader == READ_BY_GATED_ACT ? 736 : IN;
    struct rig *rig = rig_new((struct rig_options){.n_seqs = 2,
                                                   .lens = {n_rows, (n_rows + 1) / 2},
                                                   .widths = {IN},
                                                   .kernels = kernels,
                                                   .quantization = quantization});
    double *w, *b = NULL, *norms[2] = {NULL};
    const struct weight *weight = rig_weight(rig, quantization ? FORMAT_BF16 : FORMAT_F8_CHANNEL, out, IN, &w);
    const struct weight *bias = biased ? rig_vector(rig, out, -1, 1, &b) : NULL;
    rig_result(rig, record_reader(rig, reader, rig->in[0], op_linear(rig->p, rig->in[0], weight, bias), norms));
    double *want = rig_rows(rig), y[736];
    RIG_EACH_ROW(rig, s, t) {
        double *x = rig_wide_input(rig, 0, s, t);
        rig_multiply(w, out, IN, x, y);
        for (int i = 0; b && i < out; i++)
            y[i] += b[i];
        want_of_reader(reader, x, y, out, norms, rig_at(rig, want, s, t));
    }
    bool coarse = is_by_e4m3(quantization ? FORMAT_BF16 : FORMAT_F8_CHANNEL, out, IN, quantization, kernels);
    static const enum rig_schedule schedules[] = {SCHEDULE_WHOLE, SCHEDULE_CHUNK_1};
    for (size_t i = 0; i < (n_rows > 150 ? 1 : ARRAY_LEN(schedules)); i++) {
        double cosine = rig_cosine(rig, rig_run(rig, schedules[i]), want),
               least = coarse ? 0.998 : 0.9999; // an act squares what is off
        if (!(cosine >= least))
            fail_msg("reader %d of %d rows of products%s, %s, schedule %d: cosine %.6f under %.4f", (int)reader, n_rows,
                     quantization ? " quantised" : "", kernels, schedules[i], cosine, least);
    }
    rig_free(rig);
}

static void products_are_the_same_to_whoever_reads_them(void **state) {
    (void)state;
    static const int rows[] = {1, 7, 40, 150, 302};
    for (const char *const *kernels = rig_kernels(); *kernels; kernels++)
        for (enum reader reader = 0; reader < N_READERS; reader++)
            for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
                bool exact = rig_backend() == &backend_cpu || strcmp(*kernels, "float32") == 0;
                if (rows[i] <= 150 || reader == READ_BY_ADD_NORM) // which has two rows a block on a GPU
                    reader_case(reader, rows[i], i & 1, exact || (i & 2) ? NULL : "fp8", *kernels);
            }
}

/* ---- dummy weights ---- */

/* Rows of y = x W^T with W of N(0, 1/in) have the size of x's, are like one another in nothing, and come from no zeros.
 */
static void dummies_of_a_device_are_normal_numbers(void **state) {
    (void)state;
    enum { OUT = 1024, IN = 768, ROWS = 24 };
    if (!rig_backend()->makes_dummies)
        skip();
    for (int quantised = 0; quantised < 2; quantised++) {
        struct rig *rig = rig_new((struct rig_options){.n_seqs = 1,
                                                       .lens = {ROWS},
                                                       .widths = {IN},
                                                       .kernels = "float16",
                                                       .quantization = quantised ? "fp8" : NULL,
                                                       .dummy_weights = true});
        const struct weight *w = rig_weight(rig, FORMAT_BF16, OUT, IN, NULL), *b = rig_vector(rig, OUT, -1, 1, NULL);
        w->parts[0].data = b->parts[0].data = NULL;
        rig_result(rig, op_linear(rig->p, rig->in[0], w, b));
        rig->tells_all = true;
        double *y = rig_run(rig, SCHEDULE_WHOLE), same = 0, all = 0;
        for (int t = 0; t < ROWS; t++) {
            const double *x = rig_wide_input(rig, 0, 0, t), *row = rig_at(rig, y, 0, t);
            double of_x = 0, of_y = 0, shift = 0;
            for (int i = 0; i < IN; i++)
                of_x += x[i] * x[i] / IN;
            for (int i = 0; i < OUT; i++) {
                shift += (row[i] - 1) / OUT; // the bias is in [0.9, 1.1]
                of_y += pow(row[i] - 1, 2) / OUT;
                same += (row[i] - 1) * (row[(i + OUT / 2) % OUT] - 1);
                all += pow(row[i] - 1, 2);
            }
            if (fabs(of_y / (of_x + 0.0033) - 1) > 0.25 || fabs(shift) > 0.15)
                fail_msg("row %d: mean square %.4f of %.4f, mean %.4f", t, of_y, of_x, shift);
        }
        if (fabs(same) > 0.1 * all)
            fail_msg("halves of the rows are alike: %.3f", same / all);
        rig_free(rig);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_is_x_times_w_transposed_in_every_format),
        cmocka_unit_test(linear_by_ggufs_blocks_is_the_product_of_what_the_cpu_makes_of_them),
        cmocka_unit_test(products_are_the_same_to_whoever_reads_them),
        cmocka_unit_test(dummies_of_a_device_are_normal_numbers),
        cmocka_unit_test(linear_takes_odd_shapes),
        cmocka_unit_test(linear_takes_inputs_of_every_size),
        cmocka_unit_test(linear_is_right_in_steps_of_every_size),
        cmocka_unit_test(linear_takes_random_shapes),
        cmocka_unit_test(linear_is_right_when_its_plan_is_timed_and_when_it_is_recalled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
