/* kernels_dotprod.c - block formats times activations of 8 bits, on Arm processors with the dot product (FEAT_DotProd).
 *
 * SDOT adds to each of 4 sums of 32 bits the products of four pairs of signed bytes. 32 columns, a block of the
 * smallest formats and what shares s_x, are a step: two registers of codes, whose lane i has columns 4 i to 4 i + 3 of
 * each 16.
 *
 *     codes   c, signed bytes made of what the block stores                               once for all rows of x
 *     D       sum of c x                                                                  integers, exact
 *     y      += s_x (scale D - min S), S the sum of x's columns                           float32
 *
 * with scale and min of 16 columns in some formats. x is arranged so: for each 32 columns and row 32 bytes x, 8 floats
 * -S (of four columns each), s_x = max |x| / 127, and 3 floats of nothing. x are rounded to even; what is no number in
 * x makes s_x none.
 *
 * Run under emulation only: how many rows are best taken together was never timed. */
#if defined(__aarch64__)
#include "backend/cpu/kernels/blocks.h"
#include "backend/cpu/kernels/fp4/mxfp4.h"

#include "base/status.h"

#include <arm_neon.h>
#include <limits.h>
#include <math.h>
#include <string.h>

#define ALWAYS_INLINE inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

enum {
    STEP = 32,     // columns
    X_FLOATS = 20, // of a step of one row of x, as arranged
    X_SUMS = 8,    // where -S begins
    X_SCALE = 16,  // where s_x is
    LANES = 4
};

/* ---- activations ---- */

/* 16 columns of x times factor, to bytes; -S of each four. */
static ALWAYS_INLINE void round_16(const float *x, float factor, int8_t *q, float *sums) {
    int16x4_t part[4];
    UNROLL for (int i = 0; i < 4; i++) part[i] = vqmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + 4 * i), factor)));
    int8x16_t bytes =
        vcombine_s8(vqmovn_s16(vcombine_s16(part[0], part[1])), vqmovn_s16(vcombine_s16(part[2], part[3])));
    vst1q_s8(q, bytes);
    vst1q_f32(sums, vcvtq_f32_s32(vdotq_s32(vdupq_n_s32(0), vdupq_n_s8(-1), bytes)));
}

static void round_step(const float *x, float *out) {
    float32x4_t most = vdupq_n_f32(0), zero = vdupq_n_f32(0); // zero: NaN of what is no number
    for (int i = 0; i < STEP; i += 4) {
        most = vmaxq_f32(most, vabsq_f32(vld1q_f32(x + i)));
        zero = vfmaq_n_f32(zero, vld1q_f32(x + i), 0);
    }
    float max = vmaxvq_f32(most), factor = 127.0f / max;
    bool is_number = vaddvq_f32(zero) == 0;
    if (!is_number || !isfinite(factor)) // zeros, denormal numbers
        factor = 0;
    round_16(x, factor, (int8_t *)out, out + X_SUMS);
    round_16(x + 16, factor, (int8_t *)out + 16, out + X_SUMS + 4);
    out[X_SCALE] = is_number ? max / 127.0f : NAN;
    memset(out + X_SCALE + 1, 0, 3 * sizeof *out);
}

static void arrange(int how, const float *x, int64_t x_stride, int n_x, int64_t n, float *out) {
    (void)how;
    for (int64_t c = 0; c < n; c += STEP)
        for (int t = 0; t < n_x; t++, out += X_FLOATS) {
            float some[STEP] = {0};
            const float *from = x + t * x_stride + c;
            if (n - c < STEP)
                from = memcpy(some, from, (size_t)(n - c) * sizeof *some);
            round_step(from, out);
        }
}

/* ---- blocks ---- */

/* What a step needs of the weights: codes, and for its columns from 0 and from 16 scale and what is added. */
struct step {
    int8x16_t codes[2];
    float scale[2], min[2];
};

static ALWAYS_INLINE float f16_at(const uint8_t *p) {
    float16_t h;
    memcpy(&h, p, sizeof h);
    return (float)h;
}

static ALWAYS_INLINE int8x16_t low_nibbles(uint8x16_t b) { return vreinterpretq_s8_u8(vandq_u8(b, vdupq_n_u8(15))); }
static ALWAYS_INLINE int8x16_t high_nibbles(uint8x16_t b) { return vreinterpretq_s8_u8(vshrq_n_u8(b, 4)); }
static ALWAYS_INLINE int8x16_t less(int8x16_t codes, int8_t n) { return vsubq_s8(codes, vdupq_n_s8(n)); }

