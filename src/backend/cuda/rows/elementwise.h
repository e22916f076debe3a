/* elementwise.h - elementwise.cu: GATED_ACT, GATED_ADD, SOFTCAP. */
#pragma once

#include "backend/cuda/value.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- elementwise.cu: n_rows as the step was launched for ---- */
void launch_gated_act(const struct launch *l, int n_rows, int act, float limit, struct dmat gate, struct dmat up,
                      struct dmat y,
                      struct dmat qact); // y may be absent where its qact is given
/* Whether the qact can be written in the same node. */
bool gated_act_takes_qact(int act, struct dmat gate, struct dmat up, struct dmat y);
/* x may be unscaled products. */
void launch_gated_add(const struct launch *l, int n_rows, struct dmat add, struct dmat x, struct dmat gate,
                      struct dmat y);
void launch_softcap(const struct launch *l, int n_rows, float cap, struct dmat x, struct dmat y);

#ifdef __cplusplus
}
#endif
