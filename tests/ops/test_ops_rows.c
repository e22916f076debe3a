/* test_ops_rows.c - EMBED and CONCAT: tokens to rows, columns side by side; how the tests are run is said in
 * test_ops.c. */
#include "op_judge.h"
#include "op_oracle.h"
#include "op_rig.h"
#include "op_weights.h"

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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embed_gives_the_scaled_row_of_each_token_in_every_format),
        cmocka_unit_test(tokens_without_a_row_of_the_table_are_zeros),
        cmocka_unit_test(columns_of_an_embedding_keep_their_stride),
        cmocka_unit_test(columns_stand_side_by_side),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
