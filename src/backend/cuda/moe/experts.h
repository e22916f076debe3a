/* experts.h - experts.c: MOE_ROUTE and MOE_FFN of a program. */
#pragma once

#include "backend/cuda/cuda.h"

/* Whether the op is a MOE_FFN that moe_stream.cu computes. After the weights are placed. */
bool experts_stream(const struct loaded *loaded, const struct op *op);
/* Bytes that a MOE_FFN keeps between its nodes, and in the list of its experts, in steps of up to so many tokens. */
void experts_room(const struct loaded *loaded, const struct op *op, int64_t tokens, int64_t *scratch, int64_t *list);
/* Whether the node that routes makes the logits of this LINEAR. */
bool experts_multiply(const struct compiled_op *linear, int n_rows);
/* Experts that stream, with the routing that they alone read (compiled_op.pair) and the LINEAR that it alone reads. */
void experts_pair(struct executable *exe);
