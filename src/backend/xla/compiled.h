/* compiled.h - the executables of a loaded program: one for each shape of launches and each kind of copy, compiled when
 * it is first wanted, on a thread of its own (a step may not allocate, and compilers do). While one takes longer than
 * two seconds, standard error says what it is and for how long. */
#pragma once

#include "backend/xla/pjrt/pjrt_run.h"
#include "backend/xla/xla.h"

struct compiled {
    struct launch_shape shape;
    int copies;  // of which group, or STATE_SLOTS; NO_COPIES: a step
    int dense;   // of dense copies of the shape: DENSE_ZEROS, or a fill of so many blocks of group `copies`; 0: neither
    bool drains; // such a fill the other way
    struct pjrt_loaded *program;
    struct pjrt_program_bytes bytes;
    int n_outputs;
    struct compiled *next;
};
enum { NO_COPIES = -2, DENSE_ZEROS = -1 };

enum status compiled_step(struct loaded *l, const struct launch_shape *shape, const struct compiled **out,
                          struct error *err);
enum status compiled_copies(struct loaded *l, int group, const struct compiled **out, struct error *err);
enum status compiled_dense(struct loaded *l, const struct launch_shape *shape, int dense, int group,
                           const struct compiled **out, struct error *err);
enum status compiled_drain(struct loaded *l, const struct launch_shape *shape, int n, int group,
                           const struct compiled **out, struct error *err);
void compiled_release(struct loaded *l);

/* l->arguments [n_arguments] to l->outputs. */
enum status compiled_execute(struct loaded *l, const struct compiled *program, int n_arguments, struct error *err);

/* A module of l's device alone: compiled, or taken from the disk; and run, with no more than these arguments. */
enum status compiled_make(struct loaded *l, struct str text, struct pjrt_loaded **out, struct error *err);
enum status compiled_run(struct loaded *l, struct pjrt_loaded *program, struct pjrt_buffer *const *arguments,
                         int n_arguments, struct pjrt_buffer **outputs, struct error *err);
