/* qformat_packed.c - unsigned integers of 2, 4 or 8 bits in words of 32, with a scale and a zero point to a group of
 * columns: w[r, c] = (q[r, c] - z[r, g]) * s[r, g].
 *
 * Orders of q, of z and of s, [rows, columns] being the matrix's, the lowest bits first; groups g of `block_cols`
 * columns:
 *
 *     COLUMNS (compressed-tensors pack-quantized)   q [out, in / n], z [out / n, groups], s [out, groups]
 *     GPTQ                                          q [in / n, out], z [groups, out / n], s [groups, out]
 *     AWQ                                           q [in, out / n], z and s as GPTQ; n = 8 rows lie as 0 2 4 6 1 3 5 7
 *
 * Without zero points z is 2^(bits - 1). GPTQ of version 1 stores z - 1. group_of names each column's group where
 * columns were sorted (act-order); else it is c / block_cols. */
#include "core/weight.h"

#include "base/status.h"

static uint32_t word_at(const void *words, int64_t i) {
    uint32_t word;
    memcpy(&word, (const char *)words + i * 4, sizeof word);
    return word;
}

static unsigned code_in(uint32_t word, int bits, int64_t place) { return word >> place * bits & ((1u << bits) - 1); }

/* Where AWQ has row r of a word's eight. */
static int64_t awq_place(int64_t r) { return r % 2 * 4 + r / 2; }

static int64_t group_of(const struct weight_part *p, int64_t col) {
    if (p->packed->group_of)
        return p->packed->group_of[col];
    return p->scale.block_cols ? col / p->scale.block_cols : 0;
}

static int64_t up_to(int64_t n, int64_t of) { return (n + of - 1) / of; }

static unsigned zero_at(const struct weight_part *p, int64_t row, int64_t group) {
    const struct qpacked *k = p->packed;
    int64_t per_word = 32 / k->bits;
    unsigned most = (1u << k->bits) - 1;
    if (!k->has_zeros)
        return 1u << (k->bits - 1);
    if (k->order == PACKED_COLUMNS)
        return code_in(word_at(k->zeros, row / per_word * k->n_groups + group), k->bits, row % per_word);
    int64_t place = k->order == PACKED_AWQ ? awq_place(row % per_word) : row % per_word;
    uint32_t word = word_at(k->zeros, group * up_to(k->stored_rows, per_word) + row / per_word);
    return (code_in(word, k->bits, place) + k->zero_more) & most;
}

static float scale_at(const struct weight_part *p, int64_t row, int64_t group) {
    const struct qpacked *k = p->packed;
    int64_t i = k->order == PACKED_COLUMNS ? row * k->n_groups + group : group * k->stored_rows + row;
    float scale;
    dtype_to_f32(p->scale.dtype, (const char *)p->scale.data + i * (int64_t)dtype_bytes(p->scale.dtype), 1, 1, &scale);
    return scale;
}

static unsigned code_at(const struct weight_part *p, int64_t row, int64_t col) {
    const struct qpacked *k = p->packed;
    int64_t per_word = 32 / k->bits;
    switch (k->order) {
    case PACKED_COLUMNS:
        return code_in(word_at(p->data, row * up_to(k->stored_cols, per_word) + col / per_word), k->bits,
                       col % per_word);
    case PACKED_GPTQ: return code_in(word_at(p->data, col / per_word * k->stored_rows + row), k->bits, col % per_word);
    case PACKED_AWQ:
        return code_in(word_at(p->data, col * up_to(k->stored_rows, per_word) + row / per_word), k->bits,
                       awq_place(row % per_word));
    }
    BUG_IF(true);
}

struct packed_group packed_group_at(const struct weight_part *p, int64_t row, int64_t col) {
    int64_t r = p->first_row + row, group = group_of(p, p->first_col + col);
    return (struct packed_group){scale_at(p, r, group), (int)zero_at(p, r, group)};
}

void packed_codes(const struct weight_part *p, int64_t row, int64_t col, int64_t n, uint8_t *out) {
    for (int64_t i = 0; i < n; i++)
        out[i] = (uint8_t)code_at(p, p->first_row + row, p->first_col + col + i);
}

void packed_to_f32(const struct weight_part *p, int64_t row, int64_t col, int64_t n, float *out) {
    int64_t r = p->first_row + row, last = -1;
    float scale = 0;
    int zero = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t c = p->first_col + col + i, group = group_of(p, c);
        if (group != last)
            scale = scale_at(p, r, group), zero = (int)zero_at(p, r, group);
        last = group;
        out[i] = (float)((int)code_at(p, r, c) - zero) * scale;
    }
}

static void row_to_f32(const struct weight_part *p, int64_t row, int64_t n_cols, float *out) {
    packed_to_f32(p, row, 0, n_cols, out);
}

const struct qformat qformat_int2 = {.id = QFORMAT_INT2, .name = "int2", .bits = 2, .row_to_f32 = row_to_f32};
const struct qformat qformat_int4 = {.id = QFORMAT_INT4, .name = "int4", .bits = 4, .row_to_f32 = row_to_f32};
const struct qformat qformat_int8 = {.id = QFORMAT_INT8, .name = "int8", .bits = 8, .row_to_f32 = row_to_f32};
