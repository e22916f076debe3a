/* test_ops_rows.c - EMBED and LINEAR: tokens to rows, rows to rows; how the tests are run is said in test_ops.c. */
#include "op_judge.h"
#include "op_oracle.h"
#include "op_rig.h"
#include "op_weights.h"
#include "reports.h"

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
    rig_round(kernels, table, (int64_t)n_rows * width);
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

/* Tokens before `first`, and behind the table: -1 is one of the former, and other ranks have the latter. */
static void tokens_without_a_row_of_the_table_are_zeros(void **state) {
    (void)state;
    enum { FIRST = 5, ROWS = 12, WIDTH = 40 };
    for (const char *const *kernels = rig_kernels(); *kernels; kernels++) {
        struct rig *rig =
            rig_new((struct rig_options){.n_seqs = 2, .lens = {FIRST + 2, 17}, .widths = {8}, .kernels = *kernels});
        double *table;
        const struct weight *w = rig_weight(rig, FORMAT_BF16, ROWS, WIDTH, &table);
        rig_round(*kernels, table, ROWS * WIDTH);
        val y = op_embed(rig->p, w, 1);
        rig->p->ops[rig->p->n_ops - 1].args.embed.first = FIRST;
        rig_result(rig, y);
        rig->floor = 1;
        double *want = rig_rows(rig);
        RIG_EACH_ROW(rig, s, t) {
            int row = rig_row(rig, s, t) - FIRST;
            for (int i = 0; i < WIDTH && row >= 0 && row < ROWS; i++)
                rig_at(rig, want, s, t)[i] = table[row * WIDTH + i];
        }
        rig_expect_in_every_schedule(rig, want, 0, "an embedding of some tokens");
        rig_free(rig);
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

/* ---- CONCAT ---- */

static void columns_stand_side_by_side(void **state) {
    (void)state;
    for (const char *const *kernels = rig_kernels(); *kernels; kernels++)
        for (int n = 2; n <= 3; n++) {
            struct rig *rig =
                rig_new((struct rig_options){.n_seqs = 2, .lens = {3, 5}, .widths = {16, 33, 7}, .kernels = *kernels});
            rig_result(rig, op_concat(rig->p, rig->in[0], val_cols(rig->in[1], 5, 20), n == 3 ? rig->in[2] : NO_VAL));
            double *want = rig_rows(rig);
            RIG_EACH_ROW(rig, s, t) {
                double *row = rig_at(rig, want, s, t);
                for (int i = 0; i < 16; i++)
                    row[i] = (double)rig_input(rig, 0, s, t)[i];
                for (int i = 0; i < 20; i++)
                    row[16 + i] = (double)rig_input(rig, 1, s, t)[5 + i];
                for (int i = 0; i < 7 && n == 3; i++)
                    row[36 + i] = (double)rig_input(rig, 2, s, t)[i];
            }
            rig_expect_in_every_schedule(rig, want, 0, "columns side by side");
            rig_free(rig);
        }
}

/* ---- LINEAR ---- */

/* A LINEAR of random numbers, x W^T + b. */
struct linear {
    double *w, *b; // as stored, and as a device makes e4m3 of it
    int out, in;
};

static val record_linear(struct rig *rig, struct linear *l, enum rig_format format, int out, int in, bool biased) {
    *l = (struct linear){.out = out, .in = in};
    const struct weight *weight = rig_weight(rig, format, out, in, &l->w);
    const struct weight *bias = biased ? rig_vector(rig, out, -1, 1, &l->b) : NULL;
    return op_linear(rig->p, rig->in[0], weight, bias);
}

/* y of a row that is read in this way. */
static double multiply_row(const struct rig *rig, const struct linear *l, enum rig_reading how, double *x, double *y) {
    rig_read(rig->o.kernels, how, x, l->in);
    double size = rig_multiply(l->w, l->out, l->in, x, y);
    for (int o = 0; l->b && o < l->out; o++)
        y[o] += l->b[o];
    return size;
}

static double *linear_rows(struct rig *rig, const struct linear *l, enum rig_reading how) {
    double *want = rig_rows(rig);
    RIG_EACH_ROW(rig, s, t)
    rig->floor = fmax(rig->floor, multiply_row(rig, l, how, rig_wide_input(rig, 0, s, t), rig_at(rig, want, s, t)));
    return want;
}

/* By which products with a weight may be off beside those of its numbers in the element of products: of the scales that
 * a device rounds to float16 before it multiplies codes by them (linear/w4/quads_gguf.cuh). */
static double off_by_scales(enum rig_format format, const char *kernels) {
    bool rounds = format == FORMAT_Q4_K || format == FORMAT_Q6_K || format == FORMAT_Q4_K_AND_Q6_K;
    return rounds && strcmp(kernels, "float32") != 0 ? 0x1p-9 : 0;
}

static void linear_case(enum rig_format format, int out, int in, int n_rows, bool biased, const char *kernels) {
    if (!rig_takes_case())
        return;
    struct rig *rig = rig_new(
        (struct rig_options){.n_seqs = 2, .lens = {n_rows, (n_rows + 1) / 2}, .widths = {in}, .kernels = kernels});
    struct linear l;
    rig_result(rig, record_linear(rig, &l, format, out, in, biased));
    rig_round(rig->o.kernels, l.w, (int64_t)out * in);
    double *want = linear_rows(rig, &l, READING_16);
    char what[100];
    snprintf(what, sizeof what, "linear %s [%d, %d] x %d", rig_format_name(format), out, in, rig->n_rows);
    double most = 4 * sqrt(in) * EPS + off_by_scales(format, kernels);
    rig_expect(rig, want, most, SCHEDULE_WHOLE, what);
    rig_expect(rig, want, most, SCHEDULE_RAGGED, what);
    rig_free(rig);
}

/* Whether the device multiplies by e4m3: what is stored so or made so, in sides that are multiples of 16. */
static bool is_by_e4m3(enum rig_format format, int out, int in, const char *quantization, const char *kernels) {
    if (rig_backend() == &backend_cpu || strcmp(kernels, "float32") == 0 || out % 16 != 0 || in % 16 != 0)
        return false;
    return format == FORMAT_F8_CHANNEL || format == FORMAT_F8_TENSOR || format == FORMAT_F8_BLOCK ||
           (quantization && format < FORMAT_F8_CHANNEL);
}

/* LINEAR to gates and ups, and GATED_ACT: one node on a device. */
static double *gated_rows(struct rig *rig, const struct linear *l, enum activation act, enum rig_reading how) {
    double *want = rig_rows(rig), *y = rig_doubles(rig, l->out);
    RIG_EACH_ROW(rig, s, t) {
        double size = 1 + multiply_row(rig, l, how, rig_wide_input(rig, 0, s, t), y);
        rig->floor = fmax(rig->floor, size * size);
        for (int i = 0; i < l->out / 2; i++)
            rig_at(rig, want, s, t)[i] =
                y[l->out / 2 + i] * (act == ACT_SILU ? y[i] * rig_sigmoid(y[i]) : rig_sigmoid(y[i]));
    }
    return want;
}

/* LINEAR by e4m3, alone or with the GATED_ACT behind it. */
struct by_e4m3 {
    struct linear l;
    enum rig_format format;
    const enum activation *act; // NULL: alone
};

static double *rows_of(struct rig *rig, const struct by_e4m3 *c, enum rig_reading how) {
    return c->act ? gated_rows(rig, &c->l, *c->act, how) : linear_rows(rig, &c->l, how);
}

/* Against that of the numbers read, with the bounds of a product in 16 bits; and against the product of the numbers
 * stored, with those of what eight bits leave. */
static void judge_by_e4m3(struct rig *rig, struct by_e4m3 *c, const enum rig_schedule *schedules, size_t n_schedules,
                          const char *what) {
    const double *stored = rows_of(rig, c, READING_AS_IT_IS), *read[N_ROW_READINGS];
    struct rig_bounds coarse = {.most = RIG_F8_BOUND,
                                .cosine = rig->n_rows * rig->out.width >= 1000 ? RIG_F8_COSINE : 0};
    struct rig_bounds as_read = {.most = RIG_F8_READ_BOUND, .rms = RIG_F8_READ_RMS};
    if (c->act)
        coarse.most = 1;
    bool as_it_is = c->format == FORMAT_F8_CHANNEL || c->format == FORMAT_F8_TENSOR ||
                    (c->format == FORMAT_F8_BLOCK && c->l.in <= 16); // has a scale a row
    if (!as_it_is)
        for (int o = 0; o < c->l.out; o++)
            rig_round_weight_row(c->l.w + (int64_t)o * c->l.in, c->l.in);
    for (int how = 0; how < N_ROW_READINGS; how++)
        read[how] = rows_of(rig, c, (enum rig_reading)how);
    for (size_t i = 0; i < n_schedules; i++) {
        if (rig_is_brief() && schedules[i] == SCHEDULE_RAGGED)
            continue; // as CHUNK_1
        const double *got = rig_run(rig, schedules[i]), *nearest = rig_nearest(rig, got, read, N_ROW_READINGS);
        rig_judge(rig, got, nearest, as_read, schedules[i], what);
        if (c->act)
            coarse.cosine = RIG_F8_LEFT(rig_cosine(rig, nearest, stored));
        rig_judge(rig, got, stored, coarse, schedules[i], what);
    }
}

static const enum rig_schedule of_few_sequences[] = {SCHEDULE_WHOLE, SCHEDULE_RAGGED, SCHEDULE_CHUNK_1};

static void linear_by_e4m3_case(enum rig_format format, int out, int in, int n_rows, bool biased,
                                const char *quantization, const char *kernels) {
    if (!rig_takes_case())
        return;
    struct rig *rig = rig_new((struct rig_options){.n_seqs = 2,
                                                   .lens = {n_rows, (n_rows + 1) / 2},
                                                   .widths = {in},
                                                   .kernels = kernels,
                                                   .quantization = quantization});
    struct by_e4m3 c = {.format = format};
    rig_result(rig, record_linear(rig, &c.l, format, out, in, biased));
    char what[120];
    snprintf(what, sizeof what, "linear by e4m3 %s%s [%d, %d] x %d", rig_format_name(format),
             quantization ? " quantised" : "", out, in, rig->n_rows);
    judge_by_e4m3(rig, &c, of_few_sequences, ARRAY_LEN(of_few_sequences), what);
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

static void gated_linear_by_e4m3_case(int width, int in, int n_rows, enum activation act, bool biased,
                                      const char *kernels) {
    if (!rig_takes_case())
        return;
    struct rig *rig = rig_new(
        (struct rig_options){.n_seqs = 2, .lens = {n_rows, (n_rows + 1) / 2}, .widths = {in}, .kernels = kernels});
    struct by_e4m3 c = {.format = FORMAT_F8_CHANNEL, .act = &act};
    rig_result(rig, op_glu(rig->p, record_linear(rig, &c.l, FORMAT_F8_CHANNEL, 2 * width, in, biased),
                           (struct act_args){act, 7}));
    char what[100];
    snprintf(what, sizeof what, "gated linear by e4m3 [2 x %d, %d] x %d", width, in, rig->n_rows);
    judge_by_e4m3(rig, &c, of_few_sequences, ARRAY_LEN(of_few_sequences), what);
    rig_free(rig);
}

static void gated_linear_by_e4m3_is_near_the_gated_product(void **state) {
    (void)state;
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
    rig_result(rig, record_linear(rig, &c.l, FORMAT_BF16, out, in, false));
    char what[100];
    snprintf(what, sizeof what, "heavy-tailed linear by e4m3 [%d, %d] x %d", out, in, rig->n_rows);
    judge_by_e4m3(rig, &c, of_few_sequences, 1, what);
    rig_free(rig);
}

static void values_beside_large_ones_are_read_as_e4m3_has_them(void **state) {
    (void)state;
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
    val y = record_linear(rig, &l, FORMAT_BF16, OUT, in, false);
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
    static const int cases[][2] = {{18944, 3},   {3584, 7},   {18944, 40}, {512, 130},
                                   {18944, 130}, {3584, 300}, {32768, 100}};
    int most = rig_is_brief() ? 32752 : 32768; // which is as large as to be timed
    for (const char *const *kernels = rig_kernels(); *kernels; kernels++)
        for (size_t i = 0; i < ARRAY_LEN(cases); i++)
            largest_sums_case(MIN(cases[i][0], most), cases[i][1], *kernels);
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
            rig_result(rig, record_linear(rig, &l, f, 64, 160, false));
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

/* ---- LINEAR, GATED_ACT, LINEAR ---- */

/* Gates and ups, their product, and its way down, where whoever makes a value in e4m3 may give it scales of its own
 * blocks of columns. */
struct gated_down {
    struct linear up, down;
    double *x, *ups, *product, *off, *read, *step, *sorted,
        *y; // scratch, of one row; off: how far a value of the product may be off
};

/* How far a sum of products of e4m3 is off at most, of its size: what is seen, see RIG_F8_READ_BOUND. */
static const double SUM_OFF = 0.006;

static void multiply_gated(struct rig *rig, struct gated_down *c, enum rig_reading how, const double *x) {
    memcpy(c->x, x, (size_t)c->up.in * sizeof *x);
    double off = SUM_OFF * multiply_row(rig, &c->up, how, c->x, c->ups);
    for (int i = 0; i < c->down.in; i++) {
        double gate = c->ups[i], up = c->ups[c->down.in + i];
        c->product[i] = gate * rig_sigmoid(gate) * up;
        c->off[i] =
            off * (fabs(gate) + fabs(up)) + SUM_OFF * fabs(c->product[i]); // and the scale with the row's largest
    }
}

/* y of the product that is read in this way. */
static double multiply_down(const struct rig *rig, struct gated_down *c, enum rig_reading how) {
    memcpy(c->read, c->product, (size_t)c->down.in * sizeof *c->read);
    return multiply_row(rig, &c->down, how, c->read, c->y);
}

/* What read[i] may be as well, less itself: its neighbour in e4m3, a sixteenth to an eighth of itself off, or a few
 * units of subnormals; 0 for nothing else. */
static void find_steps(const struct rig *rig, struct gated_down *c, enum rig_reading how, int side) {
    const int n = c->down.in;
    for (int i = 0; i < n; i++)
        c->step[i] = c->product[i] + side * c->off[i];
    rig_read(rig->o.kernels, how, c->step, n);
    for (int i = 0; i < n; i++) {
        c->step[i] -= c->read[i];
        if (fabs(c->step[i]) <= fabs(c->read[i]) / 32) // the same number, by a scale that is a little off
            c->step[i] = 0;
    }
}

static int by_size(const void *a, const void *b) {
    double x = fabs(*(const double *)a), y = fabs(*(const double *)b);
    return (x < y) - (x > y);
}

/* Of the steps the largest alone, fewer than there are columns to tell them by: the others are small, and many. */
static void leave_large_steps(struct gated_down *c) {
    const int n = c->down.in, most = c->down.out / 4;
    memcpy(c->sorted, c->step, (size_t)n * sizeof *c->step);
    qsort(c->sorted, (size_t)n, sizeof *c->sorted, by_size);
    for (int i = 0; most < n && i < n; i++)
        if (fabs(c->step[i]) <= fabs(c->sorted[most]))
            c->step[i] = 0;
}

/* Takes those steps with which y is nearer to what was got, and back those that it is nearer without. */
static void take_steps(struct gated_down *c, const double *got, double *y) {
    const int n = c->down.in, out = c->down.out;
    bool moved = true;
    for (int pass = 0; moved && pass < 8; pass++) {
        moved = false;
        for (int i = 0; i < n; i++) {
            double nearer = 0, step = c->step[i];
            const double *w = c->down.w + i;
            for (int o = 0; step != 0 && o < out; o++)
                nearer += step * w[(int64_t)o * n] * (2 * (got[o] - y[o]) - step * w[(int64_t)o * n]);
            if (!(nearer > 0))
                continue;
            for (int o = 0; o < out; o++)
                y[o] += step * w[(int64_t)o * n];
            c->step[i] = -step;
            moved = true;
        }
    }
}

/* Of all ways to read x and then the product, the row that is nearest to what was got, once a number that lies in the
 * middle between two of e4m3 is the one with which it is nearer. Returns the size of such a sum. */
static double nearest_down_row(struct rig *rig, struct gated_down *c, const double *x, const double *got,
                               double *want) {
    double far[N_ROW_READINGS][N_READINGS], least = INFINITY, nearest = INFINITY, size = 0;
    for (int first = 0; first < N_ROW_READINGS; first++) {
        multiply_gated(rig, c, (enum rig_reading)first, x);
        for (int second = 0; second < N_READINGS; second++) {
            size = multiply_down(rig, c, (enum rig_reading)second);
            far[first][second] = rig_distance(got, c->y, c->down.out);
            least = fmin(least, far[first][second]);
        }
    }
    for (int first = 0; first < N_ROW_READINGS; first++) {
        multiply_gated(rig, c, (enum rig_reading)first, x);
        for (int second = 0; second < N_READINGS; second++) {
            if (far[first][second] > 4 * least)
                continue;
            multiply_down(rig, c, (enum rig_reading)second);
            for (int side = -1; side <= 1; side += 2) {
                find_steps(rig, c, (enum rig_reading)second, side);
                leave_large_steps(c);
                take_steps(c, got, c->y);
            }
            double requantised = rig_distance(got, c->y, c->down.out);
            if (requantised >= nearest)
                continue;
            nearest = requantised;
            memcpy(want, c->y, (size_t)c->down.out * sizeof *want);
        }
    }
    return size;
}

static void down_case(int ffn, int width, int n_rows, const char *kernels) {
    if (!rig_takes_case())
        return;
    struct rig_options o = {.n_seqs = 2, .lens = {n_rows, (n_rows + 1) / 2}, .widths = {width}, .kernels = kernels};
    struct rig *rig = rig_new(n_rows ? o : rig_sizes(o));
    struct gated_down c;
    val gated = op_glu(rig->p, record_linear(rig, &c.up, FORMAT_F8_CHANNEL, 2 * ffn, width, false),
                       (struct act_args){ACT_SILU, 0});
    c.down = (struct linear){.out = width, .in = ffn};
    const struct weight *weight = rig_weight(rig, FORMAT_F8_CHANNEL, width, ffn, &c.down.w);
    rig_result(rig, op_linear(rig->p, gated, weight, NULL));
    c.x = rig_doubles(rig, width), c.y = rig_doubles(rig, width), c.ups = rig_doubles(rig, 2 * ffn),
    c.product = rig_doubles(rig, ffn);
    c.off = rig_doubles(rig, ffn), c.read = rig_doubles(rig, ffn), c.step = rig_doubles(rig, ffn),
    c.sorted = rig_doubles(rig, ffn);
    char what[100];
    snprintf(what, sizeof what, "down [%d, %d] of gated x %d", width, ffn, n_rows);
    static const enum rig_schedule few[] = {SCHEDULE_WHOLE, SCHEDULE_CHUNK_1};
    for (int i = 0; i < (n_rows ? 2 : 1); i++) {
        enum rig_schedule schedule = n_rows ? few[i] : SCHEDULE_SIZES;
        double *got = rig_run(rig, schedule), *want = rig_rows(rig);
        RIG_EACH_ROW(rig, s, t) {
            const double *x = rig_wide_input(rig, 0, s, t), *got_row = rig_at(rig, got, s, t);
            if (rig_tells(rig, rig_row(rig, s, t)))
                rig->floor = fmax(rig->floor, nearest_down_row(rig, &c, x, got_row, rig_at(rig, want, s, t)));
        }
        rig_judge(rig, got, want, (struct rig_bounds){.most = RIG_F8_REQUANT_BOUND}, schedule, what);
        double rms = rig_rms(rig, got, want); // of a few rows too, as it is what tells readings apart
        if (!(rms <= RIG_F8_REQUANT_RMS))
            fail_msg("%s, schedule %d, %s: rms %.3g of %.3g", what, (int)schedule, kernels, rms, RIG_F8_REQUANT_RMS);
    }
    rig_free(rig);
}

static void what_a_gated_product_hands_on_is_read_as_it_was_written(void **state) {
    (void)state;
    static const int shapes[][3] = {{128, 256, 1},   {640, 512, 5},  {384, 128, 40},  {272, 400, 33},
                                    {512, 256, 130}, {256, 384, 64}, {11264, 48, 70}, {256, 128, 0}};
    for (const char *const *kernels = rig_kernels(); *kernels; kernels++)
        for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
            if (is_by_e4m3(FORMAT_F8_CHANNEL, shapes[i][0], shapes[i][1], NULL, *kernels) &&
                (shapes[i][2] > 0 || !rig_is_brief()))
                down_case(shapes[i][0], shapes[i][1], shapes[i][2], *kernels);
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
    val y = record_linear(rig, &c.l, format, out, in, true);
    rig_result(rig, gated ? op_glu(rig->p, y, (struct act_args){act, 0}) : y);
    char what[100];
    snprintf(what, sizeof what, "%s %s in steps of every size", gated ? "gated linear" : "linear",
             rig_format_name(format));
    if (is_by_e4m3(format, out, in, NULL, kernels)) {
        judge_by_e4m3(rig, &c, &sizes, 1, what);
    } else {
        rig_round(rig->o.kernels, c.l.w, (int64_t)out * in);
        rig_expect(rig, rows_of(rig, &c, READING_16), 8 * sqrt(in) * EPS, sizes, what);
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

/* ---- LINEAR and the GATED_ACT behind it: a backend may make one node of them ---- */

static void gated_pair_case(enum rig_format format, int width, int in, int n_rows, bool biased, const char *kernels) {
    if (!rig_takes_case())
        return;
    int out = 2 * width;
    struct rig *rig = rig_new(
        (struct rig_options){.n_seqs = 2, .lens = {n_rows, (n_rows + 1) / 2}, .widths = {in}, .kernels = kernels});
    struct linear l;
    rig_result(rig, op_glu(rig->p, record_linear(rig, &l, format, out, in, biased), (struct act_args){ACT_SILU, 0}));
    rig_round(rig->o.kernels, l.w, (int64_t)out * in);
    double *want = gated_rows(rig, &l, ACT_SILU, READING_16);
    char what[100];
    snprintf(what, sizeof what, "linear and gated_act %s [%d, %d] x %d", rig_format_name(format), out, in, rig->n_rows);
    double most = 8 * sqrt(in) * EPS + 2 * off_by_scales(format, kernels);
    rig_expect(rig, want, most, SCHEDULE_WHOLE, what);
    rig_expect(rig, want, most, SCHEDULE_RAGGED, what);
    rig_free(rig);
}

/* Half precision ends at 65504. Every other row makes gates and ups of some thousands, whose products it cuts to that:
 * these rows are counted where the LINEAR behind reads them, in the first step that is looked at, and no others. */
static void rows_that_half_precision_cuts_are_counted_case(enum rig_format format, int n_rows,
                                                           const char *quantization) {
    enum { WIDTH = 96, IN = 64 };
    if (!rig_takes_case())
        return;
    struct rig *rig = rig_new((struct rig_options){.n_seqs = 2,
                                                   .lens = {n_rows, n_rows + 1},
                                                   .widths = {IN},
                                                   .kernels = "float16",
                                                   .quantization = quantization,
                                                   .begins_clean = true});
    int n_cut = 0;
    for (int i = 0; i < rig->n_rows; i += 2, n_cut++)
        for (int k = 0; k < rig->width; k++)
            rig->table[(int64_t)i * rig->width + k] *= 400;
    struct linear l;
    val acted = op_glu(rig->p, record_linear(rig, &l, format, 2 * WIDTH, IN, false), (struct act_args){ACT_SILU, 0});
    rig_result(rig, op_linear(rig->p, acted, rig_weight(rig, format, 32, WIDTH, NULL), NULL));
    rig_run(rig, SCHEDULE_WHOLE);
    int64_t told = report_of(rig->ops, rig->at.exe, "cut_rows_total");
    EXPECT_EQ(report_of(rig->ops, rig->at.exe, "watched_steps_total"), 1);
    if (told != n_cut)
        fail_msg("%s%s, %d rows: %lld were cut, %d are told", rig_format_name(format), quantization ? " quantised" : "",
                 rig->n_rows, (long long)told, n_cut);
    rig_free(rig);
}

static void rows_that_half_precision_cuts_are_counted(void **state) {
    (void)state;
    static const int sizes[] = {9, 20, 70, 300}; // steps of fewer a sequence are graphs, which are not looked at
    if (rig_backend() == &backend_cpu)
        skip(); // which has float32
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        rows_that_half_precision_cuts_are_counted_case(FORMAT_BF16, sizes[i], NULL);
        rows_that_half_precision_cuts_are_counted_case(FORMAT_BF16, sizes[i], "fp8");
        rows_that_half_precision_cuts_are_counted_case(FORMAT_F8_CHANNEL, sizes[i], NULL);
    }
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
    for (const char *const *kernels = rig_kernels(); *kernels && rig_backend() != &backend_cpu; kernels++)
        for (enum rig_format f = FORMAT_Q4_0; f < FORMAT_Q4_K_AND_Q6_K; f++)
            gated_pair_case(f, 40, 256, f % 2 ? 7 : 40, f % 2, *kernels);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embed_gives_the_scaled_row_of_each_token_in_every_format),
        cmocka_unit_test(tokens_without_a_row_of_the_table_are_zeros),
        cmocka_unit_test(columns_of_an_embedding_keep_their_stride),
        cmocka_unit_test(columns_stand_side_by_side),
        cmocka_unit_test(linear_is_x_times_w_transposed_in_every_format),
        cmocka_unit_test(linear_by_ggufs_blocks_is_the_product_of_what_the_cpu_makes_of_them),
        cmocka_unit_test(linear_by_e4m3_is_near_the_product_of_the_numbers_stored),
        cmocka_unit_test(products_are_the_same_to_whoever_reads_them),
        cmocka_unit_test(dummies_of_a_device_are_normal_numbers),
        cmocka_unit_test(gated_linear_by_e4m3_is_near_the_gated_product),
        cmocka_unit_test(values_beside_large_ones_are_read_as_e4m3_has_them),
        cmocka_unit_test(sums_of_e4m3_that_are_as_large_as_any_are_finite_and_right),
        cmocka_unit_test(linear_takes_odd_shapes),
        cmocka_unit_test(linear_takes_inputs_of_every_size),
        cmocka_unit_test(what_a_gated_product_hands_on_is_read_as_it_was_written),
        cmocka_unit_test(linear_is_right_in_steps_of_every_size),
        cmocka_unit_test(linear_takes_random_shapes),
        cmocka_unit_test(linear_is_right_when_its_plan_is_timed_and_when_it_is_recalled),
        cmocka_unit_test(rows_that_half_precision_cuts_are_counted),
        cmocka_unit_test(a_gated_projection_is_its_two_halves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
