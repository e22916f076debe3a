/* kernels_points_avx2.c - octets of GGUF's IQ1, IQ2 and IQ3 (avx2/points.h) for kernels_blocks_avx2.c.
 *
 * Bound, for one row of x: 32 columns of eight rows are 66 (iq2_xxs) to 110 bytes (iq3_s), and of iq2_xxs 32 codes,
 * which are 64 loads where a core has three a cycle at most, and 150 instructions where it has six: 25 cycles, of which
 * memory needs 10. Of iq3, 64 codes. For many rows of x the tiles bound it, as of other formats. */
#if defined(__x86_64__)
#include "backend/cpu/kernels/avx2/points.h"
#include "backend/cpu/kernels/avx2/one.h"

/* ---- tables ---- */

static uint64_t eights_1[2048], eights_2_xxs[256], eights_2_xs[512], eights_2_s[1024];
static uint32_t fours_xxs[256], fours_s[512];

static unsigned byte_of_place(enum qformat_id f, const struct iq_points *points, unsigned place) {
    switch (f) {
    case QFORMAT_IQ1_S:
    case QFORMAT_IQ1_M: return place;
    case QFORMAT_IQ3_XXS: return 31u + points->levels[place] / 2;
    case QFORMAT_IQ3_S: return 8u + points->levels[place] / 2;
    default: return points->levels[place];
    }
}

static uint64_t bytes_of_point(enum qformat_id f, const struct iq_points *points, int point) {
    uint64_t bytes = 0;
    int n = points->place_bits == 2 ? 8 : 4, mask = (1 << points->place_bits) - 1;
    for (int i = 0; i < n; i++) {
        int place = points->points[point] >> points->place_bits * i & mask;
        bytes |= (uint64_t)byte_of_place(f, points, (unsigned)place) << 8 * i;
    }
    return bytes;
}

static void fill_eights(enum qformat_id f, uint64_t *out) {
    struct iq_points points = iq_points_of(f);
    for (int i = 0; i < points.n; i++)
        out[i] = bytes_of_point(f, &points, i);
}
static void fill_fours(enum qformat_id f, uint32_t *out) {
    struct iq_points points = iq_points_of(f);
    for (int i = 0; i < points.n; i++)
        out[i] = (uint32_t)bytes_of_point(f, &points, i);
}

void points_prepare(void) {
    static bool is_done;
    if (is_done)
        return;
    is_done = true;
    fill_eights(QFORMAT_IQ1_S, eights_1);
    fill_eights(QFORMAT_IQ2_XXS, eights_2_xxs);
    fill_eights(QFORMAT_IQ2_XS, eights_2_xs);
    fill_eights(QFORMAT_IQ2_S, eights_2_s);
    fill_fours(QFORMAT_IQ3_XXS, fours_xxs);
    fill_fours(QFORMAT_IQ3_S, fours_s);
}

static ALWAYS_INLINE const uint64_t *eights_of(const enum qformat_id f) {
    return f == QFORMAT_IQ2_XXS  ? eights_2_xxs
           : f == QFORMAT_IQ2_XS ? eights_2_xs
           : f == QFORMAT_IQ2_S  ? eights_2_s
                                 : eights_1;
}
static ALWAYS_INLINE bool is_iq2(const enum qformat_id f) {
    return f == QFORMAT_IQ2_XXS || f == QFORMAT_IQ2_XS || f == QFORMAT_IQ2_S;
}
static ALWAYS_INLINE bool is_iq3(const enum qformat_id f) { return f == QFORMAT_IQ3_XXS || f == QFORMAT_IQ3_S; }

/* ---- codes ---- */

static ALWAYS_INLINE void read_points(const enum qformat_id f, const uint8_t *p, int64_t stride,
                                      struct octet_points *o) {
    switch (f) {
    case QFORMAT_IQ1_S: points_iq1_s(p, stride, o); break;
    case QFORMAT_IQ1_M: points_iq1_m(p, stride, o); break;
    case QFORMAT_IQ2_XXS: points_iq2_xxs(p, stride, o); break;
    case QFORMAT_IQ2_XS: points_iq2_xs(p, stride, o); break;
    case QFORMAT_IQ2_S: points_iq2_s(p, stride, o); break;
    case QFORMAT_IQ3_XXS: points_iq3_xxs(p, stride, o); break;
    default: points_iq3_s(p, stride, o); break;
    }
}

/* A sub-block of an octet: what was read of it, and where its codes are where they are bytes. */
struct sub {
    const struct scales *scales;
    const __m256i *signs;
    const uint16_t *words;
    const uint8_t *bytes;
    int64_t stride;
};

