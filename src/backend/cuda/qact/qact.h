/* qact.h - quantised activations: values as e4m3 with a scale a row, beside the values.
 *
 * A LINEAR whose weight is e4m3 reads, when the step is large, its input as e4m3 with a scale a row: the value's qact.
 * Whoever makes the value may write the qact in the same pass (qact_to_write), and need not write the value if nobody
 * reads that (value_is_read); where it does not write the qact, the first LINEAR that reads it puts launch_quantise
 * before itself, which is a shorter way if whoever made the value has left its rows' largest sizes behind
 * (output_with_absmax), and shorter still if it has also written the qact by a scale that holds for most rows, which is
 * then looked at alone (qact_static, static_scale.c). */
#pragma once

#include "backend/cuda/cuda.h"

struct qact {
    val of;                          // the value, or columns of it
    struct dmat q;                   // e4m3, as many rows as the value
    uint32_t *absmax;                // [rows]: dmat.absmax of the value
    struct dgrid_barrier *of_tokens; // drequant.of_tokens
};

/* The qacts that the program's LINEARs may read, without places yet. After the weights are placed. */
void qacts_plan(struct executable *exe);
/* For program_plan_memory, beside the program's values as they live here. */
struct value qact_as_value(const struct executable *exe, const struct value *values, const struct qact *t);
void qact_place(struct executable *exe, struct qact *t, void *at);
enum status qacts_alloc(struct executable *exe, struct error *err); // their absmax and `of_tokens`
struct qact *qact_of(const struct executable *exe, val v);          // NULL: none

/* in[k] of a step of so many rows: unscaled products, if the LINEAR that makes them leaves them so. */
struct dmat input_of(const struct executable *exe, const struct compiled_op *c, int k, int n_rows);
/* Whether all that read the LINEAR's output take unscaled products. */
bool unscaled_will_be_read(const struct program *p, const struct op *linear);

/* Whether anybody reads out[k] itself in a step of so many rows. */
bool value_is_read(const struct executable *exe, const struct compiled_op *c, int k, int n_rows);

enum status static_scales_find(struct executable *exe, struct error *err); // once its ops are compiled
