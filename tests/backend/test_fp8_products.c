/* test_fp8_products.c - products of e4m3 as they are stored, in every set of kernels that this processor has: with a
 * scale for all, for a row, for a block of either, as float32 or bfloat16, and with none. Each equals the reference's
 * within what float32 sums lose; a row of x gives the same bits whatever rows are beside it, however columns are cut,
 * and with weights made ready; NaN spoils its own row of weights and no other; nothing is read behind the weights. */
#include "check.h"

#include "backend/cpu/kernels/kernels.h"
#include "base/random.h"
#include "base/status.h"

#include <math.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ROWS = 21, MAX_COLS = 1400, GUARD = 4, BLOCK = 128 };

static const struct kernels *set; // that is tested

static uint64_t drawn;
static int between(int low, int high) {
    return low + (int)(philox_uniform(test_seed(), drawn++, 0) * (high - low + 1));
}
static float uniform(void) { return (float)(philox_uniform(test_seed(), drawn++, 1) * 2 - 1); }

static bool is_nan_code(uint8_t b) { return (b & 0x7F) == 0x7F; }

struct matrix {
    struct weight_part part;
    uint8_t *at, *end; // with a page behind it where nothing may be read
    float scales[ROWS * (MAX_COLS / BLOCK + 1)];
    uint16_t short_scales[ROWS * (MAX_COLS / BLOCK + 1)];
};

static void matrix_init(struct matrix *m, int64_t n) {
    size_t page = (size_t)sysconf(_SC_PAGE_SIZE), room = ((size_t)(ROWS * n) + page - 1) / page * page;
    m->at = mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(m->at != MAP_FAILED);
    assert_int_equal(mprotect(m->at + room, page, PROT_NONE), 0);
    m->end = m->at + room + page;
    uint8_t *data = m->at + room - ROWS * n;
    for (int64_t i = 0; i < ROWS * n; i++) { // every fourth denormal or none
        data[i] = (uint8_t)(between(0, 3) ? between(0, 255) : between(0, 15) + between(0, 1) * 0x80 - 8);
        if (is_nan_code(data[i]))
            data[i] = 0x7E; // the largest there is
    }
    bool rows = between(0, 1), cols = between(0, 1), is_plain = between(0, 4) == 0;
    int64_t block_rows = rows ? (cols ? 8 : 1) : 0, block_cols = cols ? BLOCK : 0;
    int64_t stride = cols ? (n + BLOCK - 1) / BLOCK : 1;
    bool is_short = between(0, 1);
    for (size_t i = 0; i < ARRAY_LEN(m->scales); i++) {
        m->short_scales[i] = f32_to_bf16(ldexpf(1 + uniform() / 2, between(-12, 2)));
        m->scales[i] = bf16_to_f32(m->short_scales[i]);
    }
    m->part = (struct weight_part){.format = is_plain ? &qformat_plain : &qformat_scaled,
                                   .dtype = DT_F8_E4M3,
                                   .data = data,
                                   .n_rows = ROWS,
                                   .row_stride = n,
                                   .col_stride = 1};
    if (!is_plain)
        m->part.scale = (struct qscale){is_short ? (const void *)m->short_scales : m->scales,
                                        is_short ? DT_BF16 : DT_F32,
                                        block_rows,
                                        block_cols,
                                        stride,
                                        1};
}

static void multiply(const struct weight_part *part, const struct weight_part *from, int64_t row, int64_t n_rows,
                     int64_t n, const float *x, int n_x, const float *bias, bool cut, float *y) {
    static _Alignas(64) float arranged[2 * FEW_ROWS * (MAX_COLS + 128)];
    static float partial[PARTIAL_ROWS * FEW_ROWS * MOST_LANES];
    assert_true(arranged_floats(n) <= (int64_t)ARRAY_LEN(arranged));
    set->arrange(set->arrangement(from), x, MAX_COLS, n_x, n, arranged);
    for (int i = 0; i < n_x * (ROWS + GUARD); i++)
        y[i] = -7;
    set->multiply_few(&(struct few_rows){.part = part,
                                         .row = row,
                                         .n_rows = n_rows,
                                         .n_cols = part == from ? n : arranged_cols(n),
                                         .x = arranged,
                                         .n_x = n_x,
                                         .y = y,
                                         .y_stride = ROWS + GUARD,
                                         .bias = bias,
                                         .near = between(0, 1),
                                         .partial = cut ? partial : NULL});
}