static ALWAYS_INLINE struct sub sub_of(const struct octet_points *o, const uint8_t *p, int64_t stride, int k) {
    return (struct sub){&o->scales[k], &o->signs[k], o->codes[k], p + 2 + 8 * k, stride};
}

/* Code j of a row: several come with one load, of which a core has too few. */
static ALWAYS_INLINE uint64_t code_at(const enum qformat_id f, const struct sub *s, const int row, const int j) {
    uint64_t words;
    if (f == QFORMAT_IQ2_XXS || f == QFORMAT_IQ3_XXS)
        return (unsigned)u32_at(s->bytes + row * s->stride + j / 4 * 4) >> j % 4 * 8 & 255;
    memcpy(&words, s->words + word_at(row, j / 4 * 4), sizeof words);
    return words >> j % 4 * 16 & 0xFFFF;
}

/* What the tables have of columns 16 h to 16 h + 15 of a row. */
static ALWAYS_INLINE __m128i points_of(const enum qformat_id f, const struct sub *s, const int row, const int h) {
    if (is_iq3(f)) {
        const uint32_t *table = f == QFORMAT_IQ3_XXS ? fours_xxs : fours_s;
        __m128i v = _mm_cvtsi32_si128((int)table[code_at(f, s, row, 4 * h)]);
        v = _mm_insert_epi32(v, (int)table[code_at(f, s, row, 4 * h + 1)], 1);
        v = _mm_insert_epi32(v, (int)table[code_at(f, s, row, 4 * h + 2)], 2);
        return _mm_insert_epi32(v, (int)table[code_at(f, s, row, 4 * h + 3)], 3);
    }
    const uint64_t *table = eights_of(f), *first = table + code_at(f, s, row, 2 * h),
                   *second = table + code_at(f, s, row, 2 * h + 1);
    __m128d v = _mm_load_sd((const double *)(const void *)first);
    return _mm_castpd_si128(_mm_loadh_pd(v, (const double *)(const void *)second));
}

/* Of rows i and i + 4, from each row's four bytes, those of 16 columns: the byte of 8 columns for each of them. */
static ALWAYS_INLINE __m256i byte_of_columns(__m256i v, const int i, const int h) {
    static const _Alignas(32) uint8_t at[4][2][32] = {
#define EIGHT(b) b, b, b, b, b, b, b, b
#define TWICE(b) {EIGHT(b), EIGHT(b + 1), EIGHT(b), EIGHT(b + 1)}
        {TWICE(0), TWICE(2)}, {TWICE(4), TWICE(6)}, {TWICE(8), TWICE(10)}, {TWICE(12), TWICE(14)}};
#undef TWICE
#undef EIGHT
    return _mm256_shuffle_epi8(v, *(const __m256i *)(const void *)at[i][h]);
}

/* All bits of the columns that are negative. */
static ALWAYS_INLINE __m256i minus(const struct sub *s, const int i, const int h) {
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201);
    return _mm256_cmpeq_epi8(_mm256_and_si256(byte_of_columns(*s->signs, i, h), bit), bit);
}

/* 16 columns of rows i and i + 4: codes u, of iq2 signed ones. */
static ALWAYS_INLINE __m256i codes_of_points(const enum qformat_id f, const struct sub *s, const int i, const int h) {
    __m256i v = _mm256_inserti128_si256(_mm256_castsi128_si256(points_of(f, s, i, h)), points_of(f, s, i + 4, h), 1), m;
    switch (f) {
    case QFORMAT_IQ1_S: return v;
    case QFORMAT_IQ1_M: return _mm256_or_si256(_mm256_slli_epi16(v, 3), byte_of_columns(*s->signs, i, h));
    case QFORMAT_IQ3_XXS:
        m = minus(s, i, h);
        return _mm256_add_epi8(_mm256_xor_si256(v, _mm256_and_si256(m, _mm256_set1_epi8(63))), m);
    case QFORMAT_IQ3_S: return _mm256_xor_si256(v, _mm256_and_si256(minus(s, i, h), _mm256_set1_epi8(15)));
    default: return _mm256_sign_epi8(v, _mm256_or_si256(minus(s, i, h), _mm256_set1_epi8(1)));
    }
}

/* ---- one row of x ---- */

/* 16 sums of 16 bits of two neighbouring columns of rows i and i + 4. */
static ALWAYS_INLINE __m256i pairs(const enum qformat_id f, const struct sub *s, const int i, const int h, __m256i x) {
    if (!is_iq2(f))
        return _mm256_maddubs_epi16(codes_of_points(f, s, i, h), x);
    __m256i v = _mm256_inserti128_si256(_mm256_castsi128_si256(points_of(f, s, i, h)), points_of(f, s, i + 4, h), 1);
    return _mm256_maddubs_epi16(v, _mm256_blendv_epi8(x, _mm256_sub_epi8(_mm256_setzero_si256(), x), minus(s, i, h)));
}

