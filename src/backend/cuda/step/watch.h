/* watch.h - watch.cu: counts what half precision cuts, in some of the steps that are no graphs. */
#pragma once

#include "backend/cuda/value.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- watch.cu: in some of the steps that are no graphs ---- */
/* Counts rows with values at the end of half precision, 65504: what is larger is cut to that where it is stored
 * (to_half). Of x in float16; or, where sizes [rows] say what is to be known of each, rows of which that is from
 * `least` to `most`: then x is not read. */
struct dwatch {
    struct dmat x;
    const float *sizes; // or NULL
    float least, most;
};
void launch_watch(const struct launch *l, int n_rows, const struct dwatch *w, struct dcounter cut);

#ifdef __cplusplus
}
#endif
