/* test_ops_rows.c - EMBED and LINEAR: tokens to rows, rows to rows; how the tests are run is said in test_ops.c. */
#include "op_rig.h"

#include <math.h>

/* ---- EMBED ---- */

/* The rig's token ids are its rows', and one more for poison. A table row is decoded and scaled in float32. */
static void embed_case(enum rig_format format, float scale, const char *kernels) {
    if (!rig_takes_case())
        return;
    int width = 96;
    struct rig *rig = rig_new((struct rig_options){.n_seqs = 3, .lens = {40, 1, 9}, .widths = {8}, .kernels = kernels});
    double *table;
    int n_rows = rig->n_rows + 1 + (rig->n_rows + 1) % 2; // even: two parts of every other row are possible
    const struct weight *w = rig_weight(rig, format, n_rows, width, &table);
    rig_result(rig, op_embed(rig->p, w, scale));
    double *want = rig_rows(rig);
    RIG_EACH_ROW(rig, s, t) {
        const double *row = table + (int64_t)rig_row(rig, s, t) * width;
        for (int i = 0; i < width; i++)
            rig_at(rig, want, s, t)[i] = (double)((float)row[i] * scale);
    }
    char what[60];
    snprintf(what, sizeof what, "embed %s x %g", rig_format_name(format), (double)scale);
    rig_expect_in_every_schedule(rig, want, scale == 1 && format < FORMAT_F8_CHANNEL ? 0 : 2 * EPS, what);
    rig_free(rig);
}

static void embed_gives_the_scaled_row_of_each_token_in_every_format(void **state) {
    (void)state;
    for (const char *const *kernels = rig_kernels(); *kernels; kernels++)
        for (enum rig_format f = 0; f < N_FORMATS; f++) {
            embed_case(f, 1, *kernels);
            embed_case(f, 11.3125f, *kernels); // Gemma's sqrt(hidden_size), rounded to bf16
        }
}

static void columns_of_an_embedding_keep_their_stride(void **state) {
    (void)state;
    for (const char *const *kernels = rig_kernels(); *kernels; kernels++) {
        struct rig *rig = rig_new((struct rig_options){.n_seqs = 1, .lens = {1}, .widths = {33}, .kernels = *kernels});
        rig_result(rig, val_cols(rig->in[0], 3, 17));
        double *want = rig_rows(rig);
        for (int i = 0; i < 17; i++)
            want[i] = (double)rig_input(rig, 0, 0, 0)[3 + i];
        rig_expect_in_every_schedule(rig, want, 0, "columns of an embedding");
        rig_free(rig);
    }
}

/* ---- LINEAR ---- */

/* Ends the program with x W^T + b of random numbers; returns what it should be. */
static double *record_linear(struct rig *rig, enum rig_format format, int out, int in, bool biased) {
    double *w, *b = NULL;
    const struct weight *weight = rig_weight(rig, format, out, in, &w);
    const struct weight *bias = biased ? rig_vector(rig, out, -1, 1, &b) : NULL;
    rig_result(rig, op_linear(rig->p, rig->in[0], weight, bias));
    double *want = rig_rows(rig);
    RIG_EACH_ROW(rig, s, t) {
        double *y = rig_at(rig, want, s, t);
        rig->floor = fmax(rig->floor, rig_multiply(w, out, in, rig_wide_input(rig, 0, s, t), y));
        for (int o = 0; b && o < out; o++)
            y[o] += b[o];
    }
    return want;
}

static void linear_case(enum rig_format format, int out, int in, int n_rows, bool biased, const char *kernels) {
    if (!rig_takes_case())
        return;
    struct rig *rig = rig_new((struct rig_options){.n_seqs = 2, .lens = {n_rows, (n_rows + 1) / 2}, .widths = {in}, .kernels = kernels});
    double *want = record_linear(rig, format, out, in, biased);
    char what[100];
    snprintf(what, sizeof what, "linear %s [%d, %d] x %d", rig_format_name(format), out, in, rig->n_rows);
    rig_expect(rig, want, 4 * sqrt(in) * EPS, SCHEDULE_WHOLE, what);
    rig_expect(rig, want, 4 * sqrt(in) * EPS, SCHEDULE_RAGGED, what);
    rig_free(rig);
}

/* Whether the device multiplies by e4m3: what is stored so or made so, in sides that are multiples of 16. */
static bool is_by_e4m3(enum rig_format format, int out, int in, const char *quantization, const char *kernels) {
    if (rig_backend() == &backend_cpu || strcmp(kernels, "float32") == 0 || out % 16 != 0 || in % 16 != 0)
        return false;
    return format == FORMAT_F8_CHANNEL || format == FORMAT_F8_BLOCK || (quantization && format < FORMAT_F8_CHANNEL);
}