/* codes with `bit` where bits of the mask are set. */
static ALWAYS_INLINE int8x16_t with(int8x16_t codes, uint8x16_t set, uint8_t bit) {
    return vorrq_s8(codes, vreinterpretq_s8_u8(vandq_u8(set, vdupq_n_u8(bit))));
}

/* All ones where the bits of the 16 columns of two bytes are set. */
static ALWAYS_INLINE uint8x16_t bits_at(const uint8_t *p) {
    static const uint8_t each[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    return vtstq_u8(vcombine_u8(vdup_n_u8(p[0]), vdup_n_u8(p[1])), vld1q_u8(each));
}

static ALWAYS_INLINE void nibbles(const uint8_t *p, int8x16_t codes[2]) {
    uint8x16_t b = vld1q_u8(p);
    codes[0] = low_nibbles(b);
    codes[1] = high_nibbles(b);
}

static ALWAYS_INLINE void looked_up(const int8_t values[16], int8x16_t codes[2]) {
    int8x16_t table = vld1q_s8(values);
    UNROLL for (int h = 0; h < 2; h++) codes[h] = vqtbl1q_s8(table, vreinterpretq_u8_s8(codes[h]));
}

static ALWAYS_INLINE bool has_min(const enum qformat_id f) {
    return f == QFORMAT_Q4_1 || f == QFORMAT_Q5_1 || f == QFORMAT_Q4_K || f == QFORMAT_Q5_K || f == QFORMAT_Q2_K;
}

/* Whether scales are of 16 columns. */
static ALWAYS_INLINE bool by_halves(const enum qformat_id f) {
    return f == QFORMAT_Q6_K || f == QFORMAT_Q3_K || f == QFORMAT_Q2_K;
}

/* A block of 32 columns. */
static ALWAYS_INLINE struct step small_block(const enum qformat_id f, const uint8_t *b) {
    struct step s = {.scale = {0}};
    const bool fifth = f == QFORMAT_Q5_0 || f == QFORMAT_Q5_1;
    const int at = f == QFORMAT_MXFP4_HALVES ? 1 : 2 + (has_min(f) ? 2 : 0) + (fifth ? 4 : 0); // of the codes
    if (f == QFORMAT_Q8_0)
        UNROLL for (int h = 0; h < 2; h++) s.codes[h] = vld1q_s8((const int8_t *)b + at + 16 * h);
    else
        nibbles(b + at, s.codes);
    if (fifth)
        UNROLL for (int h = 0; h < 2; h++) s.codes[h] = with(s.codes[h], bits_at(b + at - 4 + 2 * h), 16);
    if (f == QFORMAT_Q4_0 || f == QFORMAT_Q5_0)
        UNROLL for (int h = 0; h < 2; h++) s.codes[h] = less(s.codes[h], fifth ? 16 : 8);
    if (f == QFORMAT_IQ4_NL)
        looked_up(iq4_values, s.codes);
    if (f == QFORMAT_MXFP4_HALVES)
        looked_up(e2m1_values, s.codes);
    s.scale[0] = f == QFORMAT_MXFP4_HALVES ? e8m0_half(b[0]) : f16_at(b);
    if (has_min(f)) // which is added: taken from nothing
        s.min[0] = -f16_at(b + 2);
    return s;
}

/* Scales of a block of 256 columns: 8 of 32 columns each, or 16 of 16. */
struct scales {
    float scale[16], min[16];
};

/* out = 8 numbers times factor. */
static ALWAYS_INLINE void scale_bytes(const int8x8_t numbers, float factor, float out[8]) {
    int16x8_t wide = vmovl_s8(numbers);
    vst1q_f32(out, vmulq_n_f32(vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide))), factor));
    vst1q_f32(out + 4, vmulq_n_f32(vcvtq_f32_s32(vmovl_s16(vget_high_s16(wide))), factor));
}

static ALWAYS_INLINE void scale_16(const int8x16_t numbers, float factor, float out[16]) {
    scale_bytes(vget_low_s8(numbers), factor, out);
    scale_bytes(vget_high_s8(numbers), factor, out + 8);
}

static ALWAYS_INLINE uint32_t u32_at(const uint8_t *p) {
    uint32_t u;
    memcpy(&u, p, sizeof u);
    return u;
}

