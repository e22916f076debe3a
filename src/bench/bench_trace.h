/* bench_trace.h - where the time of a step goes, op by op, beside each op's floor. */
#pragma once

#include "base/status.h"
#include "core/backend.h"
#include "gyre.h"

/* Prints the ops of the step that was collected last, in which n_seqs sequences, each with `before` tokens in the
 * cache, computed n_new each; n_experts as in
 * bench_floor.h. ERR_UNSUPPORTED where the device cannot time an op. */
enum status bench_trace(struct gyre *g, const struct device_limits *limits, double n_seqs, double before, double n_new,
                        double n_experts, struct error *err);
