/* cut.h - a rank's share of a weight, for pass_shard. */
#pragma once

#include "base/status.h"
#include "core/pass/pass.h"

struct cutter {
    const struct program *from;
    struct shard_options options;
    int64_t ffn_block;    // the FFN is cut at multiples of it
    struct arena *memory; // of what is cut
    struct cut *cuts;     // of weights that several ops share, or ops in turn (the table and the head)
    int n_cuts, cap_cuts;
    enum status status; // the first failure; everything after it is empty
    struct error *err;
};

void cutter_init(struct cutter *c, const struct program *from, const struct shard_options *options,
                 struct arena *memory, struct error *err);
void cutter_release(struct cutter *c);

/* Units [begin, end) of a dim that are this rank's, counted from d.first. */
struct units {
    int64_t begin, end;
};
struct units cut_units(struct cutter *c, struct dim d, const char *weight);

/* The share of w; w itself where ranks have all of it. NULL for NULL and after a failure. */
const struct weight *cut_weight(struct cutter *c, const struct weight *w);
/* Where whole experts are dealt out: which are this rank's, and what of experts' weights is of those. */
struct units cut_expert_range(struct cutter *c, int n_experts, const char *weight);
const struct weight *cut_experts(struct cutter *c, const struct weight *w, struct units experts);

/* Whether the weight's products are sums over ranks: its columns are cut. */
static inline bool cut_sums(const struct weight *w) { return w->cols.axis != AXIS_NONE; }
