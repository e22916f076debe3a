/* test_program.c - the recorder, the memory planner and EXPLAIN. */
#include "check.h"

#include "base/random.h"
#include "base/status.h"
#include "core/program.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static struct weight matrix(const char *name, int64_t out, int64_t in) {
    static struct weight_part part = {.format = &qformat_plain, .dtype = DT_BF16, .col_stride = 1};
    return (struct weight){.name = name, .out = out, .in = in, .n_parts = 1, .parts = &part};
}

/* ---- memory ---- */

static int64_t value_bytes(const struct value *v, int64_t max_tokens, int64_t max_rows) {
    return (v->rows == ROWS_TOKENS ? max_tokens : max_rows) * v->width * (int64_t)dtype_bytes(v->dtype);
}

/* Ops that read random earlier values, so that lives are of every length and nest in every way. */
static struct program *random_program(uint64_t seed, const struct weight *table, struct weight *w) {
    struct program *p = program_new("random");
    val known[64];
    int n = 0;
    known[n++] = op_embed(p, table, 1);
    for (uint64_t i = 0; n < 60; i++) {
        struct philox r = philox4x32(seed, i, 0);
        val x = known[r.v[0] % (unsigned)n], y = known[r.v[1] % (unsigned)n];
        if (x.width == y.width && r.v[2] % 3 == 0) {
            known[n++] = op_gated_add(p, x, y, NO_VAL);
        } else {
            w[n] = matrix("w", 1 + r.v[2] % 300, x.width);
            known[n] = op_linear(p, x, &w[n], NULL);
            n++;
        }
    }
    op_sample(p, op_take_rows(p, known[n - 1]));
    return p;
}

static void values_that_live_together_never_overlap(void **state) {
    (void)state;
    struct weight table = matrix("table", 10, 64), w[64];
    for (uint64_t round = 0; round < 50; round++) {
        struct program *p = random_program(test_seed() + round, &table, w);
        int64_t offset[128], max_tokens = 1 + (int64_t)(round * 37 % 200), max_rows = 1 + (int64_t)round % 9, sum = 0;
        EXPECT(p->n_values <= 128);
        int64_t total = program_plan_memory(p, max_tokens, max_rows, offset);
        for (int i = 0; i < p->n_values; i++) {
            const struct value *a = &p->values[i];
            int64_t end = offset[i] + value_bytes(a, max_tokens, max_rows);
            sum += value_bytes(a, max_tokens, max_rows) + 64;
            EXPECT(offset[i] >= 0 && offset[i] % 64 == 0 && end <= total);
            for (int j = 0; j < i; j++) {
                const struct value *b = &p->values[j];
                bool apart_in_time = a->first_use > b->last_use || b->first_use > a->last_use;
                bool apart_in_memory =
                    end <= offset[j] || offset[i] >= offset[j] + value_bytes(b, max_tokens, max_rows);
                EXPECT(apart_in_time || apart_in_memory);
            }
        }
        EXPECT(total <= sum);
        program_free(p);
    }
}

/* A chain needs room for a value and its successor, however long it is. */
static void a_long_chain_takes_the_room_of_its_widest_pair(void **state) {
    (void)state;
    struct program *p = program_new("chain");
    struct weight table = matrix("table", 10, 64), square = matrix("w", 64, 64);
    val x = op_embed(p, &table, 1);
    for (int i = 0; i < 100; i++)
        x = op_linear(p, x, &square, NULL);
    int64_t *offset = xcalloc((size_t)p->n_values, sizeof *offset);
    EXPECT_EQ(program_plan_memory(p, 32, 1, offset), 2 * 32 * 64 * 4);
    free(offset);
    program_free(p);
}

/* ---- recording ---- */

static void caches_of_one_shape_and_window_share_a_group(void **state) {
    (void)state;
    struct program *p = program_new("groups");
    EXPECT_EQ(program_cache_kv(p, 2, 64, 64, 0), 0);
    EXPECT_EQ(program_cache_kv(p, 2, 64, 64, 128), 1);
    EXPECT_EQ(program_cache_kv(p, 2, 64, 64, 0), 2);
    EXPECT_EQ(program_cache_latent(p, 576), 3);
    EXPECT_EQ(program_cache_state(p, 100, 1000), 4);
    EXPECT_EQ(p->n_groups, 4);
    EXPECT_EQ(p->caches[2].group, p->caches[0].group);
    EXPECT_EQ(p->caches[2].index, 1);
    EXPECT(p->caches[1].group != p->caches[0].group);
    EXPECT_EQ(p->groups[p->caches[4].group].state_floats, 1100);
    program_free(p);
}

static void a_rope_is_numbered_once(void **state) {
    (void)state;
    struct program *p = program_new("ropes");
    struct rope a = {.dim = 2}, b = {.dim = 4};
    EXPECT_EQ(program_rope(p, &a), 0);
    EXPECT_EQ(program_rope(p, &b), 1);
    EXPECT_EQ(program_rope(p, &a), 0);
    program_free(p);
}

