/* fit.h - whether an engine fits into memory, told before any of it is touched.
 *
 * Counted as the host's: weights that are to be made (dummies), the cache, a step's values and swap space. Weights of a
 * checkpoint that a device computes with where they lie are not: they are a map, of which the system keeps in memory
 * what there is room for, so that a model larger than the memory runs, as slowly as its disk. Of a device with memory
 * of its own: weights, as few bytes as it can keep them in, and the cache if a size was asked for; what is exact there,
 * backend_ops.cache_room tells once the weights are placed. */
#pragma once

#include "engine/engine.h"

/* How much cache, of which length and in how many blocks: from options, program and memory to numbers. */
struct engine_sizes {
    struct bucket bucket;
    struct cache_config cache;
    int max_chunk; // tokens of one sequence in a step
    int64_t max_model_len, kv_cache_bytes, kv_cache_tokens;
};
/* l NULL: of a device that computes in_place, before it has loaded the program; its cache is float32. */
enum status engine_size(const struct gyre_options *options, const struct engine_model *model, struct loaded *l,
                        struct engine_sizes *out, struct error *err);
/* load_options.n_back: what guesses want of recurrent states, or what rings have room for anyway. */
int engine_n_back(const struct gyre_options *o, const struct program *p);
/* The program with rings, where the device wants them for sequences as long as these may become; NULL: it does not. */
struct program *engine_rings(const struct gyre_options *o, const struct engine_model *m);
int64_t engine_block_bytes(const struct gyre_options *o, const struct program *p, const struct loaded *l, int group,
                           int block_size);

/* ERR_MEMORY says in one sentence what is needed, of what, what there is, and which flag helps. sizes: of engine_size.
 * l NULL: before the model is loaded on the host; otherwise its weights are there and not asked about. */
enum status engine_fits(const struct gyre_options *o, const struct engine_model *m, struct loaded *l,
                        const struct engine_sizes *sizes, struct error *err);

/* Of a device with memory of its own, before its weights are placed. */
enum status engine_weights_fit(const struct gyre_options *o, const struct engine_model *m, const struct device *d,
                               struct error *err);

/* What of the program this process computes, and the bytes of its weights as stored. */
const struct program *engine_own_program(const struct engine_model *m);
int64_t engine_stored_bytes(const struct program *p);

/* Bytes of the host's memory that the values of a step need. */
int64_t engine_step_bytes(const struct gyre_options *o, const struct program *p, struct bucket bucket);
