/* test_quads.c - which words of integers LINEAR keeps in tiles as they are stored, of a rank's columns too. A
 * sanitizer sees what is read and written meanwhile. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/device/device.h"
#include "backend/cuda/value.h"
#include "backend/cuda/weights/weights.h"
#include "check.h"

#include <stdlib.h>
#include <string.h>

enum { ROWS = 32, STORED = 256, GROUP = 32, N_GROUPS = STORED / GROUP };

/* Columns [first, first + n) of a tensor of so many bits, whose zero points are `zeros` or none. */
static bool is_kept(int bits, int64_t first, int64_t n, const int32_t *group_of, const void *zeros) {
    struct device device = {.is_fast = true};
    struct loaded loaded = {.device = &device, .product = ELEMENT_F16};
    const struct qpacked packed = {PACKED_GPTQ, bits, ROWS, STORED, N_GROUPS, zeros != NULL, zeros, 1, group_of};
    struct weight_part part = {.format = bits == 4 ? &qformat_int4 : &qformat_int8,
                               .dtype = DT_I32,
                               .n_rows = ROWS,
                               .row_stride = ROWS,
                               .col_stride = 1,
                               .scale = {.dtype = DT_F16, .block_rows = 1, .block_cols = GROUP, .tensor_scale = 1},
                               .packed = &packed};
    part = weight_part_cols(&part, first);
    const struct weight w = {.name = "w", .out = ROWS, .in = n, .n_parts = 1, .parts = &part};
    struct op op = {.code = OP_LINEAR, .weights = {&w}};
    const struct program p = {.ops = &op, .n_ops = 1};
    struct dquads kind;
    bool kept = quads_of(&loaded, &p, &op, false, &kind);
    EXPECT(!kept || kind.kind == (bits == 4 ? QUADS_INT4 : QUADS_Q8_0));
    if (kept)
        free(quads_column_order(&w));
    return kept;
}

static void a_rank_keeps_its_columns_as_they_are_stored(void **state) {
    (void)state;
    for (int bits = 4; bits <= 8; bits += 4)
        for (int64_t n = STORED; n >= 64; n /= 2)
            for (int64_t first = 0; first < STORED; first += n)
                EXPECT(is_kept(bits, first, n, NULL, NULL));
}

/* Which are of groups of the whole tensor: a rank has some columns of each. */
static void sorted_columns_are_kept_where_they_are_not_cut(void **state) {
    (void)state;
    uint64_t random = test_seed();
    int32_t *group_of = xcalloc(STORED, sizeof *group_of);
    for (int i = 0; i < STORED; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        int at = (int)((random >> 33) % (uint64_t)(i + 1));
        group_of[i] = group_of[at], group_of[at] = i / GROUP;
    }
    EXPECT(is_kept(4, 0, STORED, group_of, NULL));
    for (int64_t first = 0; first < STORED; first += STORED / 2)
        EXPECT(!is_kept(4, first, STORED / 2, group_of, NULL));
    free(group_of);
}

/* Words of a file lie at any address. */
static void eight_bits_are_kept_where_all_zero_points_are_128(void **state) {
    (void)state;
    enum { BYTES = ROWS * N_GROUPS };
    unsigned char *zeros = xcalloc(BYTES + 1, 1);
    for (int at = 0; at < 2; at++) {
        memset(zeros + at, 127, BYTES); // of version 1, which stores one less
        EXPECT(is_kept(8, 0, STORED, NULL, zeros + at));
        zeros[at + (int)(test_seed() % BYTES)] = 126;
        EXPECT(!is_kept(8, 0, STORED, NULL, zeros + at));
    }
    free(zeros);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_keeps_its_columns_as_they_are_stored),
        cmocka_unit_test(sorted_columns_are_kept_where_they_are_not_cut),
        cmocka_unit_test(eight_bits_are_kept_where_all_zero_points_are_128),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
