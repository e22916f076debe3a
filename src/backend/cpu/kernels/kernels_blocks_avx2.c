/* kernels_blocks_avx2.c - block formats times activations of 8 bits, by AVX2.
 *
 * vpmaddubsw multiplies unsigned bytes with signed ones and adds pairs in 16 bits, vpmaddwd does so from 16 to 32 bits.
 * The lanes of a float are rows: of an octet of weights a block of 32 columns gives eight integers D, and then
 *
 *     y += s_x (scale D - min S)      a float a row and block, blocks in order (avx2/steps.h; s_x, S below)
 *
 * D is exact, so whoever makes it gives the same bits:
 *     one row of x      codes as they are stored, lanes are columns; sums of eight rows are folded (avx2/one.h)
 *     more rows of x    octets made ready: each vector is four columns of eight rows, to meet four of x broadcast; for
 *                       many rows of x once
 *
 * x is arranged so: of each block and row 32 bytes, or for words, where x has more than one row, 32 words in the order
 * 0 2 1 3 of each four; then s_x, -s_x S, and -s_x S of columns 0 to 15 and 16 to 31. s_x = max |x| / 127, and x / s_x
 * is rounded to even. What is no number in x makes s_x none.
 *
 * An octet made ready is a block of 32 columns after the other: 8 vectors of bytes (of words 16), of HALVES the two
 * scales as pairs of 16 bits, the scale, and the mins. */
#if defined(__x86_64__)
#include "backend/cpu/kernels/avx2/one.h"
#include "backend/cpu/kernels/avx2/round.h"
#include "backend/cpu/kernels/avx2/tiles.h"

#include "base/status.h"

enum {
    BY_BYTES = AVX2_ARRANGEMENTS,
    BY_WORDS,
    PIECE = 8,              // blocks that are multiplied at a time, so that they stay in the first-level cache
    FETCH_BYTES = 16 << 10, // how far ahead two octets are fetched
};

/* ---- activations ---- */

static ALWAYS_INLINE int sum_of(__m256i words) {
    __m256i v = _mm256_madd_epi16(words, _mm256_set1_epi16(1));
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1)));
}

/* Rounds a block. */
static void round_block(const float *from, bool as_words, float *out) {
    struct rounded r = round_columns(from);
    __m256i *to = (__m256i *)(void *)out;
    if (as_words) {
        _mm256_storeu_si256(to, _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(r.first, 0xD8), 0xD8));
        _mm256_storeu_si256(to + 1, _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(r.second, 0xD8), 0xD8));
    } else {
        _mm256_storeu_si256(to, _mm256_permute4x64_epi64(_mm256_packs_epi16(r.first, r.second), 0xD8));
    }
    float *behind = out + (as_words ? 16 : 8);
    int first = sum_of(r.first), second = sum_of(r.second);
    behind[0] = r.scale;
    behind[1] = -r.scale * (float)(first + second);
    behind[2] = -r.scale * (float)first;
    behind[3] = -r.scale * (float)second;
}

static void arrange(int how, const float *x, int64_t x_stride, int n_x, int64_t n, float *out) {
    bool as_words = how == BY_WORDS && n_x > 1;
    for (int64_t c = 0; c < n; c += BLOCK)
        for (int t = 0; t < n_x; t++, out += as_words ? WORDS_FLOATS : BYTES_FLOATS)
            round_block(x + t * x_stride + c, as_words, out);
}

/* ---- sums ---- */

/* To y, with the bias: lanes [0, n) as rows r ... */
static ALWAYS_INLINE void put(const struct few_rows *f, int64_t r, int64_t n, int t, __m256 y) {
    float lanes[OCTET], *to = f->y + t * f->y_stride + r;
    if (n == OCTET) {
        _mm256_storeu_ps(to, f->bias ? _mm256_add_ps(y, _mm256_loadu_ps(f->bias + r)) : y);
        return;
    }
    _mm256_storeu_ps(lanes, y);
    for (int64_t i = 0; i < n; i++)
        to[i] = lanes[i] + (f->bias ? f->bias[r + i] : 0);
}

/* The octet at row r of n: the last one begins eight rows before the end, and some rows are computed twice. */
static int64_t octet_start(int64_t r, int64_t n) { return n >= OCTET && r > n - OCTET ? n - OCTET : r; }

/* ---- octets made ready ---- */

/* Whether the bytes that codes are made of were turned for others before: those of a block go by h, then by k. */
static ALWAYS_INLINE bool low_is_new(const enum qformat_id f, const int k, const int h) {
    bool as_before = k > 0 && low_at(f, k, h) == low_at(f, k - 1, h),
         as_two_before = k > 1 && low_at(f, k, h) == low_at(f, k - 2, h), // Q6_K
        as_first_half = h == 1 && cols_of_block(f) == BLOCK && low_at(f, k, 1) == low_at(f, k, 0);
    return !as_before && !as_two_before && !as_first_half;
}
static ALWAYS_INLINE bool high_is_new(const enum qformat_id f, const int k, const int h) {
    return k == 0 || high_at(f, k, h) != high_at(f, k - 1, h);
}

