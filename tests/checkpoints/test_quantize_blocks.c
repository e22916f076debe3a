/* test_quantize_blocks.c - writing GGUF's block types: no worse than llama.cpp's own quantiser on the same numbers,
 * what a block can say exactly is found again, extremes stay finite, and errors go where they are said to matter least.
 *
 * The figures of llama.cpp are of ggml_quantize_chunk of the sources in llama-cpp-python 0.3.36, over numbers(). */
#include "check.h"

#include "base/status.h"
#include "quantize/round/blocks.h"

#include <math.h>

enum { N = 256 * 400 };

static uint64_t state_of_random;

static double uniform(void) {
    state_of_random = state_of_random * 6364136223846793005 + 1442695040888963407;
    return (double)(state_of_random >> 11) / 9007199254740992.0;
}

/* Nearly normal; of `heavy` ones the size varies and one of 100 is large, as in matrices of trained models. */
static void numbers(bool heavy, float *x) {
    state_of_random = heavy ? 2 : 1;
    for (int i = 0; i < N; i++) {
        double sum = -6;
        for (int k = 0; k < 12; k++)
            sum += uniform();
        x[i] = (float)(sum * 0.02 * (heavy ? fabs(sum) * (uniform() < 0.01 ? 8 : 1) : 1));
    }
}

static void weights(float *w) {
    state_of_random = 3;
    for (int i = 0; i < 256; i++)
        w[i] = (float)(uniform() * uniform() + 0.01);
}

/* The root of sum w (x - y)^2 / sum w x^2. */
static double relative_error(const struct qformat *f, const float *x, const float *w) {
    static uint8_t bytes[N * 2];
    double errors = 0, squares = 0;
    for (int row = 0; row < N / 256; row++)
        blocks_write(f->id, x + row * 256, w, 256, bytes + row * block_row_bytes(f, 256));
    for (int i = 0; i < N / f->block_cols; i++) {
        float y[256];
        f->block_to_f32(bytes + (size_t)i * (size_t)f->block_bytes, y);
        for (int c = 0; c < f->block_cols; c++) {
            int at = i * f->block_cols + c;
            double weight = w ? (double)w[at % 256] : 1, off = (double)x[at] - (double)y[c];
            errors += weight * off * off;
            squares += weight * (double)x[at] * (double)x[at];
        }
    }
    return sqrt(errors / squares);
}

/* llama.cpp's: of normal and heavy numbers, without and with weights of errors. */
static const struct {
    enum qformat_id id;
    double theirs[2][2];
} rows[] = {
    {QFORMAT_Q4_0, {{0.08421, 0.07725}, {0.12079, 0.11860}}},
    {QFORMAT_Q4_1, {{0.07721, 0.06496}, {0.10821, 0.08679}}},
    {QFORMAT_Q5_0, {{0.04178, 0.03829}, {0.06599, 0.06406}}},
    {QFORMAT_Q5_1, {{0.03720, 0.03164}, {0.05209, 0.04414}}},
    {QFORMAT_Q8_0, {{0.00523, 0.00524}, {0.00918, 0.00928}}},
    {QFORMAT_IQ4_NL, {{0.07490, 0.07100}, {0.09873, 0.09486}}},
    {QFORMAT_MXFP4_HALVES, {{0.11324, 0.11352}, {0.14571, 0.14613}}},
    {QFORMAT_Q2_K, {{0.29232, 0.24472}, {0.36219, 0.26985}}},
    {QFORMAT_Q3_K, {{0.14879, 0.13657}, {0.16474, 0.15735}}},
    {QFORMAT_Q4_K, {{0.07028, 0.06584}, {0.09352, 0.09003}}},
    {QFORMAT_Q5_K, {{0.03560, 0.03348}, {0.04911, 0.04775}}},
    {QFORMAT_Q6_K, {{0.01743, 0.01634}, {0.02660, 0.02617}}},
};

static void no_type_loses_more_than_llama_cpp_does(void **state) {
    (void)state;
    static float x[N], w[256];
    weights(w);
    for (int heavy = 0; heavy < 2; heavy++) {
        numbers(heavy, x);
        for (size_t i = 0; i < ARRAY_LEN(rows); i++)
            for (int weighted = 0; weighted < 2; weighted++) {
                if (test_is_brief() && (i + (size_t)weighted + test_seed()) % 4 != 0)
                    continue;
                const struct qformat *f = qformat_of_blocks(rows[i].id);
                double ours = relative_error(f, x, weighted ? w : NULL), theirs = rows[i].theirs[heavy][weighted];
                if (!(ours <= theirs * 1.001))
                    fail_msg("%s, %s numbers%s: %.5f, llama.cpp %.5f", f->name, heavy ? "heavy" : "normal",
                             weighted ? " with weights" : "", ours, theirs);
            }
    }
}

