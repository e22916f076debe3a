/* ranks.h - several devices of one kind as one: each computes a share of every layer (core/pass/pass.h, pass_shard).
 *
 *     TRY(backend_ranks(&backend_cpu, 2, false, &ops, &err));     // then as any backend
 *
 * What is loaded is a program a device, which meet in collective ops (backend_ops.join); a step is run by all of them,
 * on a thread each, and every one draws the same tokens. Logits, hidden states and reports are rank 0's, but that
 * bytes, and experts where each has whole ones, are of all ranks. On the CPU the ranks share its processors and memory:
 * that proves what ranks do, and is not faster. */
#pragma once

#include "core/backend.h"

enum { MAX_RANKS_OF_A_MODEL = 64 };

/* A table that lives as long as the process; the same for the same arguments. ERR_UNSUPPORTED: the backend has no
 * join. */
enum status backend_ranks(const struct backend_ops *of, int n, bool by_expert, const struct backend_ops **out,
                          struct error *err);
