/* qformat.h - how a weight's numbers are stored: plain elements, or quantised with scales beside them.
 *
 * One row of `struct qformat` a format; its row_to_f32 is the reference that every kernel is tested
 * against. Layouts and formulas: docs/formats.md. A format knows nothing of models or devices. */
#pragma once

#include "core/dtype.h"

struct weight_part;

/* Multipliers of a quantised tensor. The scale of element (r, c) of the stored tensor is
 * scale[(r / block_rows) * stride + c / block_cols]; block sizes of 0 mean "all". */
struct qscale {
    const void *data;
    enum dtype dtype;
    int64_t block_rows, block_cols;
    int64_t stride;     // scales a block row
    float tensor_scale; // a second, whole-tensor multiplier (NVFP4); 1 elsewhere
};

/* How integers lie in words, of QFORMAT_INT2, INT4 and INT8: qformat_packed.c. The part's data and all of this are the
 * stored tensors', whose rows and columns begin at the part's first_row and first_col. */
enum packed_order { PACKED_COLUMNS, PACKED_GPTQ, PACKED_AWQ };
struct qpacked {
    enum packed_order order;
    int bits;
    int64_t stored_rows, stored_cols, n_groups;
    bool has_zeros;          // else a zero point is 2^(bits - 1)
    const void *zeros;       // NULL in a phantom, as data is
    unsigned zero_more;      // what a stored zero point lacks
    const int32_t *group_of; // [stored_cols]; NULL: the columns are in the order of groups
};

/* What codes of QFORMAT_CODES4 stand for: qformat_codes.c. The part's data and all of this are the stored tensors', as
 * of words of integers. */
struct qcodes {
    float values[16];
    int64_t stored_cols;
    int64_t block;             // elements that share a scale, counted through the rows
    const void *scales;        // float32, or with `outer` bytes; NULL in a phantom
    const void *outer;         // float32, a run of outer_block scales each; NULL: scales are not nested
    const float *outer_values; // [256], what a byte stands for
    int64_t outer_block;       // 0: scales are not nested
    float offset;
};

/* GGUF's block types, as ggml names them: identifier, name, columns and bytes of a block (qformat_blocks.c). */
#define BLOCK_FORMATS(X)           \
    X(Q4_0, q4_0, 32, 18)          \
    X(Q4_1, q4_1, 32, 20)          \
    X(Q5_0, q5_0, 32, 22)          \
    X(Q5_1, q5_1, 32, 24)          \
    X(Q8_0, q8_0, 32, 34)          \
    X(IQ4_NL, iq4_nl, 32, 18)      \
    X(MXFP4_HALVES, mxfp4, 32, 17) \
    X(Q2_K, q2_k, 256, 84)         \
    X(Q3_K, q3_k, 256, 110)        \
    X(Q4_K, q4_k, 256, 144)        \
    X(Q5_K, q5_k, 256, 176)        \
    X(Q6_K, q6_k, 256, 210)        \
    X(IQ4_XS, iq4_xs, 256, 136)    \
    X(TQ1_0, tq1_0, 256, 54)       \
    X(TQ2_0, tq2_0, 256, 66)       \
    X(IQ1_S, iq1_s, 256, 50)       \
    X(IQ1_M, iq1_m, 256, 56)       \
    X(IQ2_XXS, iq2_xxs, 256, 66)   \
    X(IQ2_XS, iq2_xs, 256, 74)     \
    X(IQ2_S, iq2_s, 256, 82)       \
    X(IQ3_XXS, iq3_xxs, 256, 98)   \
    X(IQ3_S, iq3_s, 256, 110)

/* Which format: a plugin has rows of its own at other addresses, so whoever chooses by format goes by this. */
enum qformat_id {
    QFORMAT_PLAIN,
    QFORMAT_SCALED,
    QFORMAT_MXFP4,
    QFORMAT_NVFP4,
    QFORMAT_INT2,
    QFORMAT_INT4,
    QFORMAT_INT8,
    QFORMAT_CODES4,
#define X(id, name, cols, bytes) QFORMAT_##id,
    BLOCK_FORMATS(X)
#undef X
        N_QFORMATS
};

struct qformat {
    enum qformat_id id;
    const char *name; // "plain", "scaled", "mxfp4"
    int bits;         // an element, scales not counted; 0: that of the dtype, or of a block's bytes
    /* Columns [0, n_cols) of row `row` of the part. */
    void (*row_to_f32)(const struct weight_part *part, int64_t row, int64_t n_cols, float *out);
    /* Formats whose rows are blocks that hold their scales: columns and bytes of one, and its values. Else 0 and NULL.
     * A part of them has the dtype u8, a row_stride in bytes and a col_stride of 1. */
    int block_cols, block_bytes;
    void (*block_to_f32)(const uint8_t *block, float *out);
};

extern const struct qformat qformat_plain;  // elements of any dtype, strided
extern const struct qformat qformat_scaled; // f8 or i8 elements times a scale: per tensor, channel or block
extern const struct qformat qformat_mxfp4;  // u8 pairs (low nibble first) times 2^(e-127) a 32-column block
extern const struct qformat qformat_nvfp4;  // u8 pairs times an e4m3 a 16-column block times tensor_scale

extern const struct qformat qformat_int2, qformat_int4, qformat_int8; // words of integers, with groups of columns

extern const struct qformat qformat_codes4; // 4 bits into a table, and scales of runs of elements: bitsandbytes
void codes_to_f32(const struct weight_part *p, int64_t row, int64_t col, int64_t n, float *out);

/* Of the words' formats: columns [col, col + n) of a row of the part; their codes; the scale and zero point of one. */
struct packed_group {
    float scale;
    int zero;
};
void packed_to_f32(const struct weight_part *p, int64_t row, int64_t col, int64_t n, float *out);
void packed_codes(const struct weight_part *p, int64_t row, int64_t col, int64_t n, uint8_t *out);
struct packed_group packed_group_at(const struct weight_part *p, int64_t row, int64_t col);

/* Bytes of n columns in blocks; n is a multiple of block_cols. */
static inline int64_t block_row_bytes(const struct qformat *f, int64_t n) { return n / f->block_cols * f->block_bytes; }

extern const struct qformat block_formats[N_QFORMATS]; // by id; rows of formats that are not of blocks are empty

/* NULL for an id that is none of BLOCK_FORMATS. */
static inline const struct qformat *qformat_of_blocks(enum qformat_id id) {
    return block_formats[id].block_cols ? &block_formats[id] : NULL;
}

/* What bytes may be counted under: an element's dtype, or a format of blocks. */
enum { N_STORAGES = N_DTYPES + N_QFORMATS };
static inline int storage_of(enum dtype dtype, const struct qformat *blocks) {
    return blocks ? N_DTYPES + (int)blocks->id : (int)dtype;
}
const char *storage_name(int storage); // "bf16", "q4_k"

/* Points that codes of IQ1, IQ2 and IQ3 stand for: 8 columns of place_bits = 2 bits, of IQ3 4 of 3, the first lowest. A
 * column's value is that of its place: levels[place], of IQ1 (levels NULL) place - 1. */
struct iq_points {
    const uint16_t *points;
    int n, place_bits;
    const uint8_t *levels;
};
struct iq_points iq_points_of(enum qformat_id id); // n 0 of others

extern const int8_t iq4_values[16]; // what the codes of iq4_nl and iq4_xs stand for
/* The scale and the minimum, 6 bits each, of sub-block b of 8 in the 12 bytes that q4_k and q5_k keep them in. */
void k_scale_and_min(const uint8_t packed[static 12], int b, int *scale, int *min);
