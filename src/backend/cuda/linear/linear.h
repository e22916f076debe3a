/* linear.h - LINEAR: the kernels there are for it, one row each, and which of them computes it for a number of rows.
 *
 * A row says what a kernel reads and leaves, so that whoever lowers a step (step/lower.c) asks the row and never which
 * kernel it is. choose.c picks a row for every LINEAR and number of rows; a new kernel is a row here and its .cu. */
#pragma once

#include "backend/cuda/cuda.h"
#include "backend/cuda/qact/qact.h"

/* What a LINEAR reads and writes in a step. */
struct linear_values {
    struct dmat x, y;
    struct drequant requant; // of x, by kernels that take it (linear_requantises): what is left to be done
    struct dmat qact;        // of y, by kernels that fold, with a static_scale; at NULL: none
};

struct linear_call {
    const struct executable *exe;
    const struct compiled_op *c;
    const struct launch *launch;
    int n_rows;
    struct linear_values v;
};

struct linear_kernel {
    const char *name;    // as GYRE_LINEAR and `gyre explain` have it
    const char *file;    // where it is
    bool wants_hopper;   // the device's is_fast
    bool reads_qact;     // its input is the value's qact, else the value in the element of the products
    bool makes_unscaled; // whoever reads what it makes takes scales and bias, or launch_rescale
    bool gates;          // the GATED_ACT behind the LINEAR, if there is one, is done in the same node
    bool folds;          // of what that makes: the rows' absmax, and a qact by its static_scale
    bool ends_early;     // the node behind it may read before it waits what nodes before this one left
    bool is_timed;       // among layers, for few rows; else taken by rule
    bool of_quads;       // of weights in tiles alone
    bool (*takes)(const struct compiled_op *c, int rows); // ask linear_takes; rows: one of padded_rows
    enum status (*put)(const struct linear_call *call, struct error *err);
};

enum { N_LINEAR_KERNELS = 12 };
extern const struct linear_kernel linear_kernels[N_LINEAR_KERNELS];
extern const struct linear_kernel *const linear_by_gemv,
    *const linear_by_small_m, *const linear_by_w4_few, *const linear_by_w4_many,
                                                           *const linear_by_gated, *const linear_by_gated_prefill,
                                                                                       *const linear_by_split_k,
                                                                                           *const linear_by_prefill,
                                                                                               *const linear_by_lm_head;

bool linear_takes(const struct linear_kernel *k, const struct compiled_op *c, int rows);
/* What computes it where nothing else was chosen: one of the library's two rows, or that of weights of four bits. */
const struct linear_kernel *linear_library(const struct compiled_op *c);
const struct linear_kernel *linear_kernel(const struct compiled_op *c, int n_rows);
/* Nothing beyond the rows that it is for. why: lasts as long as the process. */
void linear_take(const struct compiled_op *c, const struct linear_kernel *k, int n_rows, const char *why);
const char *linear_why(const struct compiled_op *c, int n_rows);

int linear_most_rows(const struct executable *exe, const struct op *linear); // in a step
/* Whether the kernel requantises linear_values.requant.value itself. */
bool linear_requantises(const struct compiled_op *c, int n_rows);
bool linear_gates(const struct compiled_op *c, int n_rows); // the GATED_ACT behind it, in its node
const struct compiled_op *linear_maker(const struct compiled_op *linear,
                                       int n_rows);          // which of the two has the node's output
struct dmat linear_output(const struct compiled_op *linear); // that output where the node gates
int gemv_rows(const struct compiled_op *c, struct dmat x,
              int max_rows); // up to how many rows gemv.cu takes it; 0: never

/* ---- choose.c ----
 * Chooses the kernel of every LINEAR for every number of rows. Before graphs are captured, when a step can run. */
enum status linear_choose(struct executable *exe, struct error *err);
enum status linear_check(struct error *err); // whether GYRE_LINEAR, if it is set, names a kernel
