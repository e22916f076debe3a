/* affinity.h - which of several engines has seen the beginning of a prompt.
 *
 * Prompts are cut into blocks as caches are; a block with all before it is a hash, and a table keeps for each the
 * engines that got a prompt with it. That is what was sent, not what a cache still has: an engine may have forgotten,
 * and another's text been taken for it where two hashes meet in one place. Either costs time, nothing else. */
#pragma once

#include "engine/service.h"

struct affinity; // any thread

/* As large as what n_engines have been sent lately: 65,536 blocks of 16 bytes each. */
struct affinity *affinity_new(int block_size, int n_engines);
void affinity_free(struct affinity *a); // NULL is fine

/* known[i] becomes how many tokens of the prompt's beginning engine i has been sent before, [n_engines]. */
void affinity_look(struct affinity *a, const struct gyre_request *r, int n_engines, int64_t *known);
void affinity_note(struct affinity *a, const struct gyre_request *r, int engine);