static void lives_run_from_the_defining_op_to_the_last_reader(void **state) {
    (void)state;
    struct program *p = program_new("lives");
    struct weight table = matrix("table", 10, 8), w = matrix("w", 8, 8);
    val x = op_embed(p, &table, 1), y = op_linear(p, x, &w, NULL);
    op_sample(p, op_take_rows(p, op_gated_add(p, x, val_cols(y, 0, 8), NO_VAL)));
    EXPECT_EQ(p->values[x.id].first_use, 0);
    EXPECT_EQ(p->values[x.id].last_use, 2);
    EXPECT_EQ(p->values[y.id].first_use, 1);
    EXPECT_EQ(p->values[y.id].last_use, 2);
    EXPECT_EQ(p->vocab_size, 8);
    program_free(p);
}

static struct weight table_8 = {.out = 10, .in = 8}, matrix_8x9 = {.out = 8, .in = 9}, vector_9 = {.out = 9, .in = 1};

static void misfit_matrix(struct program *p, val x) { op_linear(p, x, &matrix_8x9, NULL); }
static void misfit_norm(struct program *p, val x) {
    op_add_norm(p, x, NO_VAL, &vector_9, NULL, (struct norm_args){.eps = 1});
}
static void misfit_columns(struct program *p, val x) { (void)p, val_cols(x, 4, 5); }
static void misfit_widths(struct program *p, val x) { op_gated_add(p, x, val_cols(x, 0, 4), NO_VAL); }
static void misfit_group(struct program *p, val x) { op_norm(p, x, NO_VAL, NULL, (struct norm_args){.group = 3}); }
static void misfit_heads(struct program *p, val x) {
    struct qkv_args a = {.cache = program_cache_kv(p, 2, 2, 2, 0),
                         .rope = -1,
                         .n_heads = 2,
                         .n_kv_heads = 2,
                         .head_dim = 2,
                         .v_head_dim = 2};
    op_qkv_prep(p, x, NULL, NULL, a);
}
static void misfit_rows(struct program *p, val x) { op_sample(p, x); }

/* Whether recording stops the process, in a child of ours. */
static bool is_a_bug(void (*record)(struct program *p, val x)) {
    fflush(NULL);
    pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        EXPECT(freopen("/dev/null", "w", stderr));
        signal(SIGABRT, SIG_DFL);
        struct program *p = program_new("misfit");
        record(p, op_embed(p, &table_8, 1));
        _exit(0);
    }
    int status;
    EXPECT(waitpid(child, &status, 0) == child);
    return !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void a_shape_that_does_not_fit_is_a_bug_where_it_is_recorded(void **state) {
    (void)state;
    EXPECT(is_a_bug(misfit_matrix));
    EXPECT(is_a_bug(misfit_norm));
    EXPECT(is_a_bug(misfit_columns));
    EXPECT(is_a_bug(misfit_widths));
    EXPECT(is_a_bug(misfit_group));
    EXPECT(is_a_bug(misfit_heads));
    EXPECT(is_a_bug(misfit_rows));
}

/* ---- EXPLAIN ---- */

static void explain_folds_layers_that_are_alike(void **state) {
    (void)state;
    struct program *p = program_new("folded");
    struct weight table = matrix("embed", 10, 8), a = matrix("a", 16, 8), b = matrix("b", 8, 16),
                  odd = matrix("odd", 8, 8);
    val x = op_embed(p, &table, 1);
    for (int l = 0; l < 4; l++) {
        program_section(p, "layer", l);
        x = l < 3 ? op_linear(p, op_linear(p, x, &a, NULL), &b, NULL) : op_linear(p, x, &odd, NULL);
    }
    program_section(p, "head", -1);
    op_sample(p, op_take_rows(p, x));
    struct buf out = {0};
    program_explain(p, &out);
    buf_push(&out, 0);
    EXPECT(strstr(out.ptr, "layers 0 to 2, of which 0:\n"));
    EXPECT(strstr(out.ptr, "layer 3:\n"));
    EXPECT(strstr(out.ptr, "a[16,8] bf16"));
    EXPECT(strstr(out.ptr, "TAKE_ROWS"));
    buf_release(&out);
    program_free(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_that_live_together_never_overlap),
        cmocka_unit_test(a_long_chain_takes_the_room_of_its_widest_pair),
        cmocka_unit_test(caches_of_one_shape_and_window_share_a_group),
        cmocka_unit_test(a_rope_is_numbered_once),
        cmocka_unit_test(lives_run_from_the_defining_op_to_the_last_reader),
        cmocka_unit_test(a_shape_that_does_not_fit_is_a_bug_where_it_is_recorded),
        cmocka_unit_test(explain_folds_layers_that_are_alike),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
