/* test_ops_rows.c - EMBED and LINEAR: tokens to rows, rows to rows; how the tests are run is said in test_ops.c. */
#include "op_rig.h"

#include <math.h>

/* ---- EMBED ---- */

/* The rig's token ids are its rows', and one more for poison. A table row is decoded and scaled in float32. */
static void embed_case(enum rig_format format, float scale, const char *kernels) {
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

static void linear_case(enum rig_format format, int out, int in, int n_rows, bool biased, const char *kernels) {
    struct rig *rig = rig_new((struct rig_options){.n_seqs = 2, .lens = {n_rows, (n_rows + 1) / 2}, .widths = {in}, .kernels = kernels});
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embed_gives_the_scaled_row_of_each_token_in_every_format),
        cmocka_unit_test(columns_of_an_embedding_keep_their_stride),
        cmocka_unit_test(linear_is_x_times_w_transposed_in_every_format),
        cmocka_unit_test(linear_takes_odd_shapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
