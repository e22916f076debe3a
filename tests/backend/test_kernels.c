/* Products of few rows with bf16 weights, in every set of kernels that this processor has, wherever the weights lie:
 * they end with a page behind which nothing may be read, or begin with one, and among bytes that are infinite as
 * numbers. */
#include "check.h"

#include "backend/cpu/kernels/kernels.h"
#include "base/random.h"
#include "base/status.h"

#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_OUT = 70, MAX_IN = 200, GUARD = 8 };

static const char *const sets[] = {"amx", "bf16", "avx512", "avx2", "neon", "portable"};

struct room {
    unsigned char *at; // a page of nothing, pages of 0xFF .. , a page of nothing
    size_t n_bytes;
};

static struct room room_new(void) {
    size_t page = (size_t)sysconf(_SC_PAGE_SIZE), n = (2 * MAX_OUT * MAX_IN * 2 + page - 1) / page * page;
    unsigned char *at = mmap(NULL, n + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(at != MAP_FAILED);
    assert_int_equal(mprotect(at + page, n, PROT_READ | PROT_WRITE), 0);
    return (struct room){at + page, n};
}

static void room_free(struct room room) {
    size_t page = (size_t)sysconf(_SC_PAGE_SIZE);
    munmap(room.at - page, room.n_bytes + 2 * page);
}

struct matrix {
    int out, in, stride;
    struct weight_part part;
    double values[MAX_OUT][MAX_IN];
};

static int between(int low, int high) {
    static uint64_t n;
    return low + (int)(philox_uniform(test_seed(), n++, 0) * (high - low + 1));
}

static float uniform(void) { return (float)between(-1000000, 1000000) * 1e-6f; }

/* The nearest bf16 number, the even one of two. */
static float rounded(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000;
    memcpy(&f, &bits, sizeof bits);
    return f;
}

/* Weights at `offset` from the room's begin or, if that is negative, before its end. What is between rows is finite. */
static void fill(struct matrix *m, struct room room, int64_t offset) {
    int64_t n = (int64_t)(m->out - 1) * m->stride + m->in;
    unsigned char *at = offset >= 0 ? room.at + offset : room.at + room.n_bytes - n * 2 + offset + 1;
    memset(room.at, 0x7F, room.n_bytes); // 0x7F7F is a large number, ...
    for (size_t i = 0; i + 1 < room.n_bytes; i += 2)
        memcpy(room.at + i, &(uint16_t){0x7F80}, 2); // ... 0x7F80 infinity
    for (int64_t i = 0; i < n; i++) {
        float f = uniform();
        uint32_t bits;
        memcpy(&bits, &f, sizeof bits);
        uint16_t half = (uint16_t)(bits >> 16);
        memcpy(at + i * 2, &half, sizeof half);
        bits = (uint32_t)half << 16;
        memcpy(&f, &bits, sizeof f);
        if (i % m->stride < m->in)
            m->values[i / m->stride][i % m->stride] = (double)f;
    }
    m->part = (struct weight_part){.format = &qformat_plain,
                                   .dtype = DT_BF16,
                                   .data = at,
                                   .n_rows = m->out,
                                   .row_stride = m->stride,
                                   .col_stride = 1};
}

/* y [n_x][out + GUARD] of rows [row, row + n) of m. */
static void multiply(const struct kernels *k, const struct matrix *m, int row, int n, const float *x, int n_x,
                     const float *bias, float *y) {
    static _Alignas(64) float arranged[2 * FEW_ROWS * (MAX_IN + 128)], partial[MAX_OUT * FEW_ROWS * MOST_LANES];
    assert_true(arranged_floats(m->in) <= (int64_t)ARRAY_LEN(arranged));
    k->arrange(k->arrangement(&m->part), x, MAX_IN, n_x, m->in, arranged);
    for (int i = 0; i < n_x * (MAX_OUT + GUARD); i++)
        y[i] = -7;
    k->multiply_few(&(struct few_rows){.part = &m->part,
                                       .row = row,
                                       .n_rows = n,
                                       .n_cols = m->in,
                                       .x = arranged,
                                       .n_x = n_x,
                                       .y = y,
                                       .y_stride = MAX_OUT + GUARD,
                                       .bias = bias,
                                       .near = between(0, 1),
                                       .partial = between(0, 1) ? partial : NULL});
}

static void check_product(const struct kernels *k, const struct matrix *m, int row, int n, const float *x, int n_x,
                          const float *bias) {
    float y[FEW_ROWS * (MAX_OUT + GUARD)], alone[MAX_OUT + GUARD];
    multiply(k, m, row, n, x, n_x, bias, y);
    for (int t = 0; t < n_x; t++)
        for (int r = 0; r < MAX_OUT + GUARD; r++) {
            double want = r < n && bias ? (double)bias[r] : 0, size = fabs(want),
                   got = (double)y[t * (MAX_OUT + GUARD) + r];
            for (int i = 0; r < n && i < m->in; i++) {
                double of_x = (double)(k->rounds ? rounded(x[t * MAX_IN + i]) : x[t * MAX_IN + i]);
                want += m->values[row + r][i] * of_x;
                size += fabs(m->values[row + r][i] * of_x);
            }
            // float32 sums in whatever order: half a unit in the last place of what is summed, an addition
            bool good = r >= n ? got == -7 : fabs(got - want) <= size * 0x1p-24 * (4 + sqrt(m->in));
            if (!good)
                fail_msg("%s [%d, %d] row %d of %d, x %d of %d: %.9g, not %.9g", k->name, m->out, m->in, row + r, n, t,
                         n_x, got, want);
        }
    int t = between(0, n_x - 1);
    multiply(k, m, row, n, x + t * MAX_IN, 1, bias, alone);
    if (memcmp(alone, y + t * (MAX_OUT + GUARD), (size_t)n * sizeof *y) != 0)
        fail_msg("%s [%d, %d], %d rows from %d: row %d of %d has other bits than alone", k->name, m->out, m->in, n, row,
                 t, n_x);
}

static void for_each_set(void (*check)(const struct kernels *k, struct matrix *m, struct room room)) {
    static struct matrix m;
    struct room room = room_new();
    for (size_t i = 0; i < ARRAY_LEN(sets); i++)
        if (kernels_find(sets[i]))
            check(kernels_find(sets[i]), &m, room);
    room_free(room);
}

static void check_places(const struct kernels *k, struct matrix *m, struct room room) {
    float x[FEW_ROWS * MAX_IN], bias[MAX_OUT];
    for (int round = 0; round < (test_is_brief() ? 400 : 1500); round++) {
        m->in = between(0, 3) == 0 ? between(1, 40) : between(1, MAX_IN);
        m->stride =
            between(0, 2) == 0 ? MIN((m->in + 31) / 32 * 32, 2 * MAX_IN) : m->in + between(0, 1) * between(0, 9);
        m->out = between(1, MAX_OUT);
        fill(m, room, between(0, 1) ? between(0, 200) : -1 - between(0, 130));
        for (int i = 0; i < FEW_ROWS * MAX_IN; i++)
            x[i] = uniform() * ldexpf(1, between(-20, 20));
        for (int i = 0; i < MAX_OUT; i++)
            bias[i] = uniform();
        int row = between(0, 1) * between(0, m->out - 1);
        check_product(k, m, row, between(1, m->out - row), x, between(1, FEW_ROWS), between(0, 1) ? bias : NULL);
    }
}

static void products_are_as_exact_as_float32_wherever_the_weights_lie(void **state) {
    (void)state;
    for_each_set(check_places);
}

/* An infinite or undefined activation spoils its own row, as arithmetic would, and no other. */
static void check_not_finite(const struct kernels *k, struct matrix *m, struct room room) {
    float x[FEW_ROWS * MAX_IN], y[FEW_ROWS * (MAX_OUT + GUARD)], good[FEW_ROWS * (MAX_OUT + GUARD)];
    *m = (struct matrix){.out = 40, .in = 96, .stride = 96};
    fill(m, room, 24);
    for (int i = 0; i < FEW_ROWS * MAX_IN; i++)
        x[i] = uniform();
    multiply(k, m, 0, m->out, x, FEW_ROWS, NULL, good);
    x[3 * MAX_IN + 17] = INFINITY;
    x[6 * MAX_IN + 80] = NAN;
    multiply(k, m, 0, m->out, x, FEW_ROWS, NULL, y);
    for (int t = 0; t < FEW_ROWS; t++)
        for (int r = 0; r < m->out; r++) {
            float got = y[t * (MAX_OUT + GUARD) + r];
            if (t == 3)
                assert_true(got == (m->values[r][17] > 0 ? INFINITY : -INFINITY) || m->values[r][17] == 0);
            else
                assert_true(t == 6 ? isnan(got) : got == good[t * (MAX_OUT + GUARD) + r]);
        }
}

static void an_infinite_activation_spoils_its_own_row_only(void **state) {
    (void)state;
    for_each_set(check_not_finite);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_are_as_exact_as_float32_wherever_the_weights_lie),
        cmocka_unit_test(an_infinite_activation_spoils_its_own_row_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