/* Fifth bits of columns 16 h + 4 i to 16 h + 4 i + 3 of eight rows, whose words these are. */
static ALWAYS_INLINE __m256i fifth_of_eight(__m256i words, const int h, const int i) {
    const __m256i byte =
        _mm256_setr_epi32(0, 0x04040404, 0x08080808, 0x0C0C0C0C, 0, 0x04040404, 0x08080808, 0x0C0C0C0C);
    return sixteens(words, _mm256_add_epi8(byte, _mm256_set1_epi8((char)(2 * h + i / 2))),
                    _mm256_set1_epi32(i % 2 ? (int)0x80402010 : 0x08040201));
}

/* Codes of a block as stored, to blocks of 32 columns. Bytes are turned before codes are taken from them: many have
 * several. */
static ALWAYS_INLINE void ready_codes(const enum qformat_id f, const uint8_t *p, int64_t stride, __m256i *out) {
    const enum kind kind = kind_of(f);
    __m256i low[2][4], high[4], fifth = has_fifth(f) ? words_at(p + fifth_at(f), stride) : _mm256_setzero_si256();
    UNROLL for (int h = 0; h < 2; h++) UNROLL for (int k = 0; k < cols_of_block(f) / BLOCK; k++) {
        const int slot = f == QFORMAT_Q6_K ? k % 2 : 0;
        if (low_is_new(f, k, h))
            turned_at(p + low_at(f, k, h), stride, low[slot]);
        if (has_high(f) && high_is_new(f, k, h))
            turned_at(p + high_at(f, k, h), stride, high);
        UNROLL for (int i = 0; i < 4; i++) {
            if (has_fifth(f))
                high[i] = fifth_of_eight(fifth, h, i);
            if (four_digits(f, k, h)) {
                put_codes(kind, ternary(low[slot][3], i), h, i, out + k * ready_vectors(kind));
                continue;
            }
            put_codes(kind, codes_from(f, k, h, low[slot][i], has_high(f) || has_fifth(f) ? high[i] : fifth), h, i,
                      out + k * ready_vectors(kind));
        }
    }
}

static ALWAYS_INLINE void ready_octet(const enum qformat_id f, const uint8_t *p, int64_t stride, int64_t n_rows,
                                      int64_t n_blocks, __m256i *out) {
    const int bytes = bytes_of_block(f), each = cols_of_block(f) / BLOCK;
    uint8_t copies[OCTET][MOST_BLOCK_BYTES];
    for (int64_t b = 0; b < n_blocks; b += each, p += bytes) {
        int64_t from_stride = stride;
        const uint8_t *from = eight_rows(p, &from_stride, n_rows, bytes, copies);
        struct packed_scales packed;
        if (each > 1)
            packed = packed_scales(f, from, from_stride);
        ready_codes(f, from, from_stride, out);
        UNROLL for (int k = 0; k < each; k++, out += ready_vectors(kind_of(f))) {
            struct scales s = each > 1 ? large_scales(f, &packed, k) : small_scales(f, from, from_stride);
            put_scales(kind_of(f), &s, out);
        }
    }
}

/* ---- formats ---- */

#define FUNCTIONS(id) OCTET_FUNCTIONS(id, one_octet, ready_octet)
SMALL_BLOCKS(FUNCTIONS)
LARGE_BLOCKS(FUNCTIONS)
static const struct octet_functions column_functions[N_QFORMATS] = {SMALL_BLOCKS(OCTET_ROW) LARGE_BLOCKS(OCTET_ROW)};

static const struct octet_functions *functions_of(enum qformat_id id) {
    return points_functions[id].one ? &points_functions[id] : &column_functions[id];
}

/* What parts made ready name as their format: its number is that of the blocks they were. */
static const struct qformat ready_formats[N_QFORMATS] = {
#define ROW(name) [QFORMAT_##name] = {.id = QFORMAT_##name},
    SMALL_BLOCKS(ROW) LARGE_BLOCKS(ROW) POINT_BLOCKS(ROW)
#undef ROW
};

/* One row of x. Fewer rows than an octet has go one by one, as eight times the same. */
static void multiply_one(const struct few_rows *f) {
    const int64_t stride = f->part->row_stride, n = f->n_rows, step = n < OCTET ? 1 : OCTET;
    const uint8_t *w = (const uint8_t *)f->part->data + f->row * stride;
    const struct octet_functions *octet = functions_of(f->part->format->id);
    for (int64_t at = 0; at < n; at += step) {
        int64_t r = octet_start(at, n);
        put(f, r, step, 0, octet->one(w + r * stride, n < OCTET ? 0 : stride, f->x, f->n_cols, f->near));
    }
}

/* To y: the octets at r, of which there may be one alone. */
static void put_octets(const struct few_rows *f, int64_t r, const __m256 *y) {
    for (int o = 0; o < 2 && r + o * OCTET < f->n_rows; o++)
        for (int t = 0; t < f->n_x; t++)
            put(f, octet_start(r + o * OCTET, f->n_rows), MIN(f->n_rows, OCTET), t, y[o * FEW_ROWS + t]);
}

