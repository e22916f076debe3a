/* node.h - a step as the device gets it: a flat list of nodes with their final arguments.
 *
 * lower.c makes the list for what a step is launched for (struct launch): which ops are one node, which kernel each is,
 * what is written as a value, as its qact or as both. Nothing is decided behind that: a step puts the nodes on the
 * stream one after the other, a graph is the same list captured, and `gyre explain --device cuda` prints it. Lists live
 * in the executable; making one allocates nothing. */
#pragma once

#include "backend/cuda/attention/decode/attention_decode.h"
#include "backend/cuda/linear/linear.h"
#include "backend/cuda/qact/qact.h"
#include "backend/cuda/rows/norm.h"
#include "backend/cuda/step/watch.h"

struct node;

/* What a node runs. */
struct node_kernel {
    const char *name, *file;
    enum status (*put)(const struct node *n, const struct launch *l, struct error *err);
    const char *slow; // a plain kernel that most of a step may be spent in: what it computes, for people; else NULL
};

struct node {
    const struct node_kernel *kernel;
    struct executable *exe;
    const struct compiled_op *c; // whose op it does, or helps to do
    int n_rows;
    struct dmat in[2], out, qact;       // as this node reads and writes them; at NULL: absent
    const struct linear_kernel *linear; // of LINEAR
    union {
        struct linear_values linear;
        struct dadd_norm add_norm;
        struct dprep prep;
        struct dwatch watch;
    } args;
    const struct dparts *parts; // of attention
    bool may_prefetch;          // attention: the node before is the layer's QKV_PREP
};

/* What has become of a value's qact on the way through the step. */
struct qact_state {
    bool written;          // it is there, with a scale a row
    bool has_static_scale; // it is there by its static_scale; rows that want another are still to be made
    bool folded;           // the rows' absmax is there
};

/* A list being made. */
struct lowering {
    struct executable *exe;
    const struct launch *launch;
    struct node *nodes; // executable.nodes
    int n;
    struct qact_state *qacts; // [exe->n_qacts]
};

enum { NODES_OF_OP = 6 }; // at most

/* Whether there is a kernel for the op; who has none is refused when a program is compiled. */
bool step_has_op(enum opcode code);

/* Ops first .. end - 1; returns how many nodes there are in exe->nodes. */
int step_lower(struct executable *exe, const struct launch *l, int first, int end);
struct node *lower_node(struct lowering *w, const struct node_kernel *kernel, const struct compiled_op *c,
                        int n_rows); // one more

/* ---- qact/qact.c ---- */
struct qact_state *qact_state_of(const struct lowering *w, const struct qact *t);
/* The qact that a producer is to write beside out[k]; it counts as written. at NULL: nobody reads it. */
struct dmat qact_to_write(struct lowering *w, const struct compiled_op *c, int k, int n_rows);
/* out[k] for a producer that folds its rows' absmax if it is told where: it is where a qact is wanted that the producer
 * does not write. */
struct dmat output_with_absmax(struct lowering *w, const struct compiled_op *c, int k, int n_rows);
/* Behind output_with_absmax of out[k]: the qact that the producer is to write by its static_scale. at NULL: it has
 * none. */
struct dmat qact_static(struct lowering *w, const struct compiled_op *c, int k);

/* ---- attention/attention.c ---- */
void lower_qkv_prep(struct lowering *w, const struct compiled_op *c, int n_rows);
void lower_attention(struct lowering *w, const struct compiled_op *c, int n_rows);

/* ---- attention/latent/latent.c ---- */
void lower_mla_prep(struct lowering *w, const struct compiled_op *c, int n_rows);
void lower_mla_attention(struct lowering *w, const struct compiled_op *c, int n_rows);

/* ---- moe/experts.c ---- */
void lower_moe_route(struct lowering *w, const struct compiled_op *c, int n_rows);
void lower_moe_ffn(struct lowering *w, const struct compiled_op *c, int n_rows);

/* ---- recurrent/delta_layer.c ---- */
void lower_short_conv(struct lowering *w, const struct compiled_op *c, int n_rows);
void lower_delta_rule(struct lowering *w, const struct compiled_op *c, int n_rows);
bool lower_delta_layer(struct lowering *w, const struct compiled_op *norm, int n_rows); // false: it is no layer's

/* ---- ranks/meeting_nodes.c ---- */
/* Makes the ADD_NORM's node do the ALL_REDUCE of what it adds, in steps of so few rows. */
void lower_reduce_in_norm(struct lowering *w, const struct compiled_op *add_norm, int n_rows, struct node *n);
void lower_all_reduce(struct lowering *w, const struct compiled_op *c, int n_rows);
void lower_all_gather(struct lowering *w, const struct compiled_op *c, int n_rows);

/* ---- watch.c ---- */
/* The rows of x, which the op reads; t: its qact, read in its place, or NULL. */
void lower_watch(struct lowering *w, const struct compiled_op *c, int n_rows, struct dmat x, const struct qact *t);
