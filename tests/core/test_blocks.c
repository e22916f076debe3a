/* test_blocks.c - GGUF's block types: their reference gives the floats of the Python package gguf bit by bit, of random
 * and of extreme blocks, and rows of them can be cut as other weights can.
 *
 * tests/data/gguf/blocks.json.xz has the digests; tools/fixtures/gguf_blocks.py wrote it and says how blocks are
 * made. */
#include "check.h"

#include "base/json/json.h"
#include "core/weight.h"

#include <zlib.h>

enum { N_BLOCKS = 96, MOST_BYTES = 256, MOST_COLS = 256 };

static void random_bytes(uint64_t state, uint8_t *out, size_t n) {
    for (size_t i = 0; i < n; i += 8) {
        uint64_t z = state += 0x9E3779B97F4A7C15;
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
        z = (z ^ z >> 27) * 0x94D049BB133111EB;
        z ^= z >> 31;
        for (size_t k = 0; k < 8 && i + k < n; k++)
            out[i + k] = (uint8_t)(z >> 8 * k);
    }
}

static void make_blocks(const json_t *type, int n_bytes, uint8_t *out) {
    static const uint16_t special[] = {0x7C00, 0xFC00, 0x7E00, 0x0001, 0x83FF, 0x7BFF, 0x8000};
    random_bytes((uint64_t)json_integer_value(json_object_get(type, "number")), out, (size_t)n_bytes * N_BLOCKS);
    memset(out, 0, (size_t)n_bytes);
    memset(out + n_bytes, 255, (size_t)n_bytes);
    const json_t *fields = json_object_get(type, "fields"), *field;
    size_t k;
    for (int i = 0; i < 7; i++)
        json_array_foreach(fields, k, field) {
            uint8_t *p = out + (2 + i) * n_bytes + json_integer_value(field);
            p[0] = (uint8_t)special[i], p[1] = (uint8_t)(special[i] >> 8);
        }
}

static uint32_t digest(const float *x, int n) {
    uint32_t bits[MOST_COLS];
    memcpy(bits, x, (size_t)n * sizeof *bits);
    for (int i = 0; i < n; i++)
        if ((bits[i] & 0x7FFFFFFF) > 0x7F800000)
            bits[i] = 0x7FC00000;
    return (uint32_t)crc32(0, (const unsigned char *)bits, (unsigned)n * 4);
}

static const struct qformat *format_named(const char *name) {
    for (int id = 0; id < N_QFORMATS; id++) {
        const struct qformat *f = qformat_of_blocks((enum qformat_id)id);
        if (f && strcmp(f->name, name) == 0)
            return f;
    }
    fail_msg("no format is called %s", name);
    return NULL;
}

static void every_type_gives_the_bits_of_an_independent_reader(void **state) {
    (void)state;
    static uint8_t blocks[N_BLOCKS * MOST_BYTES];
    json_t *all;
    struct error err;
    const char *name;
    json_t *type;
    size_t n_types = 0;
    EXPECT_OK(jv_load("build/data/gguf/blocks.json", 1 << 20, 0, &all, &err), err);
    json_object_foreach(all, name, type) {
        const struct qformat *f = format_named(name);
        const json_t *wanted = json_object_get(type, "crc32");
        EXPECT_EQ(f->block_bytes, json_integer_value(json_object_get(type, "bytes")));
        EXPECT_EQ(f->block_cols, json_integer_value(json_object_get(type, "columns")));
        EXPECT_EQ(json_array_size(wanted), N_BLOCKS);
        make_blocks(type, f->block_bytes, blocks);
        for (int i = 0; i < N_BLOCKS; i++) {
            float values[MOST_COLS];
            f->block_to_f32(blocks + i * f->block_bytes, values);
            if (digest(values, f->block_cols) != (uint32_t)json_integer_value(json_array_get(wanted, (size_t)i)))
                fail_msg("%s, block %d: other values, %g %g %g ...", name, i, (double)values[0], (double)values[1],
                         (double)values[2]);
        }
        n_types++;
    }
    size_t n_formats = 0;
    for (int id = 0; id < N_QFORMATS; id++)
        n_formats += qformat_of_blocks((enum qformat_id)id) != NULL;
    EXPECT_EQ(n_types, n_formats); // none is left out
    json_decref(all);
}

static void rows_and_columns_of_blocks_can_be_cut(void **state) {
    (void)state;
    enum { ROWS = 5, BLOCKS = 3 };
    for (int id = 0; id < N_QFORMATS; id++) {
        const struct qformat *f = qformat_of_blocks((enum qformat_id)id);
        static uint8_t bytes[ROWS * BLOCKS * MOST_BYTES];
        static float whole[ROWS][BLOCKS * MOST_COLS], cut[BLOCKS * MOST_COLS];
        if (!f)
            continue;
        random_bytes((uint64_t)id, bytes, sizeof bytes);
        for (int i = 0; i < ROWS * BLOCKS * f->block_bytes; i++)
            bytes[i] &= 0xBB; // no float16 of them is infinite
        int64_t n = BLOCKS * f->block_cols;
        struct weight_part p = {.format = f,
                                .dtype = DT_U8,
                                .data = bytes,
                                .n_rows = ROWS,
                                .row_stride = BLOCKS * f->block_bytes,
                                .col_stride = 1};
        struct weight w = {.name = "w", .out = ROWS, .in = n, .n_parts = 1, .parts = &p};
        for (int r = 0; r < ROWS; r++)
            weight_rows_f32(&w, r, 1, whole[r]);
        EXPECT_EQ(weight_stored_bytes(&w), ROWS * BLOCKS * f->block_bytes);
        EXPECT_EQ(weight_part_block(&p), f->block_cols);
        struct weight_part lower = weight_part_rows(&p, 2, 3), right = weight_part_cols(&lower, f->block_cols);
        f->row_to_f32(&lower, 1, n, cut);
        EXPECT(memcmp(cut, whole[3], (size_t)n * sizeof *cut) == 0);
        f->row_to_f32(&right, 2, n - f->block_cols - 7, cut); // the last block in part
        EXPECT(memcmp(cut, whole[4] + f->block_cols, (size_t)(n - f->block_cols - 7) * sizeof *cut) == 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_gives_the_bits_of_an_independent_reader),
        cmocka_unit_test(rows_and_columns_of_blocks_can_be_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
