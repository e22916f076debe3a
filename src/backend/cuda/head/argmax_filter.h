/* argmax_filter.h - argmax_filter.cu. */
#pragma once

#include "backend/cuda/head/lm_head.h"
#include "backend/cuda/value.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- argmax_filter.cu: the most probable tokens of a step, without reading all of a head of 16 bits ----
 * Before lm_head.cu and SAMPLE: where of all rows of a step no more is asked than the most probable token, perhaps of
 * those of a mask (sample_is_best), the same tokens from half of the bytes, and those two end at once. The head stays
 * in 16 bits and decides. Beside it lies a copy in 8 bits that tells which of its rows cannot win; docs/numerics.md has
 * the proof. */
/* What steps leave for one another, on the device; zero to begin with. */
struct dfilter_state {
    int32_t is_done; // the step's tokens are told
    int32_t paused;  // steps that are not to be screened
    uint32_t n_done,
        n_left; // steps that were screened; of which too many rows of w could have won, or that had what is not finite
    uint32_t recent;    // of the last 32 steps that were tried a bit each: it was left
    uint32_t n_again;   // copies that launch_filter_again has made
    uint32_t claims[2]; // of what is whose, while a step runs (argmax_filter_units.cuh)
};
struct dl2_sides;
struct dfilter {
    struct dweight w; // the head, f16 or bf16, without bias
    float cap;        // of SOFTCAP; 0: none
    int budget;       // rows of w that may be looked at for a row of the step; 0: as many as are worth it
    void *
        copy; // filter_copy_bytes, filled by launch_filter_copy; whole pages of l2_topology.h, or nothing in it is near
    void *scratch; // filter_scratch_bytes; nothing in it lives from one step to the next
    struct dfilter_state *state;
    int32_t *asked; // in pinned memory: becomes 1 when launch_filter_again may help, once a pause; NULL: nobody asks
    struct dcounts *counts; // steps that were left, and that were not tried as steps are paused; NULL: nobody counts
    const struct dl2_sides *sides; // of the L2 (l2_topology.h); NULL: they are not known
    const uint32_t *flips;         // of the copy's first filter_pages_bytes, on the host
};
/* Whether it can: x of w's element, its rows and w's at multiples of 16 bytes; no bias. */
bool filter_takes(const struct dlm_head *a, struct dmat x, int n_rows);
int64_t filter_copy_bytes(struct dweight w); // beside the head's own: a little over half of that
int64_t
filter_pages_bytes(struct dweight w); // of these, the rows: they lie on either side of the L2, near who reads them
int64_t filter_scratch_bytes(struct dweight w, int n_rows); // for steps of up to so many rows
/* When weights are there, once: writes s->copy from s->w. state is not looked at. Adds how many rows of w have elements
 * that are not finite to *n_not_finite, on the device: a head that has such is not to be screened. */
void launch_filter_copy(cudaStream_t stream, const struct dfilter *s, unsigned long long *n_not_finite);
/* Between steps: the copy once more, its columns scaled by what steps have seen of x, where that makes the bound
 * narrower; then steps are not paused any more. */
void launch_filter_again(cudaStream_t stream, const struct dfilter *s);
/* Nodes of a step, with state->is_done behind them the token of each row, as launch_sample leaves it (places.sampled,
 * places.row_token), which stands for argmax too. It is not where more is asked of a row, where steps are paused, where
 * too much is left to look at, or nothing, or something is not finite: then the nodes behind do what they always do.
 * Where that was often, steps are paused. Masks are read often: they are to lie on the device. */
cudaError_t launch_filter(const struct launch *l, int n_rows, const struct dfilter *s, struct dmat x);

#ifdef __cplusplus
}
#endif
