/* kernels_vnni.h - products of block formats with activations of 8 bits, by AVX-512 VNNI (blocks.h): which
 * formats have one, and what those who make them share.
 *
 * x is arranged so: for each 64 columns and row, X_FLOATS floats,
 *
 *     64 bytes x | s_x of both blocks | -s_x S of both | -S of four quarters | -s_x S of four | -S of both | 0 0
 *
 * For tiles of AMX with so many rows of x that are made ready or more than FEW_ROWS, X_TILE(n_x) floats a step:
 *
 *     64 bytes x of each of n_x rows | s_x of MOST_X rows, for both blocks | -s_x S of MOST_X rows, for both blocks
 *
 * Sixteen rows made ready are a step of 64 columns after the other: 16 vectors of codes, a scale for each part of the
 * step, and in formats that have them as many mins. */
#pragma once

#include "backend/cpu/kernels/blocks.h"
#include "backend/cpu/kernels/steps_vnni.h"

#include "base/status.h"

/* Formats that have one: blocks of 32 columns, and of 256. */
#define SMALL_BLOCKS(X) X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q8_0) X(IQ4_NL) X(MXFP4_HALVES)
#define LARGE_BLOCKS(X) X(Q4_K) X(Q5_K) X(Q6_K)
#define RARE_BLOCKS(X) X(Q2_K) X(Q3_K) X(IQ4_XS) X(TQ2_0)

/* Of sixteen rows, `stride` bytes apart: their products with one row of x, as arranged; and n_cols columns of them made
 * ready, where of n_rows < 16 the last one stands for those behind; signed: codes without the format's offset. */
struct sixteen_functions {
    __m512 (*one)(const uint8_t *p, int64_t stride, const float *x, int64_t n_cols, bool near);
    void (*ready)(const uint8_t *p, int64_t stride, int64_t n_rows, int64_t n_cols, bool is_signed, __m512i *out);
};
#define X(id) extern const struct sixteen_functions sixteen_##id;
SMALL_BLOCKS(X)
LARGE_BLOCKS(X)
RARE_BLOCKS(X)
#undef X

struct tile {
    const __m512i *w;         // made ready
    int64_t n_steps, n_tiles; // tiles, of the same x, are more than one by AMX alone
    const float *x;           // as arranged: [n_steps][n_x][X_FLOATS], or [n_steps][X_TILE(n_x)]
    __m512 *y;                // [n_tiles][MOST_X], which is added to
    const uint8_t *ahead; // fetched meanwhile, ahead_bytes of them a step: all at once they would be more lines than
    int64_t ahead_bytes;  // the core can have under way
};

/* What multiplies tiles, all of one format and n_x between begin and end, which may be NULL. The bits are the same. */
struct tile_products {
    bool is_signed, is_wide; // codes; x in steps of X_TILE(n_x), n_x >= FEW_ROWS
    void (*begin)(int n_x);
    void (*multiply)(enum qformat_id id, int n_x, const struct tile *tile);
    void (*end)(void);
};
extern const struct tile_products tiles_by_amx;

/* Weights as stored, 16 rows or more, times up to FEW_ROWS of x; NULL where there is no such for the format. Behind
 * their rows x is arranged by columns: for each step X_COLUMNS floats,
 *
 *     16 times four columns of each of FEW_ROWS rows, bytes | s_x of FEW_ROWS, for both blocks */
block_product *stored_by_amx(enum qformat_id id);
enum { X_COLUMNS = 16 * FEW_ROWS + 2 * FEW_ROWS };

enum {
    MOST_X = 2 * FEW_ROWS, // rows of x, by AMX
    X_FLOATS = 32,         // of a step of one row of x; these of its floats are:
    X_SCALE = 16,
    X_MIN = 18,
    X_TAKEN_QUARTERS = 20,
    X_MIN_QUARTERS = 24,
    X_TAKEN = 28
};
enum { X_TILE_ROW = 16 }; // floats
#define X_TILE(n_x) (((n_x) + 4) * X_TILE_ROW)

/* How far ahead weights are fetched: to the last row's first block at least, when sixteen rows begin. */
static ALWAYS_INLINE int64_t far_ahead(int64_t stride) { return MAX(24 << 10, SIXTEEN * stride + (4 << 10)); }

/* Vectors of a step made ready. */
static ALWAYS_INLINE int step_vectors(const enum qformat_id f) { return SIXTEEN + n_parts(f) * (has_min(f) ? 2 : 1); }

/* -S of part i. */
static ALWAYS_INLINE __m512i taken_of(const float *x, const int parts, const int i) {
    const int32_t *at = (const int32_t *)(const void *)(x + (parts == 4 ? X_TAKEN_QUARTERS : X_TAKEN) + i);
    return _mm512_set1_epi32(*at);
}

/* y and what part i of a step adds to it, d being D - o S. */
static ALWAYS_INLINE __m512 add_part(const bool min, const int parts, __m512i d, __m512 scale, __m512 less,
                                     const float *x, const int i, __m512 y) {
    __m512 s_x = _mm512_set1_ps(x[X_SCALE + (parts == 4 ? i / 2 : i)]);
    y = _mm512_fmadd_ps(_mm512_cvtepi32_ps(d), _mm512_mul_ps(scale, s_x), y);
    if (min)
        y = _mm512_fmadd_ps(less, _mm512_set1_ps(x[(parts == 4 ? X_MIN_QUARTERS : X_MIN) + i]), y);
    return y;
}
