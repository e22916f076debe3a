/* cublaslt.c - products of the library (cuBLASLt), as the backend asks for them: D = alpha op(A) op(B) + beta C + bias,
 * by plain loops in float32.
 *
 * Matrices lie column by column; elements are float32, float16, bfloat16 or e4m3; a bias is one a row of D. A product
 * of e4m3 has what the library's have: it wants A turned and multiples of 16, and, if there is a workspace, an
 * algorithm whose blocks draw their tiles from a counter there, which a node in front of it zeroes. Here a counter that
 * is not zero ends the program. */
#include "numbers.h"
#include "runtime.h"

#include <cublasLt.h>
#include <stdlib.h>
#include <string.h>

enum { COUNTER_BYTES = 128, COUNTED = 1, STEP = 16, ROWS = 4 };

struct layout {
    cudaDataType_t type;
    uint64_t rows, columns;
    int64_t stride; // from column to column
};
struct description {
    cublasOperation_t turn_a, turn_b;
    cublasLtEpilogue_t epilogue;
    cudaDataType_t bias_type;
    const void *bias;
};
struct preference {
    size_t workspace_bytes;
};
_Static_assert(sizeof(struct layout) <= sizeof(cublasLtMatrixLayoutOpaque_t) &&
                   sizeof(struct description) <= sizeof(cublasLtMatmulDescOpaque_t) &&
                   sizeof(struct preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t),
               "they lie in the library's");

// ---- what is told about a product -----------------------------------------------------------------------------------

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
    *handle = malloc(1);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}
size_t cublasLtGetVersion(void) { return 130000; }

const char *cublasLtGetStatusString(cublasStatus_t status) {
    switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    default: return "CUBLAS_STATUS_INTERNAL_ERROR";
    }
}

static int bytes_of(cudaDataType_t type) {
    switch (type) {
    case CUDA_R_32F: return 4;
    case CUDA_R_16F:
    case CUDA_R_16BF: return 2;
    case CUDA_R_8F_E4M3: return 1;
    default: runtime_unknown("cuBLASLt: a matrix of type %d", (int)type);
    }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t stride) {
    bytes_of(type);
    if (rows == 0 || columns == 0 || stride < (int64_t)rows)
        return CUBLAS_STATUS_INVALID_VALUE;
    *out = calloc(1, sizeof **out);
    *(struct layout *)*out = (struct layout){type, rows, columns, stride};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
    free(layout);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t computes,
                                        cudaDataType_t scales) {
    if (computes != CUBLAS_COMPUTE_32F || scales != CUDA_R_32F)
        runtime_unknown("cuBLASLt: computing in %d with scales of type %d", (int)computes, (int)scales);
    *out = calloc(1, sizeof **out);
    *(struct description *)*out =
        (struct description){CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, CUDA_R_32F, NULL};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
    free(description);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description,
                                              cublasLtMatmulDescAttributes_t attribute, const void *value,
                                              size_t n_bytes) {
    struct description *d = (struct description *)description;
    struct {
        void *at;
        size_t n_bytes;
    } place;
    int8_t fast; // sums of fewer bits: here they are float32 all the same
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA: place.at = &d->turn_a, place.n_bytes = sizeof d->turn_a; break;
    case CUBLASLT_MATMUL_DESC_TRANSB: place.at = &d->turn_b, place.n_bytes = sizeof d->turn_b; break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE: place.at = &d->epilogue, place.n_bytes = sizeof d->epilogue; break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: place.at = &d->bias, place.n_bytes = sizeof d->bias; break;
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: place.at = &d->bias_type, place.n_bytes = sizeof d->bias_type; break;
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM: place.at = &fast, place.n_bytes = sizeof fast; break;
    default: runtime_unknown("cuBLASLt: attribute %d of a product", (int)attribute);
    }
    if (n_bytes != place.n_bytes)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(place.at, value, n_bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out) {
    *out = calloc(1, sizeof **out);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
    free(preference);
    return CUBLAS_STATUS_SUCCESS;
}
/* Of alignments nothing depends here. */
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                                                    size_t n_bytes) {
    bool is_workspace = attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
    bool is_alignment = attribute >= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES &&
                        attribute <= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES;
    if (!is_workspace && !is_alignment)
        runtime_unknown("cuBLASLt: preference %d", (int)attribute);
    if (n_bytes != (is_workspace ? sizeof(size_t) : sizeof(uint32_t)))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (is_workspace)
        memcpy(&((struct preference *)preference)->workspace_bytes, value, n_bytes);
    return CUBLAS_STATUS_SUCCESS;
}

// ---- which are computed ---------------------------------------------------------------------------------------------

struct gemm {
    struct description of;
    struct layout a, b, c, d;
    const void *at_a, *at_b, *at_c;
    void *at_d;
    uint32_t *counter; // NULL: none
    float alpha, beta;
};

static uint64_t terms(const struct gemm *p) { return p->of.turn_a == CUBLAS_OP_N ? p->a.columns : p->a.rows; }