/* D of four vectors of such sums, of 32 columns or of 16. As many are added in 16 bits as fit. */
static ALWAYS_INLINE __m256i sums_of_pairs(const enum qformat_id f, __m256i v[4]) {
    switch (f) {
    case QFORMAT_IQ1_S:
    case QFORMAT_IQ3_S:
    case QFORMAT_IQ1_M: return sums_of_words(FOUR_BITS, v); // iq1_m: 18, of 16 columns
    case QFORMAT_IQ2_XS:
    case QFORMAT_IQ2_S: return sums_of_words(FIVE_BITS, v); // 43, of 16 columns
    default: UNROLL for (int i = 0; i < 4; i++) v[i] = _mm256_madd_epi16(v[i], ones()); return sums_of_ints(v);
    }
}

static ALWAYS_INLINE __m256 one_sub(const enum qformat_id f, const struct sub *s, const float *x, __m256 y) {
    __m256i x_low = _mm256_broadcastsi128_si256(load16((const uint8_t *)x)),
            x_high = _mm256_broadcastsi128_si256(load16((const uint8_t *)x + 16)), first[4], second[4], d;
    UNROLL for (int i = 0; i < 4; i++) {
        first[i] = pairs(f, s, i, 0, x_low), second[i] = pairs(f, s, i, 1, x_high);
        if (!by_halves(f))
            first[i] = _mm256_add_epi16(first[i], second[i]);
    }
    d = sums_of_pairs(f, first);
    if (by_halves(f))
        d = _mm256_add_epi32(_mm256_mullo_epi32(d, s->scales->by_half[0]),
                             _mm256_mullo_epi32(sums_of_pairs(f, second), s->scales->by_half[1]));
    return add_block(kind_of(f), d, s->scales, x + 8, y);
}

static ALWAYS_INLINE __m256 points_octet(const enum qformat_id f, const uint8_t *p, int64_t stride, const float *x,
                                         int64_t n_cols, bool near) {
    const int bytes = bytes_of_block(f);
    const uint8_t *ahead = p + fetched_ahead(stride);
    __m256 y = _mm256_setzero_ps();
    struct octet_points o;
    for (int64_t c = 0; c < n_cols; c += SUBS * BLOCK, p += bytes) {
        if (!near)
            ahead = fetch(ahead, OCTET * bytes);
        read_points(f, p, stride, &o);
        for (int k = 0; k < SUBS; k++, x += BYTES_FLOATS) {
            struct sub s = sub_of(&o, p, stride, k);
            y = one_sub(f, &s, x, y);
        }
    }
    return y;
}

/* ---- octets made ready ---- */

static ALWAYS_INLINE void ready_sub(const enum qformat_id f, const struct sub *s, __m256i *out) {
    const enum kind kind = kind_of(f);
    UNROLL for (int h = 0; h < 2; h++) {
        __m256i two_rows[4], turned[4];
        UNROLL for (int i = 0; i < 4; i++) two_rows[i] = codes_of_points(f, s, i, h);
        turn(two_rows, turned);
        UNROLL for (int i = 0; i < 4; i++) put_codes(kind, turned[i], h, i, out);
        if (kind != WORDS || !by_halves(f))
            continue;
        __m256i by = as_pairs(s->scales->by_half[h]);
        UNROLL for (__m256i *v = out + 8 * h, *end = v + 8; v < end; v++)
            _mm256_storeu_si256(v, _mm256_mullo_epi16(_mm256_loadu_si256(v), by));
    }
    put_scales(kind, s->scales, out);
}

static ALWAYS_INLINE void ready_points(const enum qformat_id f, const uint8_t *p, int64_t stride, int64_t n_rows,
                                       int64_t n_blocks, __m256i *out) {
    const int bytes = bytes_of_block(f);
    uint8_t copies[OCTET][MOST_BLOCK_BYTES];
    struct octet_points o;
    for (int64_t b = 0; b < n_blocks; b += SUBS, p += bytes) {
        int64_t from_stride = stride;
        const uint8_t *from = eight_rows(p, &from_stride, n_rows, bytes, copies);
        read_points(f, from, from_stride, &o);
        for (int k = 0; k < SUBS; k++, out += ready_vectors(kind_of(f))) {
            struct sub s = sub_of(&o, from, from_stride, k);
            ready_sub(f, &s, out);
        }
    }
}

#define FUNCTIONS(id) OCTET_FUNCTIONS(id, points_octet, ready_points)
POINT_BLOCKS(FUNCTIONS)
const struct octet_functions points_functions[N_QFORMATS] = {POINT_BLOCKS(OCTET_ROW)};
#endif
