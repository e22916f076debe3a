/* gemm.c - LINEAR by cuBLASLt, where no kernel of ours was chosen (linear.h).
 *
 *     y [M, out] = x [M, in] W^T + b        as cuBLAS sees it: Y^T [out, M] = W x^T, columns one after another
 *
 * Planned for each number of rows that a step may be padded to (padded.c, gemm_plan.c). A shape that the library has no
 * algorithm for is refused when the program is compiled. Float32 products are float32 throughout (no TF32). */
#include "backend/cuda/linear/gemm.h"
#include "backend/cuda/device/device.h"
#include "backend/cuda/linear/gemm_internal.h"
#include "backend/cuda/step/padded.h"
#include "backend/cuda/value.h"
#include "backend/cuda/weights/place.h"
#include "backend/cuda/weights/weights.h"

#include <stdlib.h>

static cudaDataType_t type_of(enum element e) {
    switch (e) {
    case ELEMENT_F32: return CUDA_R_32F;
    case ELEMENT_F16: return CUDA_R_16F;
    case ELEMENT_BF16: return CUDA_R_16BF;
    case ELEMENT_E4M3: return CUDA_R_8F_E4M3;
    default: BUG_IF(true); // not multiplied
    }
}

enum status gemm_refused(const struct op *op, int rows, cublasStatus_t code, struct error *err) {
    if (rows == 0)
        return fail(err, ERR_UNSUPPORTED, "%s: cuBLASLt does not describe products with [%lld, %lld]: %s",
                    op->weights[0]->name, (long long)op->weights[0]->out, (long long)op->weights[0]->in,
                    cublasLtGetStatusString(code));
    return fail(err, ERR_UNSUPPORTED, "%s: cuBLASLt has no product of %d rows with [%lld, %lld]: %s",
                op->weights[0]->name, rows, (long long)op->weights[0]->out, (long long)op->weights[0]->in,
                cublasLtGetStatusString(code));
}

/* The library adds a bias of the element of y only. */
static enum status place_bias(struct gemm *g, const struct weight *bias, enum element e, struct error *err) {
    const struct dweight *floats = &weight_on_device(g->loaded, bias)->floats;
    struct dstored x = {.at = floats->at, .in = bias->out, .element = ELEMENT_F32};
    cudaError_t code = cudaMalloc(&g->bias, (size_t)(bias->out * element_bytes(e)));
    if (code == cudaSuccess) {
        launch_place_rows(g->loaded->device->stream, &x, 1, (struct dweight){g->bias, 1, bias->out, e, NULL}, 0, NULL);
        code = cudaGetLastError();
    }
    return code == cudaSuccess ? OK
                               : device_fault(g->loaded->device, err, code, "%s: placing a bias of %lld", bias->name,
                                              (long long)bias->out);
}

