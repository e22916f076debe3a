/* bench_floor.h - what a step must at least read and compute, from the program and what the device made of its
 * weights, and the time under which no engine that goes op by op can get. */
#pragma once

#include "core/backend.h"
#include "gyre.h"

struct bench_floor {
    double weight_bytes, cache_bytes; // that a step reads (a recurrent state is read and written)
    double flops;
    double seconds; // the sum over ops of the longer of: bytes at the read rate, FLOPs at the rate of products
};

/* Of one op of the program. n_experts: how many experts of a layer have a token, in the mean; 0: as many as if all were
 * equally likely. */
struct bench_floor bench_floor_op(const struct gyre *g, const struct device_limits *limits, int op, double n_seqs,
                                  double n_before, double n_new, double n_experts);

/* How many experts of the first layer that has some have one of n_tokens tokens, in the mean, if all are equally
 * likely; 0: no layer has experts. Text sends its tokens to fewer, and so does whoever answers with one token again
 * and again: what a step reads says whether a benchmark's routing is as spread. */
double bench_experts_if_uniform(const struct gyre *g, double n_tokens);

/* A step in which each of n_seqs sequences, with n_before tokens in the cache (a mean is fine), computes n_new
 * tokens and gives one. */
void bench_floor(const struct gyre *g, const struct device_limits *limits, double n_seqs, double n_before, double n_new,
                 double n_experts, struct bench_floor *out);