static void linear_by_e4m3_case(enum rig_format format, int out, int in, int n_rows, bool biased, const char *quantization,
                                const char *kernels) {
    if (!rig_takes_case())
        return;
    struct rig *rig = rig_new((struct rig_options){
        .n_seqs = 2, .lens = {n_rows, (n_rows + 1) / 2}, .widths = {in}, .kernels = kernels, .quantization = quantization});
    double *want = record_linear(rig, format, out, in, biased);
    static const enum rig_schedule schedules[] = {SCHEDULE_WHOLE, SCHEDULE_RAGGED, SCHEDULE_CHUNK_1};
    for (size_t i = 0; i < ARRAY_LEN(schedules); i++) {
        const double *got = rig_run(rig, schedules[i]);
        double error = rig_error(rig, got, want), cosine = rig_cosine(rig, got, want);
        if (!(error <= RIG_F8_BOUND) || (rig->n_rows * out >= 1000 && !(cosine >= RIG_F8_COSINE)))
            fail_msg("e4m3 linear %s%s [%d, %d] x %d, %s, schedule %d: error %.3g over %.3g or cosine %.6f under %.3f",
                     rig_format_name(format), quantization ? " quantised" : "", out, in, rig->n_rows, kernels, schedules[i], error,
                     RIG_F8_BOUND, cosine, RIG_F8_COSINE);
    }
    rig_free(rig);
}

static void linear_is_x_times_w_transposed_in_every_format(void **state) {
    (void)state;
    static const int shapes[][3] = {{96, 128, 1}, {50, 192, 5}, {34, 64, 21}, {200, 896, 70}};
    for (const char *const *kernels = rig_kernels(); *kernels; kernels++)
        for (enum rig_format f = 0; f < N_FORMATS; f++)
            for (int i = 0; i < (int)ARRAY_LEN(shapes); i++)
                if (!is_by_e4m3(f, shapes[i][0], shapes[i][1], NULL, *kernels))
                    linear_case(f, shapes[i][0], shapes[i][1], shapes[i][2], i == 1 || i == 2, *kernels);
}

/* On a device that has them: from one row to more than any kernel for a few rows takes, with a bias and without. */
static void linear_by_e4m3_is_near_the_product_of_the_numbers_stored(void **state) {
    (void)state;
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

enum reader { READ_BY_GATED_ACT, READ_BY_ADD_NORM, READ_BY_NORMED_ADD_NORM, READ_BY_TWO, READ_BY_QKV_PREP, N_READERS };

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
    if (reader == READ_BY_NORMED_ADD_NORM)
        y = op_norm(p, y, NO_VAL, rig_vector(rig, y.width, 0.5, 1.5, &w[1]),
                    (struct norm_args){.eps = 1e-5f, .group = y.width, .scale = 1});
    val r = op_add_norm(p, x, y, rig_vector(rig, y.width, 0.5, 1.5, &w[0]), NULL, norm).y;
    return reader == READ_BY_TWO ? op_gated_add(p, r, y, NO_VAL) : r;
}

static void want_of_reader(enum reader reader, const double *x, double *y, int n, double **w, double *want) {
    if (reader == READ_BY_GATED_ACT) {
        for (int i = 0; i < n / 2; i++)
            want[i] = y[i] * rig_sigmoid(y[i]) * y[n / 2 + i];
        return;
    }
    for (int h = 0; reader == READ_BY_QKV_PREP && h < 4; h++)
        rig_rms_norm(y + 64 * h, w[0], 64, 1e-5, false, want + 64 * h);
    if (reader == READ_BY_QKV_PREP)
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
    struct rig *rig = rig_new((struct rig_options){
        .n_seqs = 2, .lens = {n_rows, (n_rows + 1) / 2}, .widths = {IN}, .kernels = kernels, .quantization = quantization});
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
    for (size_t i = 0; i < ARRAY_LEN(schedules); i++) {
        double cosine = rig_cosine(rig, rig_run(rig, schedules[i]), want), least = coarse ? 0.998 : 0.9999; // an act squares what is off
        if (!(cosine >= least))
            fail_msg("reader %d of %d rows of products%s, %s, schedule %d: cosine %.6f under %.4f", (int)reader, n_rows,
                     quantization ? " quantised" : "", kernels, schedules[i], cosine, least);
    }
    rig_free(rig);
}

