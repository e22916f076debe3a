/* mla.h - mla.cu: latent attention. */
#pragma once

#include "backend/cuda/rows/rows.h"
#include "backend/cuda/value.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- mla.cu ---- */
struct dmla {
    int n_heads, rank, nope_dim, rope_dim, v_dim;
    float eps, scale;
};
void launch_mla_prep(const struct launch *l, const struct dmla *a, const struct drope *rope, struct dmat q,
                     struct dmat kva, struct dweight norm, struct dweight w_uk, struct dcache cache, struct dmat out);
void launch_mla_attention(const struct launch *l, const struct dmla *a, struct dmat q, struct dweight w_uv,
                          struct dcache cache, struct dmat out);

#ifdef __cplusplus
}
#endif
