/* pass.h - programs made of programs: what one device, or one use of a model, wants otherwise than families record it.
 *
 * A pass takes a program and gives a new one. That borrows the names, weights and ropes of the first, which outlives
 * it. Cache groups and section numbers stay as they are, so an engine goes by either. Families know none of them. */
#pragma once

#include "core/program.h"

/* Keys of which a part follows from their values (ops.def, QKV_PREP, k_turned): how many channels of a key have to be
 * stored in this group of caches, if that can be less than all; else 0. */
int shared_kv_channels(const struct program *p, int group);

/* Stores only those, in groups for which takes(head_dim, channels) holds; NULL: in all. */
struct program *pass_shared_kv(const struct program *p, bool (*takes)(int head_dim, int channels));

/* Keeps, to the end of a step, what each of these n layers adds up to: the residual stream behind it, [T, hidden_size].
 * They become the program's taps, in this order. A draft model reads them. NULL: it has no such layer, or too many are
 * asked for. */
struct program *pass_taps(const struct program *p, const int *layers, int n);
