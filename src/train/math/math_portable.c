/* math_portable.c - training's functions for any processor. */
#include "train/math/math.h"
#include "train/math/math_exp.h"

#include <math.h>
#include <string.h>

enum { LANES = 4, TILE_ROWS = 4 };
typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
#define vec_set(x) ((vec){0} + (float)(x))
#define vec_fma(a, b, c) ((a) * (b) + (c))
#define EXP exp_f32
#define SQRT sqrtf
#define LOG logf
#define REAL float
#define NAME(x) x##_f32
#define MATH math_portable
#define MATH_NAME "portable"
#include "train/math/math_body.h"
