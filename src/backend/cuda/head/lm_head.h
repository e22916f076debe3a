/* lm_head.h - lm_head.cu. */
#pragma once

#include "backend/cuda/value.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- lm_head.cu: LINEAR of 16 bits whose rows are logits, with the SOFTCAP behind it and what SAMPLE wants of greedy
 * rows ---- */
struct dlm_head {
    struct dweight w;  // f16 or bf16
    const float *bias; // [w.out]; NULL: none
    float cap;         // of SOFTCAP; 0: none
};
enum { HEAD_MAX_ROWS = 512, HEAD_BESTS = 160 };
/* The largest of some of a row's logits, and where it is, of equals the first; what is not a number is largest. */
struct dbest {
    float logit;
    int32_t id;
};
/* The largest of a row: of n parts of it, from at + row * HEAD_BESTS. at NULL: nobody has looked. */
struct dbests {
    struct dbest *at;
    int n;
    const int32_t *done; // as launch_lm_head has it: then the step's tokens are told
};
/* Whether it can compute that: x of w's element, its rows and w's at multiples of 16 bytes; logits float32. */
bool head_takes(const struct dlm_head *a, struct dmat x, struct dmat logits, int n_rows);
/* bests.at of all rows, and logits of those that ask for more (drow.is_plain says which do not). done: on the device,
 * not zero if nothing is wanted any more (launch_filter); NULL: all is. */
cudaError_t launch_lm_head(const struct launch *l, int n_rows, const struct dlm_head *a, struct dmat x,
                           struct dmat logits, struct dbest *bests, const int32_t *done);
int head_parts(const struct dlm_head *a, int n_rows); // how many bests a row gets

/* How it is cut into blocks. launch_lm_head takes what head_cut_of says; benchmarks try others. */
struct head_cut {
    int octets;   // of rows of W in a tile: 24 at most, beyond 192 tokens 16
    int n_blocks; // at most HEAD_BESTS
    int n_stages; // of the ring: 2 at least
    int sharers;  // blocks of a cluster, which have the same tokens and each other rows of W: 1 or 2
};
struct head_cut head_cut_of(const struct dlm_head *a, int n_rows);
int head_stages(int n_rows, int octets); // most that shared memory has room for
cudaError_t launch_head_cut(const struct launch *l, int n_rows, const struct dlm_head *a, struct dmat x, struct dmat y,
                            struct dbest *bests, const int32_t *done, const struct head_cut *cut);

#ifdef __cplusplus
}
#endif