static void products_are_the_same_to_whoever_reads_them(void **state) {
    (void)state;
    static const int rows[] = {1, 7, 40, 150};
    for (const char *const *kernels = rig_kernels(); *kernels; kernels++)
        for (enum reader reader = 0; reader < N_READERS; reader++)
            for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
                bool exact = rig_backend() == &backend_cpu || strcmp(*kernels, "float32") == 0;
                reader_case(reader, rows[i], i & 1, exact || (i & 2) ? NULL : "fp8", *kernels);
            }
}

/* Rows of y = x W^T with W of N(0, 1/in) have the size of x's, are like one another in nothing, and come from no zeros. */
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

/* LINEAR to gates and ups, and GATED_ACT: one node on a device. What is rounded to e4m3 is multiplied by what else is. */
static void gated_linear_by_e4m3_case(int width, int in, int n_rows, enum activation act, bool biased, const char *kernels) {
    if (!rig_takes_case())
        return;
    struct rig *rig = rig_new((struct rig_options){.n_seqs = 2, .lens = {n_rows, (n_rows + 1) / 2}, .widths = {in}, .kernels = kernels});
    double *w, *b = NULL, *y = calloc((size_t)width * 2, sizeof *y);
    const struct weight *weight = rig_weight(rig, FORMAT_F8_CHANNEL, 2 * width, in, &w);
    const struct weight *bias = biased ? rig_vector(rig, 2 * width, -1, 1, &b) : NULL;
    rig_result(rig, op_glu(rig->p, op_linear(rig->p, rig->in[0], weight, bias), (struct act_args){act, 7}));
    double *want = rig_rows(rig);
    RIG_EACH_ROW(rig, s, t) {
        rig_multiply(w, 2 * width, in, rig_wide_input(rig, 0, s, t), y);
        for (int i = 0; i < width; i++) {
            double g = y[i] + (b ? b[i] : 0), u = y[width + i] + (b ? b[width + i] : 0);
            rig_at(rig, want, s, t)[i] = u * (act == ACT_SILU ? g * rig_sigmoid(g) : rig_sigmoid(g));
        }
    }
    static const enum rig_schedule schedules[] = {SCHEDULE_WHOLE, SCHEDULE_RAGGED, SCHEDULE_CHUNK_1};
    for (size_t i = 0; i < ARRAY_LEN(schedules); i++) {
        double cosine = rig_cosine(rig, rig_run(rig, schedules[i]), want);
        if (!(cosine >= 0.997))
            fail_msg("gated e4m3 linear [2 x %d, %d] x %d, %s, schedule %d: cosine %.6f", width, in, rig->n_rows, kernels, schedules[i],
                     cosine);
    }
    free(y);
    rig_free(rig);
}

static void gated_linear_by_e4m3_is_near_the_gated_product(void **state) {
    (void)state;
    static const int shapes[][3] = {{48, 256, 1}, {144, 512, 5}, {208, 896, 13}, {504, 1040, 40}, {320, 272, 85}, {96, 512, 130}};
    for (const char *const *kernels = rig_kernels(); *kernels; kernels++)
        for (int i = 0; i < (int)ARRAY_LEN(shapes); i++)
            if (is_by_e4m3(FORMAT_F8_CHANNEL, 2 * shapes[i][0], shapes[i][1], NULL, *kernels))
                gated_linear_by_e4m3_case(shapes[i][0], shapes[i][1], shapes[i][2], i & 2 ? ACT_SIGMOID : ACT_SILU, i & 1, *kernels);
}

static void linear_takes_odd_shapes(void **state) {
    (void)state;
    static const int shapes[][3] = {{1, 1, 1}, {1, 2048, 3}, {3, 17, 2}, {33, 31, 9}, {6, 130, 13}, {257, 70, 33}, {64, 5, 100}};
    for (const char *const *kernels = rig_kernels(); *kernels; kernels++)
        for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
            for (enum rig_format f = 0; f < FORMAT_F8_CHANNEL; f++)
                linear_case(f, shapes[i][0], shapes[i][1], shapes[i][2], i & 1, *kernels);
}

