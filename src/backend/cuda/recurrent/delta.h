/* delta.h - delta.cu: SHORT_CONV and DELTA_RULE. */
#pragma once

#include "backend/cuda/value.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- delta.cu ---- */
void launch_short_conv(const struct launch *l, int kernel, struct dmat u, struct dweight w, struct dcache cache,
                       struct dmat y);
struct ddelta {
    int n_key_heads, n_value_heads, key_dim, value_dim;
    int64_t state_offset; // of the delta state behind the conv inputs, in floats
};
void launch_delta_rule(const struct launch *l, const struct ddelta *a, struct dmat qkv, struct dmat b, struct dmat gate,
                       struct dweight a_log, struct dweight dt_bias, struct dcache cache, struct dmat out);

#ifdef __cplusplus
}
#endif
