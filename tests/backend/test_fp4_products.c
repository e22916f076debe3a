/* test_fp4_products.c - products of NVFP4 and MXFP4, as safetensors store them, with activations of 8 bits: each equals
 * the sum of the weights' reference and the activations rounded as numerics.md says, within what float32 sums lose;
 * whatever rows are beside it and however columns are cut its bits are the same; nothing is read behind the weights or
 * their scales.
 *
 * Of AVX-512 VNNI and of AVX2, where the processor has them; skipped, and said so, where it has neither. */
#include "check.h"

#include "backend/cpu/kernels/blocks.h"
#include "base/random.h"
#include "base/status.h"

#include <math.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ROWS = 19, MAX_COLS = 2400, GUARD = 4 };

static const struct kernels *set; // that is tested

static uint64_t drawn;
static int between(int low, int high) {
    return low + (int)(philox_uniform(test_seed(), drawn++, 0) * (high - low + 1));
}
static float uniform(void) { return (float)(philox_uniform(test_seed(), drawn++, 1) * 2 - 1); }

/* A page behind which nothing may be read. */
static uint8_t *room(size_t n_bytes) {
    size_t page = (size_t)sysconf(_SC_PAGE_SIZE), n = (n_bytes + page - 1) / page * page;
    uint8_t *at = mmap(NULL, n + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(at != MAP_FAILED);
    assert_int_equal(mprotect(at + n, page, PROT_NONE), 0);
    return at + n - n_bytes;
}

static void free_room(uint8_t *at, size_t n_bytes) {
    size_t page = (size_t)sysconf(_SC_PAGE_SIZE), n = (n_bytes + page - 1) / page * page;
    munmap(at + n_bytes - n, n + page);
}

/* Rows of codes and of scales, each before a page of nothing. One in eight has the largest codes alone. */
struct matrix {
    struct weight_part part;
    uint8_t *codes, *scales;
    size_t n_codes, n_scales;
};

static struct matrix matrix_new(bool nv, int64_t n) {
    int64_t width = nv ? 16 : 32, groups = (n + width - 1) / width;
    struct matrix m = {.n_codes = (size_t)(ROWS * (n / 2)), .n_scales = (size_t)(ROWS * groups)};
    m.codes = room(m.n_codes);
    m.scales = room(m.n_scales);
    for (size_t i = 0; i < m.n_codes; i++)
        m.codes[i] = (int64_t)i / (n / 2) % 8 == 3 ? 0x77 : (uint8_t)between(0, 255);
    for (size_t i = 0; i < m.n_scales; i++)
        m.scales[i] = nv ? (uint8_t)(between(0, 1) * 0x80 + between(0, 0x7E)) : (uint8_t)between(107, 135);
    m.part = (struct weight_part){
        .format = nv ? &qformat_nvfp4 : &qformat_mxfp4,
        .dtype = DT_U8,
        .data = m.codes,
        .n_rows = ROWS,
        .row_stride = n / 2,
        .col_stride = 1,
        .scale = {m.scales, nv ? DT_F8_E4M3 : DT_F8_E8M0, 1, width, groups, nv ? 0.0123f : 1},
    };
    return m;
}

static void matrix_free(struct matrix *m) {
    free_room(m->codes, m->n_codes);
    free_room(m->scales, m->n_scales);
}

/* x as the kernels round it. */
static void rounded(const float *x, int64_t n, double *out) {
    for (int64_t c = 0; c < n; c += 32) {
        float most = 0;
        for (int64_t i = c; i < MIN(c + 32, n); i++)
            most = fmaxf(most, fabsf(x[i]));
        for (int64_t i = c; i < MIN(c + 32, n); i++)
            out[i] = most > 0 ? (double)(most / 127) * rint((double)(x[i] * (127 / most))) : 0;
    }
}

static void multiply(const struct weight_part *part, int64_t row, int64_t n_rows, int64_t n, const float *x, int n_x,
                     const float *bias, bool cut, float *y) {
    static _Alignas(64) float arranged[2 * FEW_ROWS * (MAX_COLS + 128)];
    static float partial[PARTIAL_ROWS * FEW_ROWS * MOST_LANES];
    assert_true(arranged_floats(n) <= (int64_t)ARRAY_LEN(arranged));
    set->arrange(set->arrangement(part), x, MAX_COLS, n_x, n, arranged);
    for (int i = 0; i < n_x * (ROWS + GUARD); i++)
        y[i] = -7;
    set->multiply_few(&(struct few_rows){.part = part,
                                         .row = row,
                                         .n_rows = n_rows,
                                         .n_cols = n,
                                         .x = arranged,
                                         .n_x = n_x,
                                         .y = y,
                                         .y_stride = ROWS + GUARD,
                                         .bias = bias,
                                         .near = between(0, 1),
                                         .partial = cut ? partial : NULL});
}

static void check_against_reference(const struct matrix *m, int64_t n, const float *x, int n_x, const float *bias,
                                    const float *y) {
    static double rounded_x[MAX_COLS];
    static float weights[MAX_COLS];
    for (int t = 0; t < n_x; t++) {
        rounded(x + t * MAX_COLS, n, rounded_x);
        for (int r = 0; r < ROWS; r++) {
            double want = (double)bias[r], size = fabs(want), got = (double)y[t * (ROWS + GUARD) + r];
            m->part.format->row_to_f32(&m->part, r, n, weights);
            for (int64_t c = 0; c < n; c++) {
                want += (double)weights[c] * rounded_x[c];
                size += fabs((double)weights[c] * rounded_x[c]);
            }
            double bound = size * (double)(n / 64 + 9) * 0x1p-24; // numerics.md, "What floats lose"
            if (!(fabs(got - want) <= bound))
                fail_msg("%s, %s, %lld columns, row %d of %d of x, row %d: %.9g, wanted %.9g within %.3g", set->name,
                         m->part.format->name, (long long)n, t, n_x, r, got, want, bound);
        }
    }
}

static void check_product(bool nv, int64_t n) {
    static float x[FEW_ROWS * MAX_COLS];
    float bias[ROWS], y[FEW_ROWS * (ROWS + GUARD)], other[FEW_ROWS * (ROWS + GUARD)];
    struct matrix m = matrix_new(nv, n);
    int n_x = between(1, FEW_ROWS);
    for (int64_t i = 0; i < FEW_ROWS * MAX_COLS; i++)
        x[i] = i / 32 % 5 == 2 ? 3 : uniform() * (i % 64 < 32 ? 1 : 40); // as large as they get, or uneven
    memset(x + 32, 0, 32 * sizeof *x);
    for (int r = 0; r < ROWS; r++)
        bias[r] = uniform();
    EXPECT(set->direct_groups(&m.part) > 0);
    multiply(&m.part, 0, ROWS, n, x, n_x, bias, between(0, 1), y);
    check_against_reference(&m, n, x, n_x, bias, y);
    int row = between(0, ROWS - 1), n_rows = between(1, ROWS - row);
    multiply(&m.part, row, n_rows, n, x, n_x, bias + row, between(0, 1), other);
    for (int t = 0; t < n_x; t++) {
        const float *all = y + t * (ROWS + GUARD), *some = other + t * (ROWS + GUARD);
        EXPECT(memcmp(some, all + row, (size_t)n_rows * sizeof *y) == 0);
        EXPECT(some[n_rows] == -7 && all[ROWS] == -7);
    }
    for (int t = 0; t < n_x; t++) {
        multiply(&m.part, 0, ROWS, n, x + t * MAX_COLS, 1, bias, t % 2, other);
        EXPECT(memcmp(other, y + t * (ROWS + GUARD), ROWS * sizeof *y) == 0);
    }
    matrix_free(&m);
}

static void for_each_set(void (*check)(void)) {
    static const char *const names[] = {"avx512", "avx2"};
    int n_sets = 0;
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        const struct kernels *base = kernels_find(names[i]);
        set = base ? kernels_of_blocks(base) : NULL;
        if (!set)
            continue;
        check();
        n_sets++;
    }
    if (n_sets > 0)
        return;
    print_message("test_fp4_products: no product of codes is for this processor\n");
    skip();
}

