/* kernels_body.h - the kernels of kernels.h, over the vector vocabulary of a simd_*.h that is included before.
 * A kernels_SET.c includes its simd_SET.h, defines KERNELS as the table's name, and includes this.
 *
 *     body/rows.h      rows of floats; activations
 *     body/elements.h  weights as floats, whatever they are stored as
 *     body/few.h       LINEAR: few rows of activations by weights as they are stored, over body/few_steps.h
 *     body/formats.h   LINEAR by format, and weights that are made ready first
 *     body/tiles.h     matrices of floats, for attention and recurrences
 *     body/int4_rows.h rows of a cache of int4 as floats */
#include "backend/cpu/kernels/kernels.h"

#include "base/status.h"

#include <math.h>
#include <string.h>

#define ALWAYS_INLINE inline __attribute__((always_inline))
#define NOT_INLINE __attribute__((noinline))

/* Constant trip counts are unrolled whole, so that small arrays of vectors live in registers. */
#define UNROLL _Pragma("GCC unroll 16")

/* The vector at p, of which `left` elements exist: all of it, or what is left with zeros behind. */
static ALWAYS_INLINE vf vf_some(const float *p, int64_t left) {
    return left >= LANES ? vf_load(p) : vf_load_n(p, left);
}
static ALWAYS_INLINE void vf_put(float *p, vf v, int64_t left) {
    if (left >= LANES)
        vf_store(p, v);
    else
        vf_store_n(p, v, left);
}

// In this order: each needs those before it.
// clang-format off
#include "backend/cpu/kernels/body/rows.h"
#include "backend/cpu/kernels/body/elements.h"
#include "backend/cpu/kernels/body/few_steps.h"
#include "backend/cpu/kernels/body/few.h"
#include "backend/cpu/kernels/body/formats.h"
#include "backend/cpu/kernels/body/tiles.h"
#include "backend/cpu/kernels/body/int4_rows.h"
// clang-format on

/* ---- measuring ---- */

static float read_floats(const float *x, int64_t n) {
    enum { CHAINS = 4 };
    vf sum[CHAINS];
    UNROLL for (int i = 0; i < CHAINS; i++) sum[i] = vf_set(0);
    for (int64_t i = 0; i < n; i += CHAINS * LANES)
        UNROLL for (int j = 0; j < CHAINS; j++) sum[j] = vf_add(sum[j], vf_load(x + i + j * LANES));
    return vf_sum(vf_add(vf_add(sum[0], sum[1]), vf_add(sum[2], sum[3])));
}

/* Twelve chains cover a latency of four or five cycles on two pipes and leave registers for the factors. */
static float multiply_adds(int64_t n) {
    enum { CHAINS = 12 };
    vf sum[CHAINS], factor = vf_set(0.5f), term = vf_set(1);
    UNROLL for (int i = 0; i < CHAINS; i++) sum[i] = vf_set((float)i);
    for (int64_t i = 0; i < n; i += CHAINS * LANES)
        UNROLL for (int j = 0; j < CHAINS; j++) sum[j] = vf_fma(sum[j], factor, term);
    vf all = sum[0];
    for (int i = 1; i < CHAINS; i++)
        all = vf_add(all, sum[i]);
    return vf_sum(all);
}

const struct kernels KERNELS = {
    .name = KERNELS_NAME,
    .formats = formats,
    .arrangement = arrangement,
    .arrange = arrange,
    .multiply_few = multiply_few,
    .direct_groups = direct_groups,
    .near_floats = FEW_NEAR_FLOATS,
    .ready = ready,
    .convert = convert,
    .pack = pack,
    .multiply = multiply,
    .int4_keys = int4_keys,
    .int4_values = int4_values,
    .dot = dot,
    .add_scaled = add_scaled,
    .multiply_add = multiply_add,
    .blend = blend,
    .scale = scale,
    .add = add,
    .weigh = weigh,
    .rotate_halves = rotate_halves,
    .largest = largest,
    .exp_sum = exp_sum,
    .softcap = softcap,
    .activate = activate_rows,
    .read = read_floats,
    .multiply_adds = multiply_adds,
};
