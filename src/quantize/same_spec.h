/* same_spec.h - whether two descriptions mean the same model: what a written file says must be what was read. */
#pragma once

#include "model/spec/spec.h"

/* NULL, or the first thing in which they differ, in words: "the window of attention". How rows of q and k lie, and
 * whether norms hold their one, is not compared: weights are written to suit. */
const char *spec_difference(const struct model_spec *a, const struct model_spec *b);