/* code stays what went wrong before it. */
#define SET(code, attribute, value)  \
    ((code) != CUBLAS_STATUS_SUCCESS \
         ? (code)                    \
         : cublasLtMatmulDescSetAttribute(g->description, CUBLASLT_MATMUL_DESC_##attribute, &(value), sizeof(value)))

/* Of e4m3, y is left without scales and bias (unscaled products, value.h). Sums of partial products are kept in the
 * tensor core's own precision (fast accumulation): some 14 bits, against 4 of the factors. */
static enum status describe(struct gemm *g, struct error *err) {
    const struct weight *bias = g->op->weights[1];
    cublasOperation_t transposed = CUBLAS_OP_T;
    cudaDataType_t type = type_of(g->y.element);
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    int8_t fast = 1;
    cublasStatus_t code = cublasLtMatmulDescCreate(&g->description, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    code = SET(code, TRANSA, transposed);
    if (g->weight.element == ELEMENT_E4M3) {
        code = SET(code, FAST_ACCUM, fast);
    } else if (bias) {
        TRY(place_bias(g, bias, g->y.element, err));
        code = SET(code, EPILOGUE, epilogue);
        code = SET(code, BIAS_POINTER, g->bias);
        code = SET(code, BIAS_DATA_TYPE, type);
    }
    return code == CUBLAS_STATUS_SUCCESS ? OK : gemm_refused(g->op, 0, code, err);
}

struct plan_key gemm_shape(const struct gemm *g) {
    return (struct plan_key){.out = (int32_t)g->weight.out,
                             .in = (int32_t)g->weight.in,
                             .x = (int32_t)g->x.element,
                             .w = (int32_t)g->weight.element,
                             .y = (int32_t)g->y.element,
                             .biased = g->op->weights[1] != NULL};
}

static cublasStatus_t lay_out(struct gemm *g) {
    uint64_t in = (uint64_t)g->weight.in, out = (uint64_t)g->weight.out;
    cublasStatus_t code = cublasLtMatrixLayoutCreate(&g->w, type_of(g->weight.element), in, out, (int64_t)in);
    for (int i = 0; code == CUBLAS_STATUS_SUCCESS && i < g->n_plans; i++) {
        struct plan_of_rows *p = &g->plans[i];
        p->rows = padded_rows_at(i);
        code = cublasLtMatrixLayoutCreate(&p->x, type_of(g->x.element), in, (uint64_t)p->rows, g->x.stride);
        if (code == CUBLAS_STATUS_SUCCESS)
            code = cublasLtMatrixLayoutCreate(&p->y, type_of(g->y.element), out, (uint64_t)p->rows, g->y.stride);
    }
    return code;
}

enum status gemm_open(struct loaded *loaded, const struct op *op, const struct op *act, struct dmat x, struct dmat y,
                      struct dmat output, int max_rows, struct gemm **out, struct error *err) {
    struct gemm *g = xcalloc(1, sizeof *g);
    *out = g;
    *g = (struct gemm){.loaded = loaded,
                       .op = op,
                       .act = act,
                       .weight = weight_on_device(loaded, op->weights[0])->matrix,
                       .x = x,
                       .y = y,
                       .output = output};
    g->l2_copy = weight_on_device(loaded, op->weights[0])->l2_copy;
    g->n_plans = padded_index(max_rows) + 1;
    g->plans = xcalloc((size_t)g->n_plans, sizeof *g->plans);
    if (g->weight.element == ELEMENT_QUADS) // the library does not multiply by it
        return OK;
    TRY(describe(g, err));
    cublasStatus_t code = lay_out(g);
    if (code != CUBLAS_STATUS_SUCCESS)
        return gemm_refused(op, 0, code, err);
    return gemm_plan(g, err);
}

void gemm_free(struct gemm *g) {
    if (!g)
        return;
    for (int i = 0; i < g->n_plans; i++) {
        if (g->plans[i].x)
            cublasLtMatrixLayoutDestroy(g->plans[i].x);
        if (g->plans[i].y)
            cublasLtMatrixLayoutDestroy(g->plans[i].y);
    }
    if (g->w)
        cublasLtMatrixLayoutDestroy(g->w);
    if (g->description)
        cublasLtMatmulDescDestroy(g->description);
    cudaFree(g->bias);
    free(g->plans);
    free(g);
}

void gemm_count_at(struct gemm *g, void *counter) { g->counter = counter; }

cublasStatus_t gemm_put(const struct gemm *g, const struct plan_of_rows *p, const struct algorithm *a,
                        struct operands o) {
    const float one = 1, zero = 0;
    return cublasLtMatmul(g->loaded->device->blas, g->description, &one, o.weight, g->w, o.x, p->x, &zero, o.y, p->y,
                          o.y, p->y, &a->words, o.workspace, a->workspace_bytes, g->loaded->device->stream);
}

enum status gemm_run(struct gemm *g, int n_rows, struct dmat x, struct dmat y, struct error *err) {
    const struct plan_of_rows *p = &g->plans[padded_index(n_rows)];
    bool counts = p->algorithm.workspace_bytes <= COUNTER_BYTES && g->counter;
    struct operands o = {g->weight.at, x.at, y.at, counts ? g->counter : g->loaded->device->workspace};
    cublasStatus_t code = gemm_put(g, p, &p->algorithm, o);
    return code == CUBLAS_STATUS_SUCCESS
               ? OK
               : device_fault(g->loaded->device, err, cudaErrorUnknown,
                              "%s: the product of %d rows with [%lld, %lld] by cuBLASLt did not start, %s",
                              g->op->weights[0]->name, p->rows, (long long)g->weight.out, (long long)g->weight.in,
                              cublasLtGetStatusString(code));
}
