/* delta.h - delta.cu: SHORT_CONV and DELTA_RULE. */
#pragma once

#include "backend/cuda/value.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How states go back (load_options.n_back). A slot has, beside a state that lags behind its sequence, what its ops read
 * of the last tokens, in float32:
 *
 *     [ conv inputs | S ] of the tokens before base | u [n][conv_width] | qkv, b and a [n][delta_width]
 *
 * The row of token p is row p mod n of either. A step whose first row is token f computes base .. f - 1 again by those
 * rows, then its own; the slot's state becomes that of the tokens before `kept`, and what is read of its tokens from
 * `kept` on is stored. So the next step may begin anywhere from kept to this one's end. */
struct ddelta_back {
    int n;                      // rows; 0: states do not go back
    const int32_t *base, *kept; // [sequences], of the step's plan
    int64_t rows;               // where they begin in a slot, bytes
    int conv_width, delta_width;
};

/* ---- delta.cu ---- */
void launch_short_conv(const struct launch *l, int kernel, const struct ddelta_back *back, struct dmat u,
                       struct dweight w, struct dcache cache, struct dmat y);
struct ddelta {
    int n_key_heads, n_value_heads, key_dim, value_dim;
    int64_t state_offset; // of the delta state behind the conv inputs, in floats
};
/* Behind it, where states go back: keeps the rows. */
void launch_delta_keep(const struct launch *l, const struct ddelta_back *back, struct dmat qkv, struct dmat b,
                       struct dmat gate, struct dcache cache);
void launch_delta_rule(const struct launch *l, const struct ddelta *a, const struct ddelta_back *back, struct dmat qkv,
                       struct dmat b, struct dmat gate, struct dweight a_log, struct dweight dt_bias,
                       struct dcache cache, struct dmat out);

#ifdef __cplusplus
}
#endif
