/* gemm.c - LINEAR by cuBLASLt, or by gemm_fp8_small_m.cu, gemm_fp8_gated.cu, gemm_fp8_split_k.cu or gemm_fp8_prefill.cu where paths.c has chosen one of them.
 *
 *     y [M, out] = x [M, in] W^T + b        as cuBLAS sees it: Y^T [out, M] = W x^T, columns one after another
 *
 * Planned for each number of rows that a step may be padded to (padded.c, gemm_plan.c). A shape that the library has no algorithm
 * for is refused when the program is compiled. Float32 products are float32 throughout (no TF32). */
#include "backend/cuda/linear/ending.h"
#include "backend/cuda/linear/gemm_fp8_gated.h"
#include "backend/cuda/linear/gemm_fp8_prefill.h"
#include "backend/cuda/linear/gemm_fp8_small_m.h"
#include "backend/cuda/linear/gemm_fp8_split_k.h"
#include "backend/cuda/linear/gemm_internal.h"
#include "backend/cuda/value.h"
#include "backend/cuda/weights/place.h"

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
        return fail(err, ERR_UNSUPPORTED, "%s: cuBLASLt does not describe products with [%lld, %lld]: %s", op->weights[0]->name,
                    (long long)op->weights[0]->out, (long long)op->weights[0]->in, cublasLtGetStatusString(code));
    return fail(err, ERR_UNSUPPORTED, "%s: cuBLASLt has no product of %d rows with [%lld, %lld]: %s", op->weights[0]->name, rows,
                (long long)op->weights[0]->out, (long long)op->weights[0]->in, cublasLtGetStatusString(code));
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
                               : device_fault(g->loaded->device, err, code, "%s: placing a bias of %lld", bias->name, (long long)bias->out);
}

