/* plan_cache.h - how products were found to be fastest on this card, kept for the next start.
 *
 * A text file in $XDG_CACHE_HOME/gyre or ~/.cache/gyre, one for each card, driver, library and build of the kernels. It
 * holds what timing found and nothing that a product's result depends on. Whatever is not exactly as it was written
 * (another card or library, a cut or changed file, one that others may write to) counts as no file at all, and is made
 * anew. Algorithms are the library's own words, 64 bytes each: whoever uses one asks the library first whether it is
 * good for the product at hand. */
#pragma once

#include "backend/cuda/linear/ending.h"
#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

enum { PLAN_WORDS = 8, PLAN_MOST = 20000, PLAN_OF_LIBRARY = 0 };

/* y [rows, out] = x [rows, in] W^T (+ bias); elements as in value.h, alignments in bytes. Of a choice between paths
 * also what is done in the same node (enum ending), and which program it was timed in; 0: an algorithm of the library.
 */
struct plan_key {
    int32_t rows, out, in, x, w, y, biased, align_x, align_y, ending, program;
};

struct plan_choice {
    int32_t path; // PLAN_OF_LIBRARY, or which row of linear_kernels
    uint64_t algorithm[PLAN_WORDS];
    double us;       // 0: not timed, and not written
    bool is_checked; // by whoever uses it, who then knows the next; neither is written
    int64_t workspace_bytes;
};

struct plan_cache;

/* path NULL: in memory only. `machine` is a line without line ends that says what the plans are good for. */
struct plan_cache *plan_cache_open(const char *path, const char *machine);
void plan_cache_free(struct plan_cache *cache);

struct plan_choice *plan_cache_find(struct plan_cache *cache,
                                    const struct plan_key *key); // NULL: none; until the next add
/* In place of what there is for the key. */
void plan_cache_add(struct plan_cache *cache, const struct plan_key *key, const struct plan_choice *choice);

/* Writes the file if anything was added since. Its folder is made. */
enum status plan_cache_save(struct plan_cache *cache, struct error *err);

/* The file for a machine: false if the environment names no folder. */
bool plan_cache_path(char *out, size_t out_bytes, const char *machine);
