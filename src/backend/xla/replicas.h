/* replicas.h - the ranks of one model, each loaded on a device of its own and driven by a thread of its own, as one
 * program of replicas: what each launches they launch together. */
#pragma once

#include "backend/xla/compiled.h"

struct replicas;

/* backend_ops.join. The ranks' programs must be the same but for numbers that are inputs: ERR_UNSUPPORTED names what is
 * not. */
enum status replicas_join(struct loaded *const *loaded, int n, struct error *err);
void replicas_leave(struct replicas *r); // NULL is fine; the last one frees it

/* The executable of a shape, which rank 0 compiles for all. */
enum status replicas_compiled(struct loaded *l, const struct launch_shape *shape, const struct compiled **out,
                              struct error *err);

/* Executes with the arguments and outputs of all ranks, once each is here with its own. */
enum status replicas_execute(struct loaded *l, const struct compiled *program, int n_arguments, struct error *err);

/* To be called by a rank that has failed, anywhere: the others, who wait for it or will, get its fault. */
void replicas_break(struct loaded *l, const struct error *fault);
