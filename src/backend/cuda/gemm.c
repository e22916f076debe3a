/* gemm.c - LINEAR by cuBLASLt.
 *
 *     y [M, out] = x [M, in] W^T + b        as cuBLAS sees it: Y^T [out, M] = W x^T, columns one after another
 *
 * A program's LINEARs ask the library's heuristic once for each number of rows that a step may be padded to (padded.c). A shape that the library has no algorithm for is refused when the program is compiled. Float32
 * products are float32 throughout (no TF32). */
#include "backend/cuda/cuda.h"

#include <stdlib.h>

struct plan_of_rows {
    cublasLtMatrixLayout_t x, y;
    cublasLtMatmulAlgo_t algorithm;
};

struct gemm {
    struct backend *backend;
    const char *name;
    const void *weight;
    enum element element; // of the weight
    void *bias; // in y's element, as the library wants it
    cublasLtMatmulDesc_t description;
    cublasLtMatrixLayout_t w;
    struct plan_of_rows *plans;
    int n_plans;
};

static cudaDataType_t type_of(enum element e) { return e == ELEMENT_F32 ? CUDA_R_32F : e == ELEMENT_F16 ? CUDA_R_16F : CUDA_R_16BF; }

static enum status refused(const struct op *op, int rows, cublasStatus_t code, struct error *err) {
    return fail(err, ERR_UNSUPPORTED, "%s: cuBLASLt has no product of %d rows with [%lld, %lld]: %s", op->weights[0]->name, rows,
                (long long)op->weights[0]->out, (long long)op->weights[0]->in, cublasLtGetStatusString(code));
}

/* A value may be a run of columns of another, so that it lies less well than the library takes for granted. */
static void tell_alignment(cublasLtMatmulPreference_t wish, struct dmat x, struct dmat y) {
    uint32_t of_x = (uint32_t)MIN((uintptr_t)x.at & -(uintptr_t)x.at, 256), of_y = (uint32_t)MIN((uintptr_t)y.at & -(uintptr_t)y.at, 256);
    cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &of_x, sizeof of_x);
    cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &of_y, sizeof of_y);
    cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &of_y, sizeof of_y);
}

static enum status find_algorithm(struct gemm *g, struct plan_of_rows *p, const struct op *op, struct dmat x, struct dmat y, int rows,
                                  struct error *err) {
    cublasLtMatmulPreference_t wish;
    cublasLtMatmulHeuristicResult_t found = {0};
    size_t workspace = WORKSPACE_BYTES;
    int n = 0;
    if (cublasLtMatmulPreferenceCreate(&wish) != CUBLAS_STATUS_SUCCESS)
        return refused(op, rows, CUBLAS_STATUS_ALLOC_FAILED, err);
    cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
    tell_alignment(wish, x, y);
    cublasStatus_t code = cublasLtMatmulAlgoGetHeuristic(g->backend->blas, g->description, g->w, p->x, p->y, p->y, wish, 1, &found, &n);
    cublasLtMatmulPreferenceDestroy(wish);
    if (code != CUBLAS_STATUS_SUCCESS || n == 0)
        return refused(op, rows, code == CUBLAS_STATUS_SUCCESS ? CUBLAS_STATUS_NOT_SUPPORTED : code, err);
    p->algorithm = found.algo;
    return OK;
}

/* The library adds a bias of the element of y only. */
static enum status place_bias(struct gemm *g, const struct weight *bias, enum element e, struct error *err) {
    size_t n = (size_t)bias->out, n_bytes = n * (size_t)element_bytes(e);
    float *values = xcalloc(n, sizeof *values);
    weight_vector_f32(bias, values);
    to_element(e, values, (int64_t)n, values); // in place: what is written lies at or before what is read
    cudaError_t code = cudaMalloc(&g->bias, n_bytes);
    if (code == cudaSuccess)
        code = cudaMemcpy(g->bias, values, n_bytes, cudaMemcpyHostToDevice);
    free(values);
    return code == cudaSuccess ? OK : device_fault(g->backend, err, code, "%s: placing a bias of %zu", bias->name, n);
}

static enum status describe(struct gemm *g, const struct op *op, enum element y, struct error *err) {
    cublasOperation_t transposed = CUBLAS_OP_T;
    cublasStatus_t code = cublasLtMatmulDescCreate(&g->description, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (code != CUBLAS_STATUS_SUCCESS)
        return refused(op, 0, code, err);
    cublasLtMatmulDescSetAttribute(g->description, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
    if (!op->weights[1])
        return OK;
    TRY(place_bias(g, op->weights[1], y, err));
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    cudaDataType_t type = type_of(y);
    cublasLtMatmulDescSetAttribute(g->description, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    cublasLtMatmulDescSetAttribute(g->description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &g->bias, sizeof g->bias);
    cublasLtMatmulDescSetAttribute(g->description, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof type);
    return OK;
}

enum status gemm_open(struct backend *b, const struct op *op, struct dmat x, struct dmat y, int max_rows, struct gemm **out,
                      struct error *err) {
    const struct placed *w = weight_on_device(b, op->weights[0]);
    struct gemm *g = xcalloc(1, sizeof *g);
    *out = g;
    g->backend = b;
    g->name = op->weights[0]->name;
    g->weight = w->matrix.at;
    g->element = w->matrix.element;
    TRY(describe(g, op, y.element, err));
    uint64_t in = (uint64_t)w->matrix.in, n_out = (uint64_t)w->matrix.out;
    cublasStatus_t code = cublasLtMatrixLayoutCreate(&g->w, type_of(w->matrix.element), in, n_out, (int64_t)in);
    if (code != CUBLAS_STATUS_SUCCESS)
        return refused(op, 0, code, err);
    int n = padded_index(max_rows) + 1;
    g->plans = xcalloc((size_t)n, sizeof *g->plans);
    for (g->n_plans = 0; g->n_plans < n;) {
        struct plan_of_rows *p = &g->plans[g->n_plans++];
        int rows = padded_rows_at(g->n_plans - 1);
        code = cublasLtMatrixLayoutCreate(&p->x, type_of(x.element), in, (uint64_t)rows, x.stride);
        if (code == CUBLAS_STATUS_SUCCESS)
            code = cublasLtMatrixLayoutCreate(&p->y, type_of(y.element), n_out, (uint64_t)rows, y.stride);
        if (code != CUBLAS_STATUS_SUCCESS)
            return refused(op, rows, code, err);
        TRY(find_algorithm(g, p, op, x, y, rows, err));
    }
    return OK;
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

enum linear_path gemm_path(const struct gemm *g, int n_rows) {
    (void)n_rows;
    return g->element == ELEMENT_E4M3 ? PATH_TWIN : PATH_VALUE;
}

enum status gemm_run(struct gemm *g, int n_rows, struct dmat x, struct dmat y, struct error *err) {
    const float one = 1, zero = 0;
    const struct plan_of_rows *p = &g->plans[padded_index(n_rows)];
    cublasStatus_t code = cublasLtMatmul(g->backend->blas, g->description, &one, g->weight, g->w, x.at, p->x, &zero, y.at, p->y, y.at, p->y,
                                         &p->algorithm, g->backend->workspace, WORKSPACE_BYTES, g->backend->stream);
    if (code != CUBLAS_STATUS_SUCCESS)
        return device_fault(g->backend, err, cudaErrorUnknown, "%s: the product of %d rows did not start: %s", g->name, n_rows,
                            cublasLtGetStatusString(code));
    return OK;
}
