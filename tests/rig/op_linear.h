/* op_linear.h - LINEAR of random numbers and its oracles: alone or with the GATED_ACT behind it, by products in 16 bits
 * or more, and by e4m3. */
#pragma once

#include "op_oracle.h"
#include "op_weights.h"

/* x W^T + b */
struct linear {
    double *w, *b; // as stored, and as a device makes e4m3 of it
    int out, in;
};

val linear_record(struct rig *rig, struct linear *l, enum rig_format format, int out, int in, bool biased);

/* y of a row that is read in this way; the size of a sum without cancellation (rig_multiply). */
double linear_row(const struct rig *rig, const struct linear *l, enum rig_reading how, double *x, double *y);
/* Of all rows; and with the GATED_ACT behind it, where the LINEAR makes gates and ups. */
double *linear_rows(struct rig *rig, const struct linear *l, enum rig_reading how);
double *linear_gated_rows(struct rig *rig, const struct linear *l, enum activation act, enum rig_reading how);

/* By which products with a weight may be off beside those of its numbers in the element of products: of the scales that
 * a device rounds to float16 before it multiplies codes by them (linear/w4/quads_gguf.cuh). */
double linear_off_by_scales(enum rig_format format, const char *kernels);

/* One shape under two schedules. */
void linear_case(enum rig_format format, int out, int in, int n_rows, bool biased, const char *kernels);

/* ---- by e4m3 ---- */

/* Whether the device multiplies by e4m3: what is stored so or made so, in sides that are multiples of 16. */
bool is_by_e4m3(enum rig_format format, int out, int in, const char *quantization, const char *kernels);

/* LINEAR by e4m3, alone or with the GATED_ACT behind it. */
struct by_e4m3 {
    struct linear l;
    enum rig_format format;
    const enum activation *act; // NULL: alone
};

double *by_e4m3_rows(struct rig *rig, const struct by_e4m3 *c, enum rig_reading how);

/* Against that of the numbers read, with the bounds of a product in 16 bits; and against the product of the numbers
 * stored, with those of what eight bits leave. */
void by_e4m3_judge(struct rig *rig, struct by_e4m3 *c, const enum rig_schedule *schedules, size_t n_schedules,
                   const char *what);

static const enum rig_schedule of_few_sequences[] = {SCHEDULE_WHOLE, SCHEDULE_RAGGED, SCHEDULE_CHUNK_1};

void linear_by_e4m3_case(enum rig_format format, int out, int in, int n_rows, bool biased, const char *quantization,
                         const char *kernels);