/* The 6-bit scales and mins of q4_k and q5_k, 12 bytes at s. */
static ALWAYS_INLINE void six_bits(const uint8_t *s, float d, float d_min, struct scales *out) {
    uint32_t a = u32_at(s), b = u32_at(s + 4), c = u32_at(s + 8);
    uint64_t scale = (c & 0x0F0F0F0F) | (a >> 6 & 0x03030303) << 4;
    uint64_t min = (c >> 4 & 0x0F0F0F0F) | (b >> 6 & 0x03030303) << 4;
    scale_bytes(vcreate_s8(scale << 32 | (a & 0x3F3F3F3F)), d, out->scale);
    scale_bytes(vcreate_s8(min << 32 | (b & 0x3F3F3F3F)), d_min, out->min);
}

static ALWAYS_INLINE void scales_of(const enum qformat_id f, const uint8_t *b, struct scales *out) {
    int8_t scale[16];
    switch (f) {
    case QFORMAT_Q4_K:
    case QFORMAT_Q5_K: six_bits(b + 4, f16_at(b), f16_at(b + 2), out); return;
    case QFORMAT_Q6_K: scale_16(vld1q_s8((const int8_t *)b + 192), f16_at(b + 208), out->scale); return;
    case QFORMAT_Q2_K:
        scale_16(low_nibbles(vld1q_u8(b)), f16_at(b + 80), out->scale);
        scale_16(high_nibbles(vld1q_u8(b)), f16_at(b + 82), out->min);
        return;
    case QFORMAT_Q3_K: {
        const uint8_t *p = b + 96;
        for (int k = 0; k < 16; k++)
            scale[k] = (int8_t)(((k < 8 ? p[k] & 15 : p[k - 8] >> 4) | (p[8 + k % 4] >> k / 4 * 2 & 3) << 4) - 32);
        scale_16(vld1q_s8(scale), f16_at(b + 108), out->scale);
        return;
    }
    case QFORMAT_IQ4_XS:
        for (int k = 0; k < 8; k++)
            scale[k] = (int8_t)(((b[4 + k / 2] >> k % 2 * 4 & 15) | ((b[2] | b[3] << 8) >> 2 * k & 3) << 4) - 32);
        scale_bytes(vld1_s8(scale), f16_at(b), out->scale);
        return;
    default: // TQ2_0
        for (int k = 0; k < 8; k++)
            out->scale[k] = f16_at(b + 64);
    }
}

/* Of 16 bytes, `bits` bits from bit `from` on. */
static ALWAYS_INLINE int8x16_t bits_of(const uint8_t *p, int from, const int bits) {
    uint8x16_t b = vshlq_u8(vld1q_u8(p), vdupq_n_s8((int8_t)-from));
    return vreinterpretq_s8_u8(vandq_u8(b, vdupq_n_u8((uint8_t)((1 << bits) - 1))));
}

/* The codes of columns 32 k + 16 h to 32 k + 16 h + 15 of a block of 256. */
static ALWAYS_INLINE int8x16_t codes_of(const enum qformat_id f, const uint8_t *b, const int k, const int h) {
    const int half = k / 4, run = k % 4;
    switch (f) {
    case QFORMAT_Q4_K: return bits_of(b + 16 + 32 * (k / 2) + 16 * h, k % 2 * 4, 4);
    case QFORMAT_Q5_K: {
        int8x16_t fifth = bits_of(b + 16 + 16 * h, k, 1);
        return vorrq_s8(bits_of(b + 48 + 32 * (k / 2) + 16 * h, k % 2 * 4, 4), vshlq_n_s8(fifth, 4));
    }
    case QFORMAT_Q6_K: {
        int8x16_t low = bits_of(b + 64 * half + 32 * (run % 2) + 16 * h, run / 2 * 4, 4);
        return less(vorrq_s8(low, vshlq_n_s8(bits_of(b + 128 + 32 * half + 16 * h, 2 * run, 2), 4)), 32);
    }
    case QFORMAT_Q2_K: return bits_of(b + 16 + 32 * half + 16 * h, 2 * run, 2);
    case QFORMAT_Q3_K: {
        int8x16_t third = vshlq_n_s8(bits_of(b + 16 * h, k, 1), 2);
        return less(vorrq_s8(bits_of(b + 32 + 32 * half + 16 * h, 2 * run, 2), third), 4);
    }
    case QFORMAT_IQ4_XS: {
        int8x16_t code = bits_of(b + 8 + 16 * k, 4 * h, 4);
        return vqtbl1q_s8(vld1q_s8(iq4_values), vreinterpretq_u8_s8(code));
    }
    default: return less(bits_of(b + 32 * half + 16 * h, 2 * run, 2), 1); // TQ2_0
    }
}

