/* test_block_products.c - products of block formats with activations of 8 bits: each equals the sum of the weights'
 * reference and the activations rounded as numerics.md says, within what float32 sums lose; whatever rows are beside
 * it, however columns are cut and whether weights were made ready its bits are the same; nothing is read behind the
 * weights.
 *
 * Of AVX-512 VNNI, of AMX, whose bits are the same, of AVX2 and of Arm's dot product, where the processor has them;
 * skipped, and said so, where it has none. */
#include "check.h"

#include "backend/cpu/kernels/blocks.h"
#include "base/random.h"
#include "base/status.h"

#include <limits.h>
#include <math.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ROWS = 70, MAX_COLS = 2560, MAX_BYTES = 210, GUARD = 4, MOST_X = 2 * FEW_ROWS };

static const struct kernels *set; // that is tested

/* The sets that this processor has: with AVX-512 VNNI first. Returns false where there is no such. */
enum { N_BASES = 5 };
static const int n_products[N_BASES] = {22, 22, 22, 22, 14}; // that it has products of
static bool choose_set(int i) {
    static const char *const names[N_BASES] = {"avx512", "amx", "bf16", "avx2", "neon"};
    const struct kernels *base = kernels_find(names[i]);
    set = base ? kernels_of_blocks(base) : NULL;
    return set;
}

static int most_x(void) { return set->wide ? 2 * FEW_ROWS : FEW_ROWS; }

static void skip_without_sets(int n_sets) {
    if (n_sets > 0)
        return;
    print_message("test_block_products: no product of blocks is for this processor\n");
    skip();
}

static uint64_t drawn;
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

/* Of a block's values; infinity where a float16 of it is no number. */
static float largest_of(const struct qformat *f, const uint8_t *block) {
    float values[256], largest = 0;
    f->block_to_f32(block, values);
    for (int c = 0; c < f->block_cols; c++)
        largest = isfinite(values[c]) ? fmaxf(largest, fabsf(values[c])) : INFINITY;
    return largest;
}
static bool is_tame(const struct qformat *f, const uint8_t *block) { return largest_of(f, block) < 1e6f; }

/* The largest codes, whose products fill 16 bits: all bits set but those that would make it wild. Not where minima then
 * make it small, which no bound knows of. */
static void saturate(const struct qformat *f, uint8_t *block) {
    uint8_t before[MAX_BYTES];
    memcpy(before, block, (size_t)f->block_bytes);
    for (int k = 0; k < f->block_bytes; k++) {
        block[k] = 0xFF;
        if (!is_tame(f, block))
            block[k] = before[k];
    }
    if (largest_of(f, block) < largest_of(f, before))
        memcpy(block, before, (size_t)f->block_bytes);
}

