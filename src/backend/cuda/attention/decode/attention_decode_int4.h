/* attention_decode_int4.h - attention_decode_int4.cu: ATTENTION over int4 for few query tokens a sequence. */
#pragma once

#include "backend/cuda/attention/attention.h"
#include "backend/cuda/attention/attention_parts.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Heads of 64, 128 or 256 channels, in blocks of 64 tokens. */
bool attention_decode_int4_takes(const struct dattention *a, int block_size);
/* As launch_attention_decode. Queries are rotated already (attention_int4.h). */
void launch_attention_decode_int4(const struct launch *l, const struct dattention *a, const struct dparts *parts,
                                  bool prefetch, struct dmat q, struct dweight sinks, struct dcache cache,
                                  struct dmat out);

#ifdef __cplusplus
}
#endif