/* Columns 32 k to 32 k + 31 of a block of 256. */
static ALWAYS_INLINE struct step step_of(const enum qformat_id f, const uint8_t *b, const struct scales *all,
                                         const int k) {
    const int n = by_halves(f) ? 2 : 1;
    struct step s = {.scale = {0}};
    UNROLL for (int h = 0; h < 2; h++) s.codes[h] = codes_of(f, b, k, h);
    UNROLL for (int h = 0; h < n; h++) {
        s.scale[h] = all->scale[n * k + h];
        s.min[h] = has_min(f) ? all->min[n * k + h] : 0;
    }
    return s;
}

/* ---- products ----
 *
 * Four rows of weights meet up to four rows of x: 16 sums and 8 registers of codes, of 32. More rows of x go by fours,
 * then two, then one, while the weights are near. */
enum { MAX_W = 4, MAX_X = 4 };

/* One step of n_w rows of weights and n_x rows of x, as arranged. */
static ALWAYS_INLINE void add_step(const enum qformat_id f, const int n_w, const int n_x, const struct step *s,
                                   const float *x, float32x4_t sum[][MAX_X]) {
    const int n = by_halves(f) ? 2 : 1;
    UNROLL for (int t = 0; t < n_x; t++) {
        const float *at = x + t * X_FLOATS;
        const int8x16_t q[2] = {vld1q_s8((const int8_t *)at), vld1q_s8((const int8_t *)at + 16)};
        float32x4_t taken[2] = {vld1q_f32(at + X_SUMS), vld1q_f32(at + X_SUMS + 4)};
        if (n == 1)
            taken[0] = vaddq_f32(taken[0], taken[1]);
        UNROLL for (int i = 0; i < n_w; i++) {
            int32x4_t first = vdotq_s32(vdupq_n_s32(0), s[i].codes[0], q[0]);
            int32x4_t last = vdotq_s32(n == 1 ? first : vdupq_n_s32(0), s[i].codes[1], q[1]);
            float32x4_t d = vmulq_n_f32(vcvtq_f32_s32(n == 1 ? last : first), s[i].scale[0]);
            if (n == 2)
                d = vfmaq_n_f32(d, vcvtq_f32_s32(last), s[i].scale[1]);
            if (has_min(f))
                UNROLL for (int h = 0; h < n; h++) d = vfmaq_n_f32(d, taken[h], s[i].min[h]);
            sum[i][t] = vfmaq_n_f32(sum[i][t], d, at[X_SCALE]);
        }
    }
}

/* To memory the rows of a tile are one linear stream, fetched into the second-level cache well ahead of its use. */
static ALWAYS_INLINE const uint8_t *fetch(const uint8_t *ahead, int n_bytes) {
    for (int i = 0; i < n_bytes; i += 64)
        __builtin_prefetch(ahead + i, 0, 2);
    return ahead + n_bytes;
}

/* Rows of weights, `stride` bytes apart, and of x, of which `all_x` are arranged together; columns [from, to), which
 * are whole blocks; near: the weights are in a cache. */
struct walk {
    const uint8_t *row;
    const float *x;
    int64_t stride, from, to;
    int all_x;
    bool near;
};

static ALWAYS_INLINE void add_blocks(const enum qformat_id f, const int n_w, const int n_x, const struct walk *w,
                                     float32x4_t sum[][MAX_X]) {
    const int bytes = bytes_of_block(f), cols = cols_of_block(f);
    const uint8_t *b = w->row + w->from / cols * bytes, *ahead = w->row + AHEAD_BYTES;
    const float *x = w->x + w->from / STEP * w->all_x * X_FLOATS;
    const int64_t stride = w->stride;
    struct step s[MAX_W];
    for (int64_t c = w->from; c < w->to; c += cols, b += bytes) {
        struct scales all[MAX_W];
        if (!w->near)
            ahead = fetch(ahead, n_w * bytes);
        if (cols > STEP)
            UNROLL for (int i = 0; i < n_w; i++) scales_of(f, b + i * stride, &all[i]);
        for (int k = 0; k < cols / STEP; k++, x += w->all_x * X_FLOATS) {
            UNROLL for (int i = 0; i < n_w; i++) s[i] =
                cols > STEP ? step_of(f, b + i * stride, &all[i], k) : small_block(f, b + i * stride);
            add_step(f, n_w, n_x, s, x, sum);
        }
    }
}