static struct gemm gemm_of(cublasLtMatmulDesc_t of, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                           cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d) {
    return (struct gemm){.of = *(struct description *)of,
                         .a = *(struct layout *)a,
                         .b = *(struct layout *)b,
                         .c = *(struct layout *)c,
                         .d = *(struct layout *)d};
}

static bool is_e4m3(const struct gemm *p) { return p->a.type == CUDA_R_8F_E4M3; }

static cublasStatus_t check(const struct gemm *p) {
    uint64_t m = p->of.turn_a == CUBLAS_OP_N ? p->a.rows : p->a.columns,
             n = p->of.turn_b == CUBLAS_OP_N ? p->b.columns : p->b.rows;
    bool biased = p->of.epilogue == CUBLASLT_EPILOGUE_BIAS;
    if (p->of.turn_a == CUBLAS_OP_C || p->of.turn_b == CUBLAS_OP_C ||
        (p->of.epilogue != CUBLASLT_EPILOGUE_DEFAULT && !biased))
        runtime_unknown("cuBLASLt: a product with op %d, op %d and epilogue %d", (int)p->of.turn_a, (int)p->of.turn_b,
                        (int)p->of.epilogue);
    if (p->d.rows != m || p->d.columns != n || terms(p) != (p->of.turn_b == CUBLAS_OP_N ? p->b.rows : p->b.columns))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (p->c.type != p->d.type || p->c.rows != m || p->c.columns != n ||
        (biased && (!p->of.bias || p->of.bias_type != p->d.type)))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (p->a.type != p->b.type || p->d.type == CUDA_R_8F_E4M3 || (p->a.type == CUDA_R_32F && p->d.type != CUDA_R_32F))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!is_e4m3(p))
        return p->d.type == CUDA_R_32F || p->d.type == p->a.type ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
    bool suits = p->of.turn_a == CUBLAS_OP_T && p->of.turn_b == CUBLAS_OP_N && terms(p) % 16 == 0 && m % 16 == 0 &&
                 p->a.stride % 16 == 0 && p->b.stride % 16 == 0 && p->d.stride * bytes_of(p->d.type) % 16 == 0;
    return suits ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t of,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int most,
                                              cublasLtMatmulHeuristicResult_t *found, int *n) {
    struct gemm p = gemm_of(of, a, b, c, d);
    size_t workspace_bytes = preference ? ((struct preference *)preference)->workspace_bytes : 0;
    bool counted = is_e4m3(&p) && workspace_bytes >= COUNTER_BYTES;
    cublasStatus_t code = check(&p);
    (void)handle;
    *n = code == CUBLAS_STATUS_SUCCESS && most > 0;
    if (*n)
        found[0] = (cublasLtMatmulHeuristicResult_t){.algo = {.data = {counted}},
                                                     .workspaceSize = counted ? COUNTER_BYTES : 0,
                                                     .state = CUBLAS_STATUS_SUCCESS,
                                                     .wavesCount = 1};
    return code;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t of, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algorithm, cublasLtMatmulHeuristicResult_t *result) {
    struct gemm p = gemm_of(of, a, b, c, d);
    cublasStatus_t code = check(&p);
    (void)handle;
    if (algorithm->data[0] > COUNTED || (algorithm->data[0] == COUNTED && !is_e4m3(&p)))
        code = CUBLAS_STATUS_INVALID_VALUE;
    *result = (cublasLtMatmulHeuristicResult_t){.algo = *algorithm,
                                                .workspaceSize = algorithm->data[0] == COUNTED ? COUNTER_BYTES : 0,
                                                .state = code,
                                                .wavesCount = 1};
    return code;
}

// ---- computing ------------------------------------------------------------------------------------------------------

static float element(cudaDataType_t type, const void *at, size_t i) {
    switch (type) {
    case CUDA_R_32F: return ((const float *)at)[i];
    case CUDA_R_16F: return half_to_float(((const uint16_t *)at)[i]);
    case CUDA_R_16BF: return bf16_to_float(((const uint16_t *)at)[i]);
    default: return e4m3_to_float(((const uint8_t *)at)[i]);
    }
}

static void put(cudaDataType_t type, void *at, size_t i, float value) {
    switch (type) {
    case CUDA_R_32F: ((float *)at)[i] = value; break;
    case CUDA_R_16F: ((uint16_t *)at)[i] = half_from_float(value); break;
    default: ((uint16_t *)at)[i] = bf16_from_float(value);
    }
}

/* Row or column `which` of a matrix that is multiplied along its columns (turned) or rows, as floats. */
static void spread(const struct layout *l, const void *at, bool along_columns, uint64_t which, uint64_t n, float *out) {
    size_t first = along_columns ? which * (size_t)l->stride : which, step = along_columns ? 1 : (size_t)l->stride;
    for (uint64_t i = 0; i < n; i++)
        out[i] = element(l->type, at, first + i * step);
}