/* Down to where a float is no longer normal: what of a number is too small for a format is nothing, not something else. */
static void linear_takes_inputs_of_every_size(void **state) {
    (void)state;
    for (const char *const *kernels = rig_kernels(); *kernels; kernels++)
        for (enum rig_format f = 0; f < FORMAT_F8_CHANNEL; f++) {
            if (strcmp(*kernels, "float16") == 0 || !rig_takes_case()) // which refuses the rig's table
                continue;
            struct rig *rig = rig_new((struct rig_options){.n_seqs = 2, .lens = {9, 4}, .widths = {160}, .kernels = *kernels});
            for (int64_t i = 0; i < (int64_t)rig->n_rows * rig->width; i++)
                rig->table[i] = i % 5 ? ldexpf(rig->table[i], -rig_between(rig, 100, 140)) : rig->table[i];
            double *want = record_linear(rig, f, 64, 160, false);
            rig_expect(rig, want, 4 * sqrt(160) * EPS, SCHEDULE_WHOLE, "linear of inputs of every size");
            rig_free(rig);
        }
}

/* Large enough for a device to look for the fastest way, and to keep what it found for the second time. */
static void linear_is_right_when_its_plan_is_timed_and_when_it_is_recalled(void **state) {
    (void)state;
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

/* ---- LINEAR and the GATED_ACT behind it: a backend may make one node of them ---- */

static void gated_pair_case(enum rig_format format, int width, int in, int n_rows, bool biased, const char *kernels) {
    if (!rig_takes_case())
        return;
    int out = 2 * width;
    struct rig *rig = rig_new((struct rig_options){.n_seqs = 2, .lens = {n_rows, (n_rows + 1) / 2}, .widths = {in}, .kernels = kernels});
    double *w, *b = NULL, *made = rig_doubles(rig, out);
    const struct weight *weight = rig_weight(rig, format, out, in, &w);
    const struct weight *bias = biased ? rig_vector(rig, out, -1, 1, &b) : NULL;
    rig_result(rig, op_glu(rig->p, op_linear(rig->p, rig->in[0], weight, bias), (struct act_args){ACT_SILU, 0}));
    double *want = rig_rows(rig);
    RIG_EACH_ROW(rig, s, t) {
        double size = 1 + rig_multiply(w, out, in, rig_wide_input(rig, 0, s, t), made);
        rig->floor = fmax(rig->floor, size * size);
        for (int o = 0; b && o < out; o++)
            made[o] += b[o];
        for (int i = 0; i < width; i++)
            rig_at(rig, want, s, t)[i] = made[i] * rig_sigmoid(made[i]) * made[width + i];
    }
    char what[100];
    snprintf(what, sizeof what, "linear and gated_act %s [%d, %d] x %d", rig_format_name(format), out, in, rig->n_rows);
    rig_expect(rig, want, 8 * sqrt(in) * EPS, SCHEDULE_WHOLE, what);
    rig_expect(rig, want, 8 * sqrt(in) * EPS, SCHEDULE_RAGGED, what);
    rig_free(rig);
}

static void a_gated_projection_is_its_two_halves(void **state) {
    (void)state;
    static const enum rig_format formats[] = {FORMAT_BF16, FORMAT_BF16_SPLIT, FORMAT_F8_CHANNEL};
    for (const char *const *kernels = rig_kernels(); *kernels; kernels++)
        for (size_t f = 0; f < ARRAY_LEN(formats); f++) {
            if (!is_by_e4m3(formats[f], 2 * 96, 128, NULL, *kernels))
                gated_pair_case(formats[f], 96, 128, 1, false, *kernels);
            gated_pair_case(formats[f], 51, 208, 5, true, *kernels);
            gated_pair_case(formats[f], 34, 64, 21, true, *kernels);
            if (!is_by_e4m3(formats[f], 2 * 200, 896, NULL, *kernels)) // which another test holds
                gated_pair_case(formats[f], 200, 896, 70, false, *kernels);
            gated_pair_case(formats[f], 17, 22, 3, true, *kernels);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embed_gives_the_scaled_row_of_each_token_in_every_format),
        cmocka_unit_test(columns_of_an_embedding_keep_their_stride),
        cmocka_unit_test(linear_is_x_times_w_transposed_in_every_format),
        cmocka_unit_test(linear_by_e4m3_is_near_the_product_of_the_numbers_stored),
        cmocka_unit_test(products_are_the_same_to_whoever_reads_them),
        cmocka_unit_test(dummies_of_a_device_are_normal_numbers),
        cmocka_unit_test(gated_linear_by_e4m3_is_near_the_gated_product),
        cmocka_unit_test(linear_takes_odd_shapes),
        cmocka_unit_test(linear_takes_inputs_of_every_size),
        cmocka_unit_test(linear_is_right_when_its_plan_is_timed_and_when_it_is_recalled),
        cmocka_unit_test(a_gated_projection_is_its_two_halves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