static const struct qformat *written(int id) {
    return blocks_are_written((enum qformat_id)id) ? qformat_of_blocks((enum qformat_id)id) : NULL;
}

static void write_and_read(const struct qformat *f, const float *x, float *y) {
    uint8_t bytes[256];
    for (int at = 0; at < 256; at += f->block_cols) {
        blocks_write(f->id, x + at, NULL, f->block_cols, bytes);
        f->block_to_f32(bytes, y + at);
    }
}

static void zeros_are_zeros_and_extremes_are_finite(void **state) {
    (void)state;
    static const float sizes[] = {0, 1e-45f, 1e-38f, 1e-8f, 1, 60000, 1e9f, 3e38f};
    for (int id = 0; id < N_QFORMATS; id++)
        for (size_t k = 0; written(id) && k < ARRAY_LEN(sizes); k++)
            for (int shape = 0; shape < 4; shape++) { // all the same, one alone, both signs, rising
                float x[256], y[256];
                for (int i = 0; i < 256; i++)
                    x[i] = sizes[k] * (shape == 0   ? 1
                                       : shape == 1 ? (float)(i == 77)
                                       : shape == 2 ? (i % 2 ? 1 : -1)
                                                    : (float)i / 256);
                write_and_read(written(id), x, y);
                for (int i = 0; i < 256; i++) {
                    assert_true(isfinite(y[i]));
                    if (sizes[k] == 0)
                        assert_true(y[i] == 0);
                }
            }
}

/* Numbers that are codes times a scale come back as they were, or as near as the scale of scales allows. */
static void what_a_block_can_say_is_found_again(void **state) {
    (void)state;
    for (int id = 0; id < N_QFORMATS; id++) {
        const struct qformat *f = written(id);
        if (!f)
            continue;
        float x[256], y[256];
        double errors = 0, squares = 0;
        for (int i = 0; i < 256; i++)
            x[i] = (float)(i * 37 % 4 - 2) * 0.25f; // of -0.5 -0.25 0 0.25, in every sub-block
        write_and_read(f, x, y);
        for (int i = 0; i < 256; i++) {
            errors += (double)(x[i] - y[i]) * (double)(x[i] - y[i]);
            squares += (double)x[i] * (double)x[i];
        }
        double bound = f->id == QFORMAT_IQ4_NL ? 0.03 : 0.005; // its codes lie on no line; q8_0 fits none
        if (!(sqrt(errors / squares) < bound))
            fail_msg("%s: %.5f", f->name, sqrt(errors / squares));
    }
}

static void errors_are_least_where_columns_matter_most(void **state) {
    (void)state;
    static const enum qformat_id types[] = {QFORMAT_Q4_0, QFORMAT_Q4_K,   QFORMAT_Q6_K, QFORMAT_Q3_K,
                                            QFORMAT_Q2_K, QFORMAT_IQ4_NL, QFORMAT_Q5_1};
    static float x[N];
    float w[256], even[256];
    numbers(false, x);
    for (int i = 0; i < 256; i++) {
        w[i] = i % 8 == 3 ? 100 : 1;
        even[i] = i % 8 == 3;
    }
    for (size_t t = 0; t < ARRAY_LEN(types); t++) {
        if (test_is_brief() && (t + test_seed()) % 4 != 0)
            continue;
        const struct qformat *f = qformat_of_blocks(types[t]);
        double before = 0, after = 0;
        for (int row = 0; row < N / 256; row++)
            for (int weighted = 0; weighted < 2; weighted++) {
                uint8_t bytes[512];
                float y[256];
                blocks_write(f->id, x + row * 256, weighted ? w : NULL, 256, bytes);
                for (int at = 0; at < 256; at += f->block_cols)
                    f->block_to_f32(bytes + block_row_bytes(f, at), y + at);
                for (int i = 0; i < 256; i++)
                    *(weighted ? &after : &before) +=
                        (double)even[i] * (double)(x[row * 256 + i] - y[i]) * (double)(x[row * 256 + i] - y[i]);
            }
        if (!(after < before * 0.8))
            fail_msg("%s: %.3e with weights, %.3e without", f->name, after, before);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_type_loses_more_than_llama_cpp_does),
        cmocka_unit_test(zeros_are_zeros_and_extremes_are_finite),
        cmocka_unit_test(what_a_block_can_say_is_found_again),
        cmocka_unit_test(errors_are_least_where_columns_matter_most),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