/* n_w rows of weights from r on, n_x of x from t on. */
static ALWAYS_INLINE void multiply_tile(const enum qformat_id f, const int n_w, const int n_x,
                                        const struct few_rows *few, int64_t r, int t, int64_t from, int64_t to) {
    const int64_t n = few->n_cols, stride = few->part->row_stride;
    const struct walk walk = {(const uint8_t *)few->part->data + (few->row + r) * stride,
                              few->x + t * X_FLOATS,
                              stride,
                              from,
                              to,
                              few->n_x,
                              few->near || from > 0 || t > 0};
    float *kept = from > 0 || to < n ? few->partial + (r * few->n_x + n_w * t) * LANES : NULL;
    float32x4_t sum[MAX_W][MAX_X];
    UNROLL for (int i = 0; i < n_w; i++) UNROLL for (int j = 0; j < n_x; j++) sum[i][j] =
        from > 0 ? vld1q_f32(kept + (i * n_x + j) * LANES) : vdupq_n_f32(0);
    add_blocks(f, n_w, n_x, &walk, sum);
    UNROLL for (int i = 0; i < n_w; i++) UNROLL for (int j = 0; j < n_x; j++) {
        if (to < n)
            vst1q_f32(kept + (i * n_x + j) * LANES, sum[i][j]);
        else
            few->y[(t + j) * few->y_stride + r + i] = vaddvq_f32(sum[i][j]) + (few->bias ? few->bias[r + i] : 0);
    }
}

static ALWAYS_INLINE void multiply_tiles(const enum qformat_id f, const int n_w, const struct few_rows *few, int64_t r,
                                         int64_t from, int64_t to) {
    int t = 0;
    for (; t + MAX_X <= few->n_x; t += MAX_X)
        multiply_tile(f, n_w, MAX_X, few, r, t, from, to);
    if (t + 2 <= few->n_x) {
        multiply_tile(f, n_w, 2, few, r, t, from, to);
        t += 2;
    }
    if (t < few->n_x)
        multiply_tile(f, n_w, 1, few, r, t, from, to);
}

/* Columns go by so many, where several groups of x meet the rows: what of x is met again is near. */
enum { NEAR = 1024 };

static ALWAYS_INLINE void multiply_rows(const enum qformat_id f, const struct few_rows *few) {
    const int64_t n = few->n_cols, piece = few->partial && few->n_rows <= PARTIAL_ROWS ? NEAR : n;
    for (int64_t from = 0, to; from < n; from = to) {
        int64_t r = 0;
        to = MIN(from + piece, n);
        for (; r + MAX_W <= few->n_rows; r += MAX_W)
            multiply_tiles(f, MAX_W, few, r, from, to);
        for (; r < few->n_rows; r++)
            multiply_tiles(f, 1, few, r, from, to);
    }
}

#define ROWS(id) \
    static void multiply_##id(const struct few_rows *f) { multiply_rows(QFORMAT_##id, f); }
#define EACH_FORMAT(X) \
    X(Q4_0)            \
    X(Q4_1) X(Q5_0) X(Q5_1) X(Q8_0) X(IQ4_NL) X(MXFP4_HALVES) X(Q2_K) X(Q3_K) X(Q4_K) X(Q5_K) X(Q6_K) X(IQ4_XS) X(TQ2_0)
EACH_FORMAT(ROWS)

static block_product *product_of(const struct weight_part *part) {
    static block_product *const functions[N_QFORMATS] = {
#define ROW(id) [QFORMAT_##id] = multiply_##id,
        EACH_FORMAT(ROW)
#undef ROW
    };
    return functions[part->format->id];
}

static int arrangement(const struct weight_part *part) { return (void)part, DOTPROD_ARRANGEMENTS; }

const struct block_products products_dotprod = {.of = product_of,
                                                .arrangements = DOTPROD_ARRANGEMENTS,
                                                .arrangement = arrangement,
                                                .arrange = arrange,
                                                .direct_groups = INT_MAX};
#endif
