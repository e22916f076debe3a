/* sample.h - sample.cu: SAMPLE. */
#pragma once

#include "backend/cuda/head/lm_head.h"
#include "backend/cuda/value.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- sample.cu ---- */
bool sample_fits(int n_vocab); // whether rows of so many logits can be sampled
/* Bytes of `copies` for steps of up to so many rows; 0: the current device needs none. */
int64_t sample_copies_bytes(int n_rows, int n_vocab);
/* To places.sampled, and where asked for to top_token and top_logprob. float32 logits; with bests those of plain rows
 * are not read. */
void launch_sample(const struct launch *l, struct dmat logits, struct dbests bests, float *copies);

#ifdef __cplusplus
}
#endif
