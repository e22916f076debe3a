/* fast.h - the fast functions of ops over the kernels of kernels.h, and the products that they share. */
#pragma once

#include "backend/cpu/cpu.h"
#include "backend/cpu/kernels/kernels.h"

/* The fast function of an op, or NULL where the reference is all there is, and the scratch that it wants. */
op_function *fast_function(const struct op *op);
struct need fast_need(const struct op *op, struct bucket bucket);

op_function fast_linear, fast_add_norm, fast_qkv_prep, fast_attention, fast_mla_prep, fast_mla_attention, fast_moe_ffn,
    fast_short_conv, fast_delta_rule, fast_lora;

/* Floats of a worker's scratch, or of that of all workers. */
int64_t fast_attention_scratch(const struct attention_args *a);
int64_t fast_mla_prep_scratch(const struct mla_args *a);
int64_t fast_mla_attention_scratch(const struct mla_args *a);
int64_t fast_moe_scratch(const struct op *op);
int64_t fast_moe_shared(const struct op *op, int64_t max_tokens);
int64_t fast_linear_shared(const struct op *op, struct bucket bucket);
int64_t fast_lora_scratch(const struct op *op);
int64_t fast_lora_shared(const struct op *op, struct bucket bucket);
int64_t fast_conv_scratch(const struct op *op);
int64_t fast_delta_scratch(const struct delta_args *a);

/* Products of one x with runs of rows of one weight. Weights are read once, however many rows x has; what a row of x
 * gives does not depend on the others. */
struct product {
    const struct kernels *kernels;
    const struct placed *weight;
    struct mat x;
    float *scratch;         // product_scratch(x.width) floats, this product's until its last run
    int arranged;           // which arrangement of x the scratch holds; 0 before the first run
    const float *shared;    // x arranged for all workers, a group every arranged_floats(width) floats, or NULL ...
    int shared_arrangement; // ... and how
};
int64_t product_scratch(int64_t width);

/* y [x.rows, end - begin] = x times rows [begin, end), plus bias [end - begin] (may be NULL). */
void product_rows(struct product *p, int64_t begin, int64_t end, struct mat y, const float *bias);