static void check_widths(void) {
    static const int64_t widths[] = {16, 48, 112, 128, 144, 240, 256, 1008, 1024, 1040, 2048, 2400};
    for (size_t i = 0; i < ARRAY_LEN(widths); i++) {
        check_product(true, widths[i]);
        check_product(false, (widths[i] + 31) / 32 * 32);
    }
}

static void products_are_those_of_the_reference_and_rounded_activations(void **state) {
    (void)state;
    for_each_set(check_widths);
}

/* Every byte as the scale of one row's block: what the reference has, with NaN for what is no number. */
static void check_scales(void) {
    enum { COLS = 160 };
    float x[MAX_COLS], y[ROWS + GUARD], weights[COLS];
    for (int c = 0; c < COLS; c++)
        x[c] = 1;
    for (int nv = 0; nv < 2; nv++)
        for (int b = 0; b < 256; b++) {
            struct matrix m = matrix_new(nv, COLS);
            int at = between(0, COLS / (nv ? 16 : 32) - 1);
            memset(m.codes, 0x22, m.n_codes); // ones
            memset(m.scales, 0, m.n_scales);  // e4m3: none; e8m0: 2^-127
            m.scales[at] = (uint8_t)b;
            m.part.scale.tensor_scale = 1;
            m.part.format->row_to_f32(&m.part, 0, COLS, weights);
            double want = 0;
            for (int c = 0; c < COLS; c++)
                want += (double)weights[c];
            multiply(&m.part, 0, ROWS, COLS, x, 1, NULL, false, y);
            bool may_overflow = fabs(want) >= 0x1p126; // sums of doubled values
            bool good = isnan(want) ? isnan(y[0]) : may_overflow || fabs((double)y[0] - want) <= fabs(want) * 1e-6;
            if (!good)
                fail_msg("%s, %s: with the scale 0x%02X %.9g, wanted %.9g", set->name, m.part.format->name, (unsigned)b,
                         (double)y[0], want);
            matrix_free(&m);
        }
}

static void every_scale_is_the_references(void **state) {
    (void)state;
    for_each_set(check_scales);
}

static void check_numbers(void) {
    const float odd[] = {NAN, INFINITY, -INFINITY};
    float x[MAX_COLS], y[ROWS + GUARD];
    struct matrix m = matrix_new(true, 208);
    for (size_t k = 0; k < ARRAY_LEN(odd); k++) {
        for (int c = 0; c < 208; c++)
            x[c] = c == 203 ? odd[k] : 1;
        multiply(&m.part, 0, ROWS, 208, x, 1, NULL, false, y);
        for (int r = 0; r < ROWS; r++)
            EXPECT(isnan(y[r]));
    }
    for (int c = 0; c < 208; c++)
        x[c] = 1e-42f; // so small that 127 / x is none
    multiply(&m.part, 0, ROWS, 208, x, 1, NULL, false, y);
    EXPECT(fabsf(y[0]) < 1e-30f);
    matrix_free(&m);
}

static void what_is_no_number_in_x_is_none_in_y(void **state) {
    (void)state;
    for_each_set(check_numbers);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_are_those_of_the_reference_and_rounded_activations),
        cmocka_unit_test(every_scale_is_the_references),
        cmocka_unit_test(what_is_no_number_in_x_is_none_in_y),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
