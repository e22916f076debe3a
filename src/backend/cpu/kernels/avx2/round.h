/* round.h - activations of 8 bits: 32 columns of x as integers of -127 to 127 times a scale (docs/numerics.md). */
#pragma once

#include <immintrin.h>
#include <math.h>
#include <stdbool.h>

struct rounded {
    __m256i first, second; // columns 0 to 15 and 16 to 31, words in order
    float scale;           // none, if a column is no number
};

static inline __m256i rounded_words(const __m256 x[2], __m256 factor) {
    __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(x[0], factor)), b = _mm256_cvtps_epi32(_mm256_mul_ps(x[1], factor));
    return _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xD8);
}

static inline struct rounded round_columns(const float *from) {
    __m256 x[4], most = _mm256_setzero_ps(), zero = _mm256_setzero_ps();
    for (int i = 0; i < 4; i++) {
        x[i] = _mm256_loadu_ps(from + 8 * i);
        most = _mm256_max_ps(most, _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x[i]));
        zero = _mm256_fmadd_ps(x[i], _mm256_setzero_ps(), zero); // NaN of what is none
    }
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(most), _mm256_extractf128_ps(most, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    float largest = _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
    bool is_number = _mm256_movemask_ps(_mm256_cmp_ps(zero, zero, _CMP_UNORD_Q)) == 0;
    float factor = is_number && largest > 0 ? 127.0f / largest : 0;
    if (!isfinite(factor)) // denormal: as zeros
        factor = 0;
    return (struct rounded){rounded_words(x, _mm256_set1_ps(factor)), rounded_words(x + 2, _mm256_set1_ps(factor)),
                            is_number ? largest / 127.0f : NAN};
}
