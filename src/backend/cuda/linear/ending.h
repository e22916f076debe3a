/* ending.h - what a product makes of its sums in the same node. */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

/* ---- what a product y = x W^T + b makes of its sums, in the same node ---- */
enum ending {
    ENDING_PLAIN, // LINEAR
    ENDING_GATED, // LINEAR, GATED_ACT: y = act(gate) * up of the two halves of W's rows, y.width = W.out / 2
};

struct dending {
    enum ending kind;
    int act; // core/ops.h activation, of GATED
    float limit;
};

#ifdef __cplusplus
}
#endif
