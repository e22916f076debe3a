/* math_avx512.c - training's functions for AVX-512 (F, BW, DQ, VL). */
#if defined(__x86_64__)
#include "train/math/math.h"
#include "train/math/math_exp.h"

#include <immintrin.h>
#include <math.h>
#include <string.h>

enum { LANES = 16, TILE_ROWS = 12 };
typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
#define vec_set(x) ((vec)_mm512_set1_ps(x))
#define vec_fma(a, b, c) ((vec)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))
#define EXP exp_f32
#define SQRT sqrtf
#define LOG logf
#define REAL float
#define NAME(x) x##_f32
#define MATH math_avx512
#define MATH_NAME "avx512"
#include "train/math/math_body.h"
#endif