static void multiply_ready(const struct few_rows *f) {
    const enum kind kind = kind_of(f->part->format->id);
    const int64_t n_blocks = f->part->row_stride / BLOCK, octet = n_blocks * ready_vectors(kind);
    const __m256i *ready = f->part->data;
    BUG_IF(f->n_x == 1 && kind == WORDS); // whose x is as bytes: several groups have four rows or more each
    for (int64_t r = 0; r < f->n_rows; r += 2 * OCTET, ready += 2 * octet) {
        __m256 y[2 * FEW_ROWS] = {0};
        for (int64_t b = 0; b < n_blocks; b += PIECE) {
            const __m256i *first = ready + b * ready_vectors(kind);
            struct octets octets = {.first = first,
                                    .second = r + OCTET < f->n_rows ? first + octet : first,
                                    .n_blocks = MIN(n_blocks - b, PIECE)};
            multiply_octets(kind, &octets, f->x + b * f->n_x * x_floats(kind, f->n_x), f->n_x, y);
        }
        put_octets(f, r, y);
    }
}

/* Blocks [b, b + n) of the octet at r of weights as they are stored. */
static void ready_piece(const struct few_rows *f, int64_t r, int64_t b, int64_t n, __m256i *out) {
    const enum qformat_id id = f->part->format->id;
    const int64_t stride = f->part->row_stride, start = octet_start(r, f->n_rows),
                  bytes = block_row_bytes(&block_formats[id], BLOCK * b);
    const uint8_t *p = (const uint8_t *)f->part->data + (f->row + start) * stride;
    functions_of(id)->ready(p + bytes, stride, MIN(f->n_rows, OCTET), n, out);
}

/* Weights as they are stored, made ready by pieces that stay in the first-level cache. */
static void multiply_several(const struct few_rows *f) {
    const struct qformat *format = f->part->format;
    const enum kind kind = kind_of(format->id);
    const int64_t n_blocks = f->n_cols / BLOCK;
    __m256i ready[2][PIECE * 17];
    struct octets octets = {.first = ready[0]};
    if (!f->near)
        octets.ahead_bytes = 2 * OCTET * BLOCK * format->block_bytes / format->block_cols;
    for (int64_t r = 0; r < f->n_rows; r += 2 * OCTET) {
        __m256 y[2 * FEW_ROWS] = {0};
        bool two_octets = r + OCTET < f->n_rows;
        octets.second = ready[two_octets];
        octets.ahead = (const uint8_t *)f->part->data + (f->row + r) * f->part->row_stride + FETCH_BYTES;
        for (int64_t b = 0; b < n_blocks; b += octets.n_blocks) {
            octets.n_blocks = MIN(n_blocks - b, PIECE);
            for (int o = 0; o < 1 + two_octets; o++)
                ready_piece(f, r + o * OCTET, b, octets.n_blocks, ready[o]);
            multiply_octets(kind, &octets, f->x + b * f->n_x * x_floats(kind, f->n_x), f->n_x, y);
            octets.ahead += octets.n_blocks * octets.ahead_bytes;
        }
        put_octets(f, r, y);
    }
}

static void multiply(const struct few_rows *f) {
    enum qformat_id id = f->part->format->id;
    if (f->part->format == &ready_formats[id])
        multiply_ready(f);
    else if (f->n_x == 1)
        multiply_one(f);
    else
        multiply_several(f);
}

static block_product *product_of(const struct weight_part *part) {
    return functions_of(part->format->id)->one ? multiply : NULL;
}

static int arrangement(const struct weight_part *part) {
    return kind_of(part->format->id) == WORDS ? BY_WORDS : BY_BYTES;
}

static struct weight_part make_ready(const struct weight_part *part, int64_t row, int64_t n_rows, int64_t n,
                                     float *out) {
    const enum qformat_id id = part->format->id;
    const int64_t n_blocks = n / BLOCK, octet = n_blocks * ready_vectors(kind_of(id));
    const uint8_t *w = (const uint8_t *)part->data + row * part->row_stride;
    __m256i *to = (__m256i *)(void *)out;
    for (int64_t r = 0; r < n_rows; r += OCTET, to += octet)
        functions_of(id)->ready(w + octet_start(r, n_rows) * part->row_stride, part->row_stride, MIN(n_rows, OCTET),
                                n_blocks, to);
    return (struct weight_part){
        .format = &ready_formats[id], .dtype = DT_U8, .data = out, .n_rows = n_rows, .row_stride = n, .col_stride = 1};
}

const struct block_products products_avx2 = {.of = product_of,
                                             .arrangements = AVX2_ARRANGEMENTS,
                                             .arrangement = arrangement,
                                             .arrange = arrange,
                                             .direct_groups = 1,
                                             .ready = make_ready,
                                             .prepare = points_prepare};
#endif
