/* op_work.h - what an op of a program must read and compute in a step, whichever device runs it.
 *
 * From the program alone, and two functions that say how many bytes a weight and a cache take where they lie.
 * Activations are not counted: between ops they can stay in a device's caches. */
#pragma once

#include "core/program.h"

/* Sequences of a step that are alike: each has n_before tokens in the cache (a mean is fine), computes n_new tokens and
 * gives one. */
struct work_kind {
    double n_seqs, n_before, n_new;
};

struct work_shape {
    const struct program *program;
    const struct work_kind *kinds; // [n_kinds]
    int n_kinds;
    double n_experts;  // of a layer that are read; 0: as many as if all were equally likely
    int n_all_experts; // of a layer, where this program has some of them; 0: it has all
    double (*weight_bytes)(const void *context, const struct op *op, int slot); // when a step reads all of it
    double (*cache_bytes)(const void *context, int cache); // of one layer: a token's; of recurrent groups a sequence's
    const void *context;
};

struct op_work {
    double weight_bytes, cache_bytes; // that the step reads; a recurrent state is read and written
    double narrow_flops;              // of products with weights of less than two bytes an element
    double wide_flops;                // of the other products
    double mixer_flops;               // of attention and recurrences, whose operands have 16 bits and more
};

struct op_work op_work_of(const struct work_shape *s, const struct op *op);

/* Rows of the op in such a step. */
double op_work_rows(const struct work_shape *s, const struct op *op);

/* How many of n_experts have one of n_tokens tokens, in the mean, if all are equally likely and each takes top_k. */
double experts_if_uniform(int n_experts, int top_k, double n_tokens);
