/* step_cost.h - how long a step takes, learned from the steps that were run.
 *
 *     microseconds = w0 + w1 * tokens + w2 * pairs + copied / rate       pairs: query-key pairs, what attention is made
 *                                                                        of
 *
 * fitted by recursive least squares with directional forgetting (Cao and Schwartz, Automatica 36, 2000): what a step
 * speaks of replaces what older ones said of the same, so the fit follows a machine that slows down, and thousands of
 * equal steps wear away nothing of what others taught. The rate of copies of cache is learned by itself, as few steps
 * have some: from what such a step took beyond its prediction. The scheduler asks it how many tokens of a prompt may
 * join a step before the streams that run beside it would wait longer than they were promised. Fixed size, no
 * allocation. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* What a step is made of. */
struct step_work {
    int64_t tokens;
    int64_t pairs;  // sum over its tokens of the context each looks at
    int64_t copied; // bytes of cache, before its tokens
};

struct step_cost {
    double weight[3];
    double information[3][3]; // symmetric, positive definite
    int64_t n_steps;          // learned from
    double reach;             // tokens of the largest step lately
    double excess;            // what the last few steps took, as a multiple of their predictions; at least 1
    double scatter;           // microseconds above what was predicted, with that excess: their mean square lately
    double us_a_copied_mb;    // 200 (5 GB/s) until it was measured
};

void step_cost_init(struct step_cost *c);

/* A step with this work took so long. */
void step_cost_learn(struct step_cost *c, struct step_work work, double us);

/* Predicted microseconds; 0 before enough was learned to say anything. Never below 0. */
double step_cost_predict(const struct step_cost *c, struct step_work work);

/* The most tokens, at least 1 and at most `max`, that may be added to `work` from a sequence that has computed
 * `n_computed`, for the step to end within target_us. `max` as long as nothing is known. A step becomes at most twice
 * as large as the largest one lately (32 tokens are always allowed): hundreds of steps of single tokens say little of a
 * thousand. What the last steps took beyond their predictions, this one is taken to take too: a prompt's steps become
 * dearer than the fit says while it goes on. Of the rest, twice by how much steps scatter is kept free, a sixth of the
 * target at least and half at most. */
int step_cost_chunk(const struct step_cost *c, struct step_work work, int64_t n_computed, int max, double target_us);