/* y of the reference; rows of weights that have a NaN are to be NaN. */
static void check_against_reference(const struct weight_part *part, int64_t n, const float *x, int n_x,
                                    const float *bias, const float *y) {
    static float weights[MAX_COLS];
    for (int r = 0; r < ROWS; r++) {
        part->format->row_to_f32(part, r, n, weights);
        for (int t = 0; t < n_x; t++) {
            double want = (double)bias[r], size = fabs(want), got = (double)y[t * (ROWS + GUARD) + r];
            for (int64_t c = 0; c < n; c++) {
                want += (double)weights[c] * (double)x[t * MAX_COLS + c];
                size += fabs((double)weights[c] * (double)x[t * MAX_COLS + c]);
            }
            // as in test_kernels.c, and half a unit in the last place of each weight
            double bound = size * 0x1p-24 * (5 + sqrt((double)n));
            if (!(isnan(want) ? isnan(got) : fabs(got - want) <= bound))
                fail_msg("%s, %s, scales %lld x %lld, %lld columns, row %d of %d of x, row %d: %.9g, wanted %.9g",
                         set->name, part->format->name, (long long)part->scale.block_rows,
                         (long long)part->scale.block_cols, (long long)n, t, n_x, r, got, want);
        }
    }
}

static bool same(const float *a, const float *b, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a) != 0 && !(isnan(a[i]) && isnan(b[i])))
            return false;
    return true;
}

static void check_product(int64_t n, bool has_nan) {
    static struct matrix m;
    static float x[FEW_ROWS * MAX_COLS], floats[(ROWS + 7) / 8 * 8 * (MAX_COLS + 64)];
    float bias[ROWS], y[FEW_ROWS * (ROWS + GUARD)], other[FEW_ROWS * (ROWS + GUARD)];
    matrix_init(&m, n);
    int n_x = between(1, FEW_ROWS);
    for (int64_t i = 0; i < FEW_ROWS * MAX_COLS; i++)
        x[i] = uniform() * ldexpf(1, between(-20, 20));
    for (int r = 0; r < ROWS; r++)
        bias[r] = uniform();
    for (int k = 0; has_nan && k < 3; k++)
        ((uint8_t *)(uintptr_t)m.part.data)[between(0, (int)(ROWS * n) - 1)] = k % 2 ? 0x7F : 0xFF;
    multiply(&m.part, &m.part, 0, ROWS, n, x, n_x, bias, between(0, 1), y);
    check_against_reference(&m.part, n, x, n_x, bias, y);
    int row = between(0, ROWS - 1), n_rows = between(1, ROWS - row);
    multiply(&m.part, &m.part, row, n_rows, n, x, n_x, bias + row, between(0, 1), other);
    for (int t = 0; t < n_x; t++) {
        EXPECT(same(other + t * (ROWS + GUARD), y + t * (ROWS + GUARD) + row, n_rows));
        EXPECT(other[t * (ROWS + GUARD) + n_rows] == -7);
    }
    multiply(&m.part, &m.part, 0, ROWS, n, x + (n_x - 1) * MAX_COLS, 1, bias, between(0, 1), other);
    EXPECT(same(other, y + (n_x - 1) * (ROWS + GUARD), ROWS));
    struct weight_part ready = set->ready(&m.part, 0, ROWS, n, floats);
    multiply(&ready, &m.part, 0, ROWS, n, x, n_x, bias, between(0, 1), other);
    for (int t = 0; t < n_x; t++)
        EXPECT(same(other + t * (ROWS + GUARD), y + t * (ROWS + GUARD), ROWS));
    munmap(m.at, (size_t)(m.end - m.at));
}

static void for_each_set(bool has_nan) {
    static const char *const names[] = {"amx", "bf16", "avx512", "avx2", "neon", "portable"};
    static const int64_t widths[] = {1, 16, 31, 32, 33, 64, 96, 128, 160, 256, 511, 512, 544, 1100, 1280, 1400};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        set = kernels_find(names[i]);
        for (size_t k = 0; set && k < (test_is_brief() ? 1 : 4) * ARRAY_LEN(widths); k++)
            check_product(widths[k % ARRAY_LEN(widths)], has_nan);
    }
}

static void products_are_those_of_the_reference(void **state) {
    (void)state;
    for_each_set(false);
}

static void a_weight_that_is_no_number_spoils_its_own_row_only(void **state) {
    (void)state;
    for_each_set(true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_are_those_of_the_reference),
        cmocka_unit_test(a_weight_that_is_no_number_spoils_its_own_row_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
