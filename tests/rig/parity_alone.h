/* parity_alone.h - an op of a model computed alone on the CPU, from what another backend made of its inputs, so that an
 * error is the op's own. With it comes what it cannot be without: who fills the cache that it reads, who chose its
 * experts, and the LINEAR that may be one node with it. */
#pragma once

#include "op_oracle.h"
#include "parity_rows.h"

/* What the backend under test made of each value of a program. */
struct seen {
    const struct program *p;
    struct row_set *rows; // [n_values]
};

/* Result k of an op, from rows that a LINEAR, with a GATED_ACT behind it or not, reads in this way. */
struct row_set op_alone(const struct seen *seen, int op, int k, enum rig_reading how, bool rounds_weight);

/* A LINEAR of the model, from rows that are read in this way. */
struct row_set linear_alone(const struct seen *seen, const struct op *linear, const struct row_set *x,
                            enum rig_reading how, bool rounds);

/* The LINEAR of a GATED_ACT that a device may compute with it, in one node and by another path than that LINEAR alone;
 * else -1. */
int linear_of_pair(const struct program *p, int op);

/* The cache that an op reads, and that it fills; -1: none. */
int cache_read(const struct op *op);
int cache_filled(const struct op *op);

/* A program of the model's caches and ropes that begins with rows of a table, and what it makes of them. */
struct few {
    struct program p;
    struct weight_part part;
    struct weight table;
    val rows;
};
void few_begin(struct few *few, const struct program *model, float *table, int width);
struct row_set few_end(struct few *few, val result);