/* Random blocks whose scales are of the size of 2^-6, of either sign; every third with the largest codes. */
static void fill(const struct qformat *f, uint8_t *blocks, int64_t n) {
    for (int64_t i = 0; i < n * f->block_bytes; i++)
        blocks[i] = (uint8_t)(philox_uniform(test_seed(), drawn++, 2) * 256);
    for (int64_t i = 0; i < n; i++) {
        uint8_t *b = blocks + i * f->block_bytes;
        while (!is_tame(f, b))
            for (int k = 0; k < f->block_bytes; k++)
                b[k] = (uint8_t)(philox_uniform(test_seed(), drawn++, 3) * 256);
        if (i % 3 == 0)
            saturate(f, b);
    }
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

static void multiply(const struct weight_part *part, int64_t n, const float *x, int n_x, const float *bias, bool cut,
                     float *y) {
    static _Alignas(64) float arranged[2 * MOST_X * (MAX_COLS + 128)];
    static float partial[PARTIAL_ROWS * MOST_X * MOST_LANES];
    assert_true(2 * arranged_floats(n) <= (int64_t)ARRAY_LEN(arranged));
    set->arrange(set->arrangement(part), x, MAX_COLS, n_x, n, arranged);
    for (int i = 0; i < n_x * (ROWS + GUARD); i++)
        y[i] = -7;
    set->multiply_few(&(struct few_rows){.part = part,
                                         .n_rows = part->n_rows,
                                         .n_cols = n,
                                         .x = arranged,
                                         .n_x = n_x,
                                         .y = y,
                                         .y_stride = ROWS + GUARD,
                                         .bias = bias,
                                         .partial = cut ? partial : NULL});
}

/* Rows made ready, which is what many rows of x meet: bits as in y. */
static void check_ready(const struct weight_part *part, int64_t n, const float *x, int n_x, const float *bias,
                        const float *y) {
    static float floats[(ROWS + 7) / 8 * 8 * (MAX_COLS + 64)];
    static _Alignas(64) float arranged[2 * MOST_X * (MAX_COLS + 128)];
    float other[MOST_X * (ROWS + GUARD)];
    if (n_x < (set->wide ? FEW_ROWS : 2) || set->direct_groups(part) == INT_MAX) // as groups of several have
        return;
    memset(floats, 0xFF, sizeof floats);
    for (int i = 0; i < n_x * (ROWS + GUARD); i++)
        other[i] = -7;
    struct weight_part ready = set->ready(part, 0, part->n_rows, n, floats);
    set->arrange(set->arrangement(part), x, MAX_COLS, n_x, n, arranged);
    set->multiply_few(&(struct few_rows){.part = &ready,
                                         .n_rows = part->n_rows,
                                         .n_cols = arranged_cols(n),
                                         .x = arranged,
                                         .n_x = n_x,
                                         .y = other,
                                         .y_stride = ROWS + GUARD,
                                         .bias = bias,
                                         .near = true});
    for (int t = 0; t < n_x; t++)
        EXPECT(memcmp(other + t * (ROWS + GUARD), y + t * (ROWS + GUARD), (ROWS + GUARD) * sizeof *y) == 0);
}

/* AMX gives the bits of AVX-512 VNNI, however many rows of x there are: it has three ways for them. */
static void check_amx(const struct weight_part *part, int64_t n, const float *x, const float *bias) {
    const struct kernels *tested = set;
    static float alone[MOST_X][ROWS + GUARD], y[MOST_X][ROWS + GUARD];
    if (strcmp(tested->name, "amx") != 0)
        return;
    assert_true(choose_set(0));
    for (int t = 0; t < MOST_X; t++)
        multiply(part, n, x + t * MAX_COLS, 1, bias, true, alone[t]);
    set = tested;
    for (int n_x = 1; n_x <= MOST_X; n_x++) {
        multiply(part, n, x, n_x, bias, true, y[0]);
        EXPECT(memcmp(alone, y, (size_t)n_x * sizeof *y) == 0);
        check_ready(part, n, x, n_x, bias, y[0]);
    }
}

/* Of n_rows < ROWS the bits are those of all. */
static void check_fewer(struct weight_part part, int64_t n, const float *x, int n_x, const float *bias,
                        const float *all) {
    float y[MOST_X * (ROWS + GUARD)];
    part.n_rows = 1 + (int64_t)(philox_uniform(test_seed(), drawn++, 5) * (ROWS - 1));
    multiply(&part, n, x, n_x, bias, false, y);
    for (int t = 0; t < n_x; t++) {
        const float *row = y + t * (ROWS + GUARD);
        EXPECT(memcmp(row, all + t * (ROWS + GUARD), (size_t)part.n_rows * sizeof *y) == 0);
        EXPECT(row[part.n_rows] == -7);
        EXPECT(row[ROWS] == -7);
    }
}

static void check_format(const struct qformat *f, int64_t n) {
    static float x[MOST_X * MAX_COLS], weights[MAX_COLS];
    static double rounded_x[MOST_X][MAX_COLS];
    float bias[ROWS], y[MOST_X * (ROWS + GUARD)], alone[ROWS + GUARD];
    size_t n_bytes = (size_t)(ROWS * block_row_bytes(f, n));
    uint8_t *blocks = room(n_bytes);
    struct weight_part part = {.format = f,
                               .dtype = DT_U8,
                               .data = blocks,
                               .n_rows = ROWS,
                               .row_stride = block_row_bytes(f, n),
                               .col_stride = 1};
    fill(f, blocks, ROWS * n / f->block_cols);
    int n_x = 1 + (int)(philox_uniform(test_seed(), drawn++, 4) * most_x());
    for (int64_t i = 0; i < MOST_X * MAX_COLS; i++)
        x[i] = uniform() * (i % 64 < 32 ? 1 : 40);
    memset(x + 32, 0, 32 * sizeof *x);
    for (int i = 64; i < 128; i++) // as large as they get
        x[i] = i < 96 ? 3 : -3;
    for (int r = 0; r < ROWS; r++)
        bias[r] = uniform();
    multiply(&part, n, x, n_x, bias, true, y);
    for (int t = 0; t < n_x; t++)
        rounded(x + t * MAX_COLS, n, rounded_x[t]);
    for (int r = 0; r < ROWS; r++) {
        f->row_to_f32(&part, r, n, weights);
        float largest = 0; // of a code without its minimum
        for (int64_t c = 0; c < n; c++)
            largest = fmaxf(largest, fabsf(weights[c]));
        for (int t = 0; t < n_x; t++) {
            double want = (double)bias[r], size = fabs(want);
            for (int64_t c = 0; c < n; c++) {
                want += (double)weights[c] * rounded_x[t][c];
                size += fabs((double)weights[c] * rounded_x[t][c]);
            }
            // single sums and products, and minima that are taken apart from what they make small
            double got = (double)y[t * (ROWS + GUARD) + r], bound = (size + 64 * (double)largest * 40) * 0x1p-22;
            if (!(fabs(got - want) <= bound))
                fail_msg("%s, %lld columns, row %d of %d of x, row %d: %.9g, wanted %.9g within %.3g", f->name,
                         (long long)n, t, n_x, r, got, want, bound);
        }
    }
    check_ready(&part, n, x, n_x, bias, y);
    check_fewer(part, n, x, n_x, bias, y);
    check_amx(&part, n, x, bias);
    for (int t = 0; t < n_x; t++) {
        EXPECT(y[t * (ROWS + GUARD) + ROWS] == -7);
        multiply(&part, n, x + t * MAX_COLS, 1, bias, t % 2, alone);
        EXPECT(memcmp(alone, y + t * (ROWS + GUARD), ROWS * sizeof *y) == 0);
    }
    free_room(blocks, n_bytes);
}

static int check_formats(void) {
    int n_formats = 0;
    for (int id = 0; id < N_QFORMATS; id++) {
        const struct qformat *f = qformat_of_blocks((enum qformat_id)id);
        struct weight_part part = {.format = f, .dtype = DT_U8, .col_stride = 1};
        if (!f || set->direct_groups(&part) == 0)
            continue;
        static const int64_t blocks[] = {1, 2, 3, 5, 28, 33, 80};
        for (size_t i = 0; i < ARRAY_LEN(blocks); i++)
            if (blocks[i] * f->block_cols <= MAX_COLS &&
                (!test_is_brief() || ((uint64_t)id + i + test_seed()) % 3 == 0))
                check_format(f, blocks[i] * f->block_cols);
        n_formats++;
    }
    return n_formats;
}

static void products_are_those_of_the_reference_and_rounded_activations(void **state) {
    (void)state;
    int n_sets = 0;
    for (int i = 0; i < N_BASES; i++) {
        if (!choose_set(i))
            continue;
        EXPECT(check_formats() == n_products[i]);
        n_sets++;
    }
    skip_without_sets(n_sets);
}

enum { EXTREME_COLS = 512 };

/* Bytes of a block that are codes, signs or whole scales: all but the float16 of formats with less than 8 bits a scale;
 * of others codes alone. */
static void extreme_bytes(const struct qformat *f, int *from, int *to) {
    bool is_iq = f->id >= QFORMAT_IQ1_S && f->id <= QFORMAT_IQ3_S, is_ternary = f->id == QFORMAT_TQ1_0;
    int ends = f->block_cols == 32 ? 0 : 20; // where scales of larger blocks may lie
    *from = f->id == QFORMAT_IQ1_M || is_ternary ? 0 : is_iq ? 2 : MAX(ends, 8);
    *to = f->id == QFORMAT_IQ1_M ? 48 : f->block_bytes - (is_iq ? 0 : is_ternary ? 2 : ends);
}

/* Every code of the blocks the largest, the smallest or none, beside scales as fill has them. */
static void make_extreme(const struct qformat *f, uint8_t *blocks, int64_t n) {
    static const uint8_t codes[] = {0xFF, 0x7F, 0x80, 0};
    int from, to;
    extreme_bytes(f, &from, &to);
    for (int64_t b = 0; b < n; b++)
        for (int k = from; k < to; k++)
            blocks[b * f->block_bytes + k] = codes[b % (int64_t)ARRAY_LEN(codes)];
}

static void check_extremes(const struct qformat *f) {
    static float x[MOST_X * MAX_COLS], weights[MAX_COLS];
    static uint8_t blocks[ROWS * EXTREME_COLS / 32 * MAX_BYTES];
    float y[MOST_X * (ROWS + GUARD)], alone[ROWS + GUARD], largest[ROWS];
    struct weight_part part = {.format = f,
                               .dtype = DT_U8,
                               .data = blocks,
                               .n_rows = ROWS,
                               .row_stride = block_row_bytes(f, EXTREME_COLS),
                               .col_stride = 1};
    int64_t n_blocks = ROWS * EXTREME_COLS / f->block_cols;
    fill(f, blocks, n_blocks);
    for (int r = 0; r < ROWS; r++) {
        f->row_to_f32(&part, r, EXTREME_COLS, weights);
        largest[r] = 0; // what minima may be, that are taken from codes which come to nothing then
        for (int c = 0; c < EXTREME_COLS; c++)
            largest[r] = fmaxf(largest[r], fabsf(weights[c]));
    }
    make_extreme(f, blocks, n_blocks);
    for (int64_t k = 0; k < MOST_X * MAX_COLS; k++)
        x[k] = k / MAX_COLS % 2 ? -1 : 1;
    const int n_x = most_x();
    multiply(&part, EXTREME_COLS, x, n_x, NULL, false, y);
    multiply(&part, EXTREME_COLS, x, 1, NULL, false, alone);
    EXPECT(memcmp(alone, y, ROWS * sizeof *y) == 0);
    for (int r = 0; r < ROWS; r++) {
        double want = 0, size = 8 * (double)largest[r]; // 16 blocks of 32 columns, four roundings each of 2^-24
        f->row_to_f32(&part, r, EXTREME_COLS, weights);
        for (int c = 0; c < EXTREME_COLS; c++)
            want += (double)weights[c], size += fabs((double)weights[c]);
        for (int t = 0; t < n_x; t++) {
            double got = (double)y[t * (ROWS + GUARD) + r] * (t % 2 ? -1 : 1);
            if (isfinite(want) && !(isfinite(got) && fabs(got - want) <= size * 0x1p-16))
                fail_msg("%s, row %d of x, row %d: %.9g, wanted %.9g", f->name, t, r, got, want);
        }
    }
}

static void extreme_codes_and_activations_stay_within_the_sums(void **state) {
    (void)state;
    int n_sets = 0;
    for (int i = 0; i < N_BASES; i++) {
        if (!choose_set(i))
            continue;
        for (int id = 0; id < N_QFORMATS; id++) {
            const struct qformat *f = qformat_of_blocks((enum qformat_id)id);
            struct weight_part part = {.format = f, .dtype = DT_U8, .col_stride = 1};
            if (f && set->direct_groups(&part) != 0)
                check_extremes(f);
        }
        n_sets++;
    }
    skip_without_sets(n_sets);
}

static void what_is_no_number_in_x_is_none_in_y(void **state) {
    (void)state;
    const struct qformat *f = qformat_of_blocks(QFORMAT_Q4_0);
    static uint8_t blocks[3 * 18];
    static float x[MAX_COLS], y[ROWS + GUARD];
    struct weight_part part = {
        .format = f, .dtype = DT_U8, .data = blocks, .n_rows = 1, .row_stride = sizeof blocks, .col_stride = 1};
    const float odd[] = {NAN, INFINITY, -INFINITY};
    int n_sets = 0;
    fill(f, blocks, 3);
    for (int i = 0; i < N_BASES; i++) {
        if (!choose_set(i))
            continue;
        n_sets++;
        for (size_t k = 0; k < ARRAY_LEN(odd); k++) {
            for (int c = 0; c < 96; c++)
                x[c] = c == 70 ? odd[k] : 1;
            multiply(&part, 96, x, 1, NULL, false, y);
            EXPECT(isnan(y[0]));
        }
        for (int c = 0; c < 96; c++)
            x[c] = 1e-42f; // so small that 127 / x is none
        multiply(&part, 96, x, 1, NULL, false, y);
        EXPECT(fabsf(y[0]) < 1e-30f);
    }
    skip_without_sets(n_sets);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_are_those_of_the_reference_and_rounded_activations),
        cmocka_unit_test(extreme_codes_and_activations_stay_within_the_sums),
        cmocka_unit_test(what_is_no_number_in_x_is_none_in_y),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
