/* math.h - what a training step computes: functions forward, and backward from the gradient of what they gave.
 *
 * There are two sets of the same functions: in float32, which train, for the best instructions that the processor has;
 * and in double, in which tests hold each backward function to finite differences. math_types.h is the manual. */
#pragma once

#include "train/math/crew.h"

/* Bytes of worker.scratch that a product, and attention over texts of `rows`, want. */
size_t math_scratch_bytes(int64_t rows, size_t real_bytes);

/* n rows, `stride` numbers apart, each of which begins with n_heads heads of `width`. Whole rows are one head. */
struct heads {
    int64_t n, stride;
    int n_heads;
    int64_t width;
};

#define REAL float
#define NAME(x) x##_f32
#include "train/math/math_types.h"
#undef REAL
#undef NAME
#define REAL double
#define NAME(x) x##_f64
#include "train/math/math_types.h"
#undef REAL
#undef NAME

/* By name: "avx512", "avx2", "portable"; NULL: the best that there is here. NULL if this processor has it not. */
const struct math_f32 *math_find(const char *name);
extern const struct math_f64 math_double;
