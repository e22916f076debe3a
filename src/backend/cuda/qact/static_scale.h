/* static_scale.h - static_scale.cu: when a program is compiled; not a node of a step. */
#pragma once

#include "backend/cuda/value.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- static_scale.cu: when a program is compiled; not a node of a step ---- */
/* squares[j] = (variance of gate j) * (variance of what it lets through), for rows x = z * norm with z of variance 1
 * that agree with no row of w: those of (w norm + bias). w e4m3: gates, then what they let through; norm [w.in] floats,
 * or 1 + norm; bias NULL: none. */
struct dgated_sizes {
    struct dweight w;
    const float *norm, *bias;
    bool plus_one;
};
void launch_gated_sizes(cudaStream_t stream, const struct dgated_sizes *g, float *squares);

#ifdef __cplusplus
}
#endif
