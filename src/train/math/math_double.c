/* math_double.c - training's functions in double precision. */
#include "train/math/math.h"

#include <math.h>
#include <string.h>

enum { LANES = 2, TILE_ROWS = 4 };
typedef double vec __attribute__((vector_size(8 * LANES), aligned(8), may_alias));
#define vec_set(x) ((vec){0} + (double)(x))
#define vec_fma(a, b, c) ((a) * (b) + (c))
#define EXP exp
#define SQRT sqrt
#define LOG log
#define REAL double
#define NAME(x) x##_f64
#define MATH math_double
#define MATH_NAME "double"
#include "train/math/math_body.h"
