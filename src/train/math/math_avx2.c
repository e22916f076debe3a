/* math_avx2.c - training's functions for AVX2 with FMA. */
#if defined(__x86_64__)
#include "train/math/math.h"
#include "train/math/math_exp.h"

#include <immintrin.h>
#include <math.h>
#include <string.h>

enum { LANES = 8, TILE_ROWS = 6 };
typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
#define vec_set(x) ((vec)_mm256_set1_ps(x))
#define vec_fma(a, b, c) ((vec)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#define EXP exp_f32
#define SQRT sqrtf
#define LOG logf
#define REAL float
#define NAME(x) x##_f32
#define MATH math_avx2
#define MATH_NAME "avx2"
#include "train/math/math_body.h"
#endif
