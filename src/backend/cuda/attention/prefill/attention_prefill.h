/* attention_prefill.h - the two kernels of prefill attention. */
#pragma once

#include "backend/cuda/attention/attention.h"
#include "backend/cuda/attention/attention_parts.h"
#include "backend/cuda/value.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- attention_prefill.cu: the same shapes ---- */
int attention_prefill_rows(const struct dattention *a); // what it wants as `columns` of a part
void launch_attention_prefill(const struct launch *l, const struct dattention *a, const struct dparts *parts,
                              struct dmat q, struct dweight sinks, struct dcache cache, struct dmat out);

/* ---- attention_prefill_halves.cu: of these, those of 512 channels over a cache of e4m3 ---- */
void launch_attention_prefill_halves(const struct launch *l, const struct dattention *a, const struct dparts *parts,
                                     struct dmat q, struct dweight sinks, struct dcache cache, struct dmat out);

#ifdef __cplusplus
}
#endif