/* ROWS rows of a, n terms each (a multiple of STEP), by one of b. */
static void multiply(const float *a, const float *b, uint64_t n, float *sums) {
    float part[ROWS][STEP] = {{0}};
    for (uint64_t i = 0; i < n; i += STEP)
        for (int r = 0; r < ROWS; r++)
            for (int k = 0; k < STEP; k++)
                part[r][k] += a[(uint64_t)r * n + i + (uint64_t)k] * b[i + (uint64_t)k];
    for (int r = 0; r < ROWS; r++) {
        sums[r] = 0;
        for (int k = 0; k < STEP; k++)
            sums[r] += part[r][k];
    }
}

static void put_sum(const struct gemm *p, uint64_t row, uint64_t column, float sum) {
    float value = p->alpha * sum;
    if (p->beta != 0)
        value += p->beta * element(p->c.type, p->at_c, column * (size_t)p->c.stride + row);
    if (p->of.epilogue == CUBLASLT_EPILOGUE_BIAS)
        value += element(p->of.bias_type, p->of.bias, row);
    put(p->d.type, p->at_d, column * (size_t)p->d.stride + row, value);
}

static void draw_tiles(const struct gemm *p) {
    for (int i = 0; p->counter && i < COUNTER_BYTES / 4; i++) {
        if (p->counter[i] != 0)
            runtime_unknown("cuBLASLt: the counter of a product of %llu by %llu is not zero when it starts",
                            (unsigned long long)p->d.rows, (unsigned long long)p->d.columns);
        p->counter[i] = 1 + (uint32_t)p->d.columns;
    }
}

static void compute(const void *params) {
    const struct gemm *p = params;
    uint64_t n = terms(p), room = (n + STEP - 1) / STEP * STEP;
    float *a = calloc(ROWS * room, sizeof *a), *b = calloc(p->d.columns * room, sizeof *b), sums[ROWS];
    draw_tiles(p);
    for (uint64_t column = 0; column < p->d.columns; column++)
        spread(&p->b, p->at_b, p->of.turn_b == CUBLAS_OP_N, column, n, b + column * room);
    for (uint64_t row = 0; row < p->d.rows; row += ROWS) {
        uint64_t n_rows = p->d.rows - row < ROWS ? p->d.rows - row : ROWS;
        for (uint64_t r = 0; r < n_rows; r++)
            spread(&p->a, p->at_a, p->of.turn_a == CUBLAS_OP_T, row + r, n, a + r * room);
        for (uint64_t column = 0; column < p->d.columns; column++) {
            multiply(a, b + column * room, room, sums);
            for (uint64_t r = 0; r < n_rows; r++)
                put_sum(p, row + r, column, sums[r]);
        }
    }
    free(a);
    free(b);
}

static bool is_there(const struct layout *l, const void *at) {
    return memory_holds(at, ((l->columns - 1) * (uint64_t)l->stride + l->rows) * (uint64_t)bytes_of(l->type)) &&
           (uintptr_t)at % (uintptr_t)bytes_of(l->type) == 0;
}

static bool are_there(const struct gemm *p) {
    bool good = is_there(&p->a, p->at_a) && is_there(&p->b, p->at_b) && is_there(&p->d, p->at_d) &&
                (p->beta == 0 || is_there(&p->c, p->at_c));
    if (p->of.epilogue == CUBLASLT_EPILOGUE_BIAS)
        good = good && memory_holds(p->of.bias, p->d.rows * (uint64_t)bytes_of(p->of.bias_type));
    return good && (!is_e4m3(p) || ((uintptr_t)p->at_a | (uintptr_t)p->at_b | (uintptr_t)p->at_d) % 16 == 0);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t of, const void *alpha, const void *at_a,
                              cublasLtMatrixLayout_t a, const void *at_b, cublasLtMatrixLayout_t b, const void *beta,
                              const void *at_c, cublasLtMatrixLayout_t c, void *at_d, cublasLtMatrixLayout_t d,
                              const cublasLtMatmulAlgo_t *algorithm, void *workspace, size_t workspace_bytes,
                              cudaStream_t stream) {
    static struct kernel kernel = {.name = "gemm_by_plain_loops", .computes = compute};
    struct gemm p = gemm_of(of, a, b, c, d);
    cublasStatus_t code = check(&p);
    bool counted = algorithm && algorithm->data[0] == COUNTED;
    (void)handle;
    if (code != CUBLAS_STATUS_SUCCESS)
        return code;
    p.at_a = at_a, p.at_b = at_b, p.at_c = at_c, p.at_d = at_d;
    memcpy(&p.alpha, alpha, sizeof p.alpha);
    memcpy(&p.beta, beta, sizeof p.beta);
    p.counter = counted ? workspace : NULL;
    if (!are_there(&p) || (counted && (workspace_bytes < COUNTER_BYTES || (uintptr_t)workspace % 256)))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (counted && cudaMemsetAsync(workspace, 0, COUNTER_BYTES, stream) != cudaSuccess)
        return CUBLAS_STATUS_EXECUTION_FAILED;
    struct work w = {.type = cudaGraphNodeTypeKernel,
                     .launch = {.kernel = &kernel, .params = &p, .param_bytes = sizeof p}};
    return runtime_said(stream_put(stream, &w)) == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
