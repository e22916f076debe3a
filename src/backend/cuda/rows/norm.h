/* norm.h - norm.cu: ADD_NORM and NORM. */
#pragma once

#include "backend/cuda/ranks/meeting.h"
#include "backend/cuda/value.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- norm.cu: y may be absent where its qact is given, and the other way round ---- */
enum { ADD_NORM_FEW = 64 }; // rows, each over several blocks, of cards that have clusters
struct dadd_norm {
    struct dweight w, r_scale;
    float eps;
    bool plus_one;
    struct dweight d_norm; // at given: d is normed by it first, where widths are multiples of 4 and at most 8,192
    float d_eps;
    bool d_plus_one;
    struct dmat also; // at given: added to d first, of up to ADD_NORM_FEW rows; float32, in fours as d is
    const struct dmeeting *meeting; // d is summed over ranks first, by packets: of up to ADD_NORM_FEW rows, in fours
    const int32_t *rows;            // then: of the step, on the device
    bool prefetch;    // the node before is launch_gemm_split_k's and has not made x, which is read before that ends
};
void launch_add_norm(const struct launch *l, const struct dadd_norm *a, struct dmat x, struct dmat d, struct dmat r,
                     struct dmat y, struct dmat qact);
/* qact: where a group is the row. gate: unscaled products too, then by the plain kernel. */
void launch_norm(const struct launch *l, int n_rows, struct dmat x, struct dmat gate, struct dweight w, float eps,
                 bool plus_one, int group, float scale, struct dmat y, struct dmat qact);

#ifdef __cplusplus
}
#endif
