/* small_products.h - part of matrices.c: elements as floats, sums, and mma.sync. */
#pragma once

// ---- elements to floats ---------------------------------------------------------------------------------------------

enum element { F16, BF16, E4M3, E5M2, S8, U8, N_ELEMENTS };
static const struct {
    const char *name;
    int bytes;
} ELEMENTS[N_ELEMENTS] = {{"f16", 2}, {"bf16", 2}, {"e4m3", 1}, {"e5m2", 1}, {"s8", 1}, {"u8", 1}};

enum { DECODED_AT_ONCE = 64 }; // elements; a constant, so that it becomes vectors

/* n: a multiple of DECODED_AT_ONCE. */
#define DECODE(name, type, to_float)                                                      \
    static void name(float *restrict to, const void *restrict from, int n) {              \
        for (int first = 0; first < n; first += DECODED_AT_ONCE) {                        \
            type some[DECODED_AT_ONCE];                                                   \
            memcpy(some, (const char *)from + (size_t)first * sizeof(type), sizeof some); \
            for (int k = 0; k < DECODED_AT_ONCE; k++)                                     \
                to[first + k] = to_float(some[k]);                                        \
        }                                                                                 \
    }
DECODE(decode_f16, uint16_t, half_to_float)
DECODE(decode_bf16, uint16_t, bf16_to_float)
DECODE(decode_e4m3, uint8_t, e4m3_to_float)
DECODE(decode_e5m2, uint8_t, e5m2_to_float)
DECODE(decode_s8, int8_t, (float))
DECODE(decode_u8, uint8_t, (float))
#undef DECODE

static void decode(enum element e, float *restrict to, const void *restrict from, int n) {
    static void (*const by[N_ELEMENTS])(float *restrict, const void *restrict, int) = {
        decode_f16, decode_bf16, decode_e4m3, decode_e5m2, decode_s8, decode_u8};
    by[e](to, from, n);
}

// ---- sums of 32 bits ------------------------------------------------------------------------------------------------

typedef int32_t eight_places __attribute__((vector_size(32)));

/* Registers of the even and of the odd columns, to rows and back. Of floats, or whatever has 32 bits. */
static inline void join_columns(octet rows[8], const union lanes *even, const union lanes *odd) {
    octet e[4], o[4];
    memcpy(e, even->f32, sizeof e);
    memcpy(o, odd->f32, sizeof o);
    for (int k = 0; k < 4; k++) {
        rows[2 * k] = __builtin_shuffle(e[k], o[k], (eight_places){INTERLEAVED_LOW});
        rows[2 * k + 1] = __builtin_shuffle(e[k], o[k], (eight_places){INTERLEAVED_HIGH});
    }
}
static inline void part_columns(union lanes *even, union lanes *odd, const octet rows[8]) {
    octet e[4], o[4];
    for (int k = 0; k < 4; k++) {
        e[k] = __builtin_shuffle(rows[2 * k], rows[2 * k + 1], (eight_places){0, 2, 4, 6, 8, 10, 12, 14});
        o[k] = __builtin_shuffle(rows[2 * k], rows[2 * k + 1], (eight_places){1, 3, 5, 7, 9, 11, 13, 15});
    }
    memcpy(even->f32, e, sizeof e);
    memcpy(odd->f32, o, sizeof o);
}

// ---- mma.sync: m16n8k16 ---------------------------------------------------------------------------------------------

/* A [16][16]: matrices of rows 0.., 8.., then the same of columns 8... */
static void small_left(const struct warp *w, const struct insn *i, enum element e, float a[16][16]) {
    float m[64];
    for (int k = 0; k < 4; k++) {
        decode(e, m, arg_of(w, i, 4 + k)->u32, 64);
        for (int row = 0; row < 8; row++)
            memcpy(&a[row + 8 * (k & 1)][8 * (k >> 1)], m + 8 * row, 8 * sizeof(float));
    }
}
/* B [16][8]: two matrices, with its columns as rows. */
static void small_right(const struct warp *w, const struct insn *i, enum element e, octet b[16]) {
    for (int k = 0; k < 2; k++) {
        decode(e, (float *)(b + 8 * k), arg_of(w, i, 8 + k)->u32, 64);
        turn(b + 8 * k);
    }
}

static enum outcome small_product(struct warp *w, const struct insn *i, uint32_t lanes, enum element e) {
    if (!whole_warp(w, i, lanes))
        return AGAIN;
    float a[16][16];
    octet b[16], c[16];
    small_left(w, i, e, a);
    small_right(w, i, e, b);
    for (int half = 0; half < 2; half++)
        join_columns(c + 8 * half, arg_of(w, i, 10 + 2 * half), arg_of(w, i, 11 + 2 * half));
    for (int row = 0; row < 16; row += 4) {
        octet s[4];
        memcpy(s, c + row, sizeof s);
        for (int k = 0; k < 16; k++)
#pragma GCC unroll 4
            for (int r = 0; r < 4; r++)
                s[r] += a[row + r][k] * b[k];
        memcpy(c + row, s, sizeof s);
    }
    for (int half = 0; half < 2; half++)
        part_columns(arg_of(w, i, 2 * half), arg_of(w, i, 2 * half + 1), c + 8 * half);
    return NEXT;
}
static enum outcome run_mma_f16(struct warp *w, const struct insn *i, uint32_t lanes) {
    return small_product(w, i, lanes, F16);
}
static enum outcome run_mma_bf16(struct warp *w, const struct insn *i, uint32_t lanes) {
    return small_product(w, i, lanes, BF16);
}