/* code stays what went wrong before it. */
#define SET(code, attribute, value)  \
    ((code) != CUBLAS_STATUS_SUCCESS \
         ? (code)                    \
         : cublasLtMatmulDescSetAttribute(g->description, CUBLASLT_MATMUL_DESC_##attribute, &(value), sizeof(value)))

/* Of e4m3, y is left without scales and bias (unscaled products, value.h). Sums of partial products are kept in the tensor core's own
 * precision (fast accumulation): some 14 bits, against 4 of the factors. */
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

static const float *bias_of(const struct gemm *g) {
    const struct weight *bias = g->op->weights[1];
    return bias ? weight_on_device(g->loaded, bias)->floats.at : NULL;
}

static struct dsmall_m small_m_of(const struct gemm *g) {
    struct dsmall_m t = {.w = g->weight, .bias = bias_of(g)};
    if (g->act)
        t.ending = (struct dending){.kind = ENDING_GATED, .act = (int)g->act->args.gated_act.act, .limit = g->act->args.gated_act.limit};
    return t;
}

static struct dgated gated_of(const struct gemm *g) {
    return (struct dgated){
        .w = g->weight, .bias = bias_of(g), .act = g->act ? (int)g->act->args.gated_act.act : 0, .l2_copy = g->l2_copy[0]};
}

enum linear_path gemm_library(const struct gemm *g) { return g->weight.element == ELEMENT_E4M3 ? PATH_QACT : PATH_VALUE; }

bool gemm_takes(const struct gemm *g, enum linear_path path, int rows) {
    struct dsmall_m tiles = small_m_of(g);
    struct dgated wide = gated_of(g);
    switch (path) {
    case PATH_SMALL_M: return small_m_takes(&tiles, g->x, g->made, rows);
    case PATH_GATED:
        return g->act &&
               (rows > GATED_MAX_ROWS ? gemm_prefill_gated_takes(&wide, g->x, g->made, rows) : gated_takes(&wide, g->x, g->made, rows));
    case PATH_SPLIT_K: return split_k_takes(g->weight, g->x, g->y, rows);
    case PATH_PREFILL: return gemm_prefill_takes(g->weight, g->x, g->y, rows);
    default: return path == gemm_library(g);
    }
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
        p->path = gemm_library(g);
        code = cublasLtMatrixLayoutCreate(&p->x, type_of(g->x.element), in, (uint64_t)p->rows, g->x.stride);
        if (code == CUBLAS_STATUS_SUCCESS)
            code = cublasLtMatrixLayoutCreate(&p->y, type_of(g->y.element), out, (uint64_t)p->rows, g->y.stride);
    }
    return code;
}

enum status gemm_open(struct loaded *loaded, const struct op *op, const struct op *act, struct dmat x, struct dmat y, struct dmat made,
                      int max_rows, struct gemm **out, struct error *err) {
    struct gemm *g = xcalloc(1, sizeof *g);
    *out = g;
    *g = (struct gemm){
        .loaded = loaded, .op = op, .act = act, .weight = weight_on_device(loaded, op->weights[0])->matrix, .x = x, .y = y, .made = made};
    g->l2_copy = weight_on_device(loaded, op->weights[0])->l2_copy;
    g->n_plans = padded_index(max_rows) + 1;
    g->plans = xcalloc((size_t)g->n_plans, sizeof *g->plans);
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

enum linear_path gemm_path(const struct gemm *g, int n_rows) { return g->plans[padded_index(n_rows)].path; }

void gemm_take(struct gemm *g, enum linear_path path, int n_rows) {
    int i = padded_index(n_rows);
    if (i < g->n_plans)
        g->plans[i].path = path;
}

void gemm_count_at(struct gemm *g, void *counter) { g->counter = counter; }

cublasStatus_t gemm_put(const struct gemm *g, const struct plan_of_rows *p, const struct algorithm *a, struct operands o) {
    const float one = 1, zero = 0;
    return cublasLtMatmul(g->loaded->device->blas, g->description, &one, o.weight, g->w, o.x, p->x, &zero, o.y, p->y, o.y, p->y, &a->words,
                          o.workspace, a->workspace_bytes, g->loaded->device->stream);
}

static cudaError_t put_ours(const struct gemm *g, const struct plan_of_rows *p, const struct linear_values *v) {
    struct dsmall_m tiles = small_m_of(g);
    struct dgated wide = gated_of(g);
    tiles.qact = wide.qact = v->qact;
    tiles.requant = v->requant;
    switch (p->path) {
    case PATH_SMALL_M: return launch_gemm_small_m(g->loaded->device->stream, p->rows, &tiles, v->x, v->y);
    case PATH_GATED:
        return p->rows > GATED_MAX_ROWS ? launch_gemm_prefill_gated(g->loaded->device->stream, p->rows, &wide, v->x, v->y)
                                        : launch_gemm_gated(g->loaded->device->stream, p->rows, &wide, v->x, v->y);
    case PATH_PREFILL: return launch_gemm_prefill(g->loaded->device->stream, p->rows, g->weight, v->x, v->y);
    default: return launch_gemm_split_k(g->loaded->device->stream, p->rows, g->weight, g->l2_copy, v->x, v->y, &v->requant);
    }
}

bool gemm_requantises(const struct gemm *g, int n_rows) {
    const struct plan_of_rows *p = &g->plans[padded_index(n_rows)];
    return g->loaded->device->requantises &&
           ((p->path == PATH_SMALL_M && !g->act) || (p->path == PATH_SPLIT_K && split_k_requantises(g->weight, p->rows)));
}

/* "model.layers.0.mlp.down_proj.weight: the product of 24 rows with [3584, 18944] by gemm_fp8_split_k.cu did not start" */
static enum status did_not_start(const struct gemm *g, const struct plan_of_rows *p, cudaError_t code, const char *why, struct error *err) {
    static const char *const by[N_PATHS] = {[PATH_VALUE] = "cuBLASLt",
                                            [PATH_QACT] = "cuBLASLt",
                                            [PATH_SMALL_M] = "gemm_fp8_small_m.cu",
                                            [PATH_GATED] = "gemm_fp8_gated.cu",
                                            [PATH_SPLIT_K] = "gemm_fp8_split_k.cu",
                                            [PATH_PREFILL] = "gemm_fp8_prefill.cu"};
    bool large = p->path == PATH_GATED && p->rows > GATED_MAX_ROWS;
    return device_fault(g->loaded->device, err, code, "%s: the product of %d rows with [%lld, %lld] by %s did not start%s%s",
                        g->op->weights[0]->name, p->rows, (long long)g->weight.out, (long long)g->weight.in,
                        by[large ? PATH_PREFILL : p->path], why ? ", " : "", why ? why : "");
}

enum status gemm_run(struct gemm *g, int n_rows, const struct linear_values *v, struct error *err) {
    const struct plan_of_rows *p = &g->plans[padded_index(n_rows)];
    if (p->path != gemm_library(g)) {
        cudaError_t code = put_ours(g, p, v);
        return code == cudaSuccess ? OK : did_not_start(g, p, code, NULL, err);
    }
    bool counts = p->algorithm.workspace_bytes <= COUNTER_BYTES && g->counter;
    struct operands o = {g->weight.at, v->x.at, v->y.at, counts ? g->counter : g->loaded->device->workspace};
    cublasStatus_t code = gemm_put(g, p, &p->algorithm, o);
    return code == CUBLAS_STATUS_SUCCESS ? OK : did_not_start(g, p, cudaErrorUnknown, cublasLtGetStatusString(code), err);
}
