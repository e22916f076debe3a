/* static_scale.c - scales of e4m3 qacts that are known before the values are; see cuda.h.
 *
 * e4m3 has 15 binades of normal numbers, of which a row at E4M3_FULL has 10 below its largest size, so a row's scale
 * need not be that size / E4M3_FULL: one that holds for most rows of a layer lets the kernel that makes a value write
 * the qact as well, and what is left of quantising is a look at the rows' largest sizes (launch_requantise).
 *
 * That is done for what a GATED_ACT makes of a LINEAR of normed rows. Those have a root mean square of 1 before the
 * norm's weight n whatever came before, so gates and ups have the variances sum_k (w[j, k] n[k])^2, as far as rows
 * agree with no row of w more than with others. With A the root of the mean of gate times up, random rows have their
 * largest of some 20,000 columns at 8 A. The scale is the power of two next to 2 A, so that rows with a largest from 2
 * A to 56 A keep it; others get a scale of their own, as all had without it. It depends on weights alone: a row comes
 * out the same whatever step and batch it is in.
 */
#include "backend/cuda/qact/static_scale.h"
#include "backend/cuda/cuda.h"
#include "backend/cuda/device/device.h"
#include "backend/cuda/qact/qact.h"
#include "backend/cuda/value.h"

#include <math.h>
#include <stdlib.h>

static const double TIMES = 2, MOST = 0x1p15; // MOST: what half precision has an exact reciprocal of

/* A power of two; 0: none would do. */
static float scale_for(const float *squares, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += (double)squares[i];
    double scale = exp2(round(log2(sqrt(sum / n) * TIMES)));
    return scale >= 1 / MOST && scale <= MOST ? (float)scale : 0; // not of what is not a number
}

/* What normed the rows that this LINEAR reads; NULL: nothing. */
static const struct compiled_op *norm_before(const struct executable *exe, const struct compiled_op *linear) {
    val x = linear->op->in[0];
    const struct compiled_op *maker = &exe->ops[exe->program->values[x.id].first_use];
    return maker->op->code == OP_ADD_NORM && maker->op->out[1].id == x.id ? maker : NULL;
}

static enum status find(const struct executable *exe, const struct compiled_op *linear, const struct compiled_op *norm,
                        float *on_device, float *squares, float *out, struct error *err) {
    struct dgated_sizes sizes = {linear->matrix[0], norm->floats[0].at, linear->floats[1].at,
                                 norm->op->args.norm.plus_one};
    int n = (int)(sizes.w.out / 2);
    launch_gated_sizes(exe->loaded->device->stream, &sizes, on_device);
    DEVICE_TRY(exe->loaded->device, err, cudaGetLastError(), "%s: sizes of %d columns", linear->op->weights[0]->name,
               n);
    DEVICE_TRY(exe->loaded->device, err,
               cudaMemcpyAsync(squares, on_device, (size_t)n * sizeof *squares, cudaMemcpyDeviceToHost,
                               exe->loaded->device->stream),
               "%s: sizes of %d columns", linear->op->weights[0]->name, n);
    DEVICE_TRY(exe->loaded->device, err, cudaStreamSynchronize(exe->loaded->device->stream), "%s: sizes of %d columns",
               linear->op->weights[0]->name, n);
    *out = scale_for(squares, n);
    return OK;
}

/* Whether the LINEAR and its GATED_ACT may be one node that writes the qact too. */
static bool is_foreseeable(const struct executable *exe, const struct compiled_op *c) {
    return c->op->code == OP_LINEAR && c->pair && c->matrix[0].element == ELEMENT_E4M3 && c->pair->out_qact[0] &&
           norm_before(exe, c);
}

enum status static_scales_find(struct executable *exe, struct error *err) {
    int most = 0;
    for (int i = 0; i < exe->program->n_ops; i++)
        if (is_foreseeable(exe, &exe->ops[i]))
            most = MAX(most, exe->ops[i].op->out[0].width / 2);
    if (most == 0)
        return OK;
    float *on_device = NULL, *squares = xcalloc((size_t)most, sizeof *squares);
    enum status st =
        memory_take(exe->loaded->device, &on_device, most * (int64_t)sizeof *on_device, "sizes of columns", err);
    for (int i = 0; i < exe->program->n_ops && st == OK; i++) {
        struct compiled_op *c = &exe->ops[i];
        if (is_foreseeable(exe, c))
            st = find(exe, c, norm_before(exe, c), on_device, squares, &c->pair->out_qact[0]->q.static_scale, err);
    }
    cudaFree(on_device);
    free(squares);
    return st;
}
