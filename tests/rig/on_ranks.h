/* on_ranks.h - ranks of a model, each loaded on a CPU device of its own and run by a thread of its own, and the whole
 * model beside them: the same sequences through both, in the same steps.
 *
 * Prompts are cut into pieces at random, so that each step is a ragged batch of chunks and single tokens; then all
 * decode what the whole model draws. Bounds: logits within 2e-3 of the reference (golden.json, where there is one) and
 * of the whole model, which sum in another order; tokens equal where the two best logits are 0.01 or more apart. Among
 * ranks everything is equal, bit by bit. */
#pragma once

#include "op_rig.h"

#include "base/json/json.h"
#include "base/pool.h"
#include "core/pass/pass.h"
#include "model/model.h"

enum { MAX_RANKS = 4, MAX_SEQS = 8, MAX_LEN = 640, N_DECODE = 6, BLOCK = 16, MAX_STEP = 256, MAX_CHUNK = 41 };

struct seq {
    const json_t *golden;
    int32_t tokens[MAX_LEN];
    int n_prompt, n_tokens, n_computed, adapter;
};

struct ranks {
    int n;
    struct pool *pool;
    struct program *programs[MAX_RANKS];
    struct on_device at[MAX_RANKS];
    struct sample_result results[MAX_RANKS][MAX_SEQS];
    const struct batch_plan *plan;
    const struct sample_params *sample;
    enum status status[MAX_RANKS];
};

struct scene {
    const char *folder;
    struct model *model;
    json_t *golden;
    struct seq seqs[MAX_SEQS];
    int n_seqs, table_width;
    struct batch_plan plan;
    struct sample_params sample[MAX_SEQS];
    int row_seq[MAX_SEQS]; // of a step's output rows
    double worst;          // of all logits
};

uint64_t test_random(void);

/* The model in a folder and the prompts of its golden.json. */
void scene_open(struct scene *sc, const char *folder);
void scene_close(struct scene *sc);
void scene_shorten(struct scene *sc, int most); // without prompts longer than that

/* A step at random of what is left of the sequences, in sc->plan; false: nothing is. */
void scene_begin(struct scene *sc);
bool scene_step(struct scene *sc);

/* Loads r->programs [r->n], joins and compiles them. */
void ranks_compile(const struct scene *sc, struct ranks *r, struct how how);
void ranks_close(struct ranks *r);
void ranks_step(struct ranks *r, const struct scene *sc);
const float *ranks_logits(const struct ranks *r, int rank, int row);
void whole_open(const struct scene *sc, struct how how, struct ranks *r);

/* The sequences once through, from the beginning, by the whole model and by ranks of it. */
void ranks_compare(struct scene *sc, struct ranks *whole, struct ranks *r, const char *how);

/* The same for n ranks that are made here. With the sentence that says why the model cannot be cut so; NULL: it can. */
void scene_compare(struct scene *sc, struct ranks *whole, int n, bool by_expert, struct how how, const char *refusal);
