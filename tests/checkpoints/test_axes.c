/* test_axes.c - what families say of the rows and columns of their weights, and runs of rows and columns of parts, of
 * every format. */
#include "op_rig.h"
#include "op_weights.h"

#include "model/families/family.h"
#include "model/model.h"

#include <glob.h>
#include <stdlib.h>

/* ---- every model says it ---- */

static bool is_sound(struct dim d) {
    int64_t once = d.n * d.unit * MAX(d.n_experts, 1);
    return d.size > 0 && d.n > 0 && d.unit > 0 && d.first >= 0 && d.axis < N_AXES && d.size % once == 0;
}

static void expect_axes(const struct op *op, const struct weight *w, const char *folder) {
    if (!is_sound(w->cols) || w->cols.size != w->in)
        fail_msg("%s: %s of %s: columns belong to nothing", folder, w->name, op_name(op->code));
    for (int i = 0; i < w->n_parts; i++)
        if (!is_sound(w->parts[i].rows) || w->parts[i].rows.size != w->parts[i].n_rows)
            fail_msg("%s: %s of %s: rows of part %d belong to nothing", folder, w->name, op_name(op->code), i);
}

/* Of a matrix in a layer one side follows an axis, but of what is small and every device has. */
static bool is_for_all(const char *name) {
    static const char *const names[] = {"router",    "mlp.gate.", "block_sparse_moe.gate.", "q_a_proj",
                                        "kv_a_proj", "per_layer", "shared_expert_gate"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (strstr(name, names[i]))
            return true;
    return false;
}

static void expect_cut_on_one_side(const struct op *op, const char *folder) {
    const struct weight *w = op->weights[0];
    bool by_rows = true, by_cols = w->cols.axis != AXIS_NONE;
    // DeepSeek's queries stand before the latent's rows, which every device has: two parts, of which the first is cut.
    bool beside_latent = w->n_parts == 2 && strstr(folder, "deepseek") && strstr(w->name, "self_attn.q_proj");
    EXPECT(!beside_latent || w->parts[1].rows.axis == AXIS_NONE);
    for (int i = 0; i < w->n_parts - beside_latent; i++)
        by_rows = by_rows && w->parts[i].rows.axis != AXIS_NONE;
    if (by_rows + by_cols != !is_for_all(w->name))
        fail_msg("%s: %s is cut on %d sides", folder, w->name, by_rows + by_cols);
}

static void every_weight_says_what_its_rows_and_columns_belong_to(void **state) {
    (void)state;
    glob_t found = {0};
    EXPECT_EQ(glob("tests/models/*/config.json", 0, NULL, &found), 0);
    EXPECT_EQ(glob("tests/models_random/*/config.json", GLOB_APPEND, NULL, &found), 0);
    EXPECT(found.gl_pathc >= 40);
    for (size_t f = 0; f < found.gl_pathc; f++) {
        struct model *m;
        struct error err;
        EXPECT_OK(model_open(found.gl_pathv[f], &(struct model_options){.load = LOAD_PHANTOM}, &m, &err), err);
        for (int i = 0; i < m->program->n_ops; i++) {
            const struct op *op = &m->program->ops[i];
            for (int k = 0; k < OP_MAX_WEIGHTS; k++)
                if (op->weights[k])
                    expect_axes(op, op->weights[k], found.gl_pathv[f]);
            if (op->code == OP_LINEAR)
                expect_cut_on_one_side(op, found.gl_pathv[f]);
        }
        model_free(m);
    }
    globfree(&found);
}

/* ---- parts of parts ---- */

enum { ROWS = 96, COLS = 192 };

static void expect_same(const struct weight_part *whole, const struct weight_part *cut, int64_t row, int64_t col,
                        int64_t n_cols, const char *format) {
    float all[COLS], some[COLS];
    for (int64_t r = 0; r < cut->n_rows; r++) {
        whole->format->row_to_f32(whole, row + r, COLS, all);
        cut->format->row_to_f32(cut, r, n_cols, some);
        if (memcmp(all + col, some, (size_t)n_cols * sizeof *all) != 0)
            fail_msg("%s: row %lld from column %lld on differs", format, (long long)(row + r), (long long)col);
    }
}

static void rows_and_columns_of_a_part_are_those_of_the_whole(void **state) {
    (void)state;
    struct rig *rig = rig_new((struct rig_options){.lens = {1}, .n_seqs = 1, .widths = {COLS}});
    for (int f = 0; f < N_FORMATS; f++) {
        const struct weight *w = rig_weight(rig, f, ROWS, COLS, NULL);
        for (int i = 0; i < w->n_parts; i++) {
            const struct weight_part *whole = &w->parts[i];
            int64_t block = weight_part_block(whole);
            for (int n = 0; n < 50; n++) {
                int64_t col = rig_between(rig, 0, (int)(COLS / block) - 1) * block,
                        n_cols = rig_between(rig, 1, (int)(COLS - col)), row = rig_between(rig, 0, (int)whole->n_rows),
                        n_rows = rig_between(rig, 0, (int)(whole->n_rows - row));
                struct weight_part rows = weight_part_rows(whole, row, n_rows), cut = weight_part_cols(&rows, col);
                expect_same(whole, &cut, row, col, n_cols, rig_format_name(f));
            }
        }
    }
    rig_free(rig);
}

static void blocks_of_columns_are_those_of_the_format(void **state) {
    (void)state;
    static const int blocks[N_FORMATS] = {
        [FORMAT_F8_BLOCK] = 16, [FORMAT_MXFP4] = 32, [FORMAT_NVFP4] = 16, [FORMAT_INT4] = 32, [FORMAT_INT8] = 32};
    struct rig *rig = rig_new((struct rig_options){.lens = {1}, .n_seqs = 1, .widths = {COLS}});
    for (int f = 0; f < N_FORMATS; f++)
        EXPECT_EQ(weight_part_block(rig_weight(rig, f, ROWS, COLS, NULL)->parts), MAX(blocks[f], 1));
    rig_free(rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_weight_says_what_its_rows_and_columns_belong_to),
        cmocka_unit_test(rows_and_columns_of_a_part_are_those_of_the_whole),
        cmocka_unit_test(blocks_of_columns_are_those_of_the_format),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
