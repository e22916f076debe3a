/* measure.c - the limits of the card, from kernels that do nothing else: see measure.h and backend_probes.measure.
 *
 * Products: the largest that still fits next to a full cache, by the fastest of the library's algorithms. */
#include "backend/cuda/device/measure.h"
#include "backend/cuda/device/device.h"
#include "backend/cuda/device/probes.h"
#include "backend/cuda/value.h"
#include "backend/cuda/weights/weights.h"

#include "backend/cuda/cuda.h"

#include <math.h>
#include <stdio.h>

enum { SIDE = 8192, ALGORITHMS = 8, PASSES = 7 };
static const size_t READ_BYTES = (size_t)4 << 30; // lasts a millisecond, and is many times the L2

struct probe {
    struct loaded *loaded;
    int n_processors;
    void *memory;
    cudaEvent_t begin, end;
};

/* What most bytes of matrices are multiplied as. */
static enum element main_element(const struct loaded *loaded) {
    int64_t e4m3 = 0, other = 0;
    for (int i = 0; i < loaded->n_slots; i++) {
        const struct dweight *m = &loaded->placed[i].matrix;
        if (m->at)
            *(m->element == ELEMENT_E4M3 ? &e4m3 : &other) += m->out * m->in;
    }
    return e4m3 > other ? ELEMENT_E4M3 : loaded->product;
}

static enum status timed(struct probe *p, float *ms, struct error *err) {
    DEVICE_TRY(p->loaded->device, err, cudaEventRecord(p->end, p->loaded->device->stream), "an event");
    DEVICE_TRY(p->loaded->device, err, cudaEventSynchronize(p->end), "measuring");
    DEVICE_TRY(p->loaded->device, err, cudaEventElapsedTime(ms, p->begin, p->end), "an event");
    return OK;
}

static enum status measure_read(struct probe *p, double *bytes_per_s, struct error *err) {
    float ms, best = INFINITY;
    for (int i = 0; i < PASSES; i++) {
        DEVICE_TRY(p->loaded->device, err, cudaEventRecord(p->begin, p->loaded->device->stream), "an event");
        launch_read(p->loaded->device->stream, p->n_processors, p->memory, READ_BYTES, p->loaded->device->workspace);
        DEVICE_TRY(p->loaded->device, err, cudaGetLastError(), "reading %zu MiB", READ_BYTES >> 20);
        TRY(timed(p, &ms, err));
        best = MIN(best, ms);
    }
    *bytes_per_s = (double)READ_BYTES / best * 1e3;
    return OK;
}

struct product {
    cublasLtMatmulDesc_t description;
    cublasLtMatrixLayout_t x, y;
    cublasLtMatmulPreference_t wish;
};

static cudaDataType_t type_of(enum element e) {
    return e == ELEMENT_E4M3   ? CUDA_R_8F_E4M3
           : e == ELEMENT_F16  ? CUDA_R_16F
           : e == ELEMENT_BF16 ? CUDA_R_16BF
                               : CUDA_R_32F;
}

static bool describe(struct product *q, enum element e) {
    cublasOperation_t transposed = CUBLAS_OP_T;
    size_t workspace = WORKSPACE_BYTES;
    if (cublasLtMatmulDescCreate(&q->description, CUBLAS_COMPUTE_32F, CUDA_R_32F) != CUBLAS_STATUS_SUCCESS ||
        cublasLtMatrixLayoutCreate(&q->x, type_of(e), SIDE, SIDE, SIDE) != CUBLAS_STATUS_SUCCESS ||
        cublasLtMatrixLayoutCreate(&q->y, type_of(e == ELEMENT_E4M3 ? ELEMENT_BF16 : e), SIDE, SIDE, SIDE) !=
            CUBLAS_STATUS_SUCCESS ||
        cublasLtMatmulPreferenceCreate(&q->wish) != CUBLAS_STATUS_SUCCESS)
        return false;
    cublasLtMatmulDescSetAttribute(q->description, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
    cublasLtMatmulPreferenceSetAttribute(q->wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                         sizeof workspace);
    return true;
}

static void product_release(struct product *q) {
    if (q->wish)
        cublasLtMatmulPreferenceDestroy(q->wish);
    if (q->x)
        cublasLtMatrixLayoutDestroy(q->x);
    if (q->y)
        cublasLtMatrixLayoutDestroy(q->y);
    if (q->description)
        cublasLtMatmulDescDestroy(q->description);
}

static enum status measure_product(struct probe *p, enum element e, const struct product *q, double *flops_per_s,
                                   struct error *err) {
    const float one = 1, zero = 0;
    cublasLtMatmulHeuristicResult_t found[ALGORITHMS];
    size_t side_bytes = (size_t)SIDE * SIDE * sizeof(float);
    char *a = p->memory, *y = a + 2 * side_bytes;
    float ms, best = INFINITY;
    int n = 0;
    if (cublasLtMatmulAlgoGetHeuristic(p->loaded->device->blas, q->description, q->x, q->x, q->y, q->y, q->wish,
                                       ALGORITHMS, found, &n) != CUBLAS_STATUS_SUCCESS)
        n = 0;
    launch_fill(p->loaded->device->stream, p->n_processors, a, 2 * side_bytes, e);
    DEVICE_TRY(p->loaded->device, err, cudaGetLastError(), "filling %zu MiB", 2 * side_bytes >> 20);
    for (int i = 0; i < n * PASSES; i++) {
        DEVICE_TRY(p->loaded->device, err, cudaEventRecord(p->begin, p->loaded->device->stream), "an event");
        cublasStatus_t code = cublasLtMatmul(p->loaded->device->blas, q->description, &one, a, q->x, a + side_bytes,
                                             q->x, &zero, y, q->y, y, q->y, &found[i / PASSES].algo,
                                             p->loaded->device->workspace, WORKSPACE_BYTES, p->loaded->device->stream);
        TRY(timed(p, &ms, err));
        if (code == CUBLAS_STATUS_SUCCESS)
            best = MIN(best, ms);
    }
    if (best == INFINITY)
        return fail(err, ERR_UNSUPPORTED, "cuBLASLt has no product of %d by %d to measure", SIDE, SIDE);
    *flops_per_s = 2.0 * SIDE * SIDE * SIDE / best * 1e3;
    return OK;
}

static enum status measure_element(struct probe *p, enum element e, double *flops_per_s, struct error *err) {
    struct product q = {0};
    enum status st = describe(&q, e) ? measure_product(p, e, &q, flops_per_s, err)
                                     : fail(err, ERR_UNSUPPORTED, "cuBLASLt cannot be asked for a product");
    product_release(&q);
    return st;
}

static enum status measure(struct probe *p, struct device_limits *out, struct error *err) {
    static const char *const names[] = {
        [ELEMENT_F32] = "float32", [ELEMENT_F16] = "float16", [ELEMENT_BF16] = "bfloat16", [ELEMENT_E4M3] = "e4m3"};
    struct loaded *loaded = p->loaded;
    struct cudaDeviceProp prop;
    enum element e = main_element(loaded);
    DEVICE_TRY(loaded->device, err, cudaGetDeviceProperties(&prop, loaded->device->index), "its properties");
    p->n_processors = prop.multiProcessorCount;
    snprintf(out->name, sizeof out->name, "%.60s, %d multiprocessors", prop.name, prop.multiProcessorCount);
    out->product = names[e];
    DEVICE_TRY(loaded->device, err, cudaEventCreate(&p->begin), "an event");
    DEVICE_TRY(loaded->device, err, cudaEventCreate(&p->end), "an event");
    if (cudaMalloc(&p->memory, READ_BYTES) != cudaSuccess) {
        cudaGetLastError();
        return fail(err, ERR_MEMORY, "no %zu MiB of the GPU are free to measure it with", READ_BYTES >> 20);
    }
    TRY(measure_read(p, &out->read_bytes_per_s, err));
    TRY(measure_element(p, e, &out->flops_per_s, err));
    return measure_element(p, loaded->product, &out->wide_flops_per_s, err);
}

enum status cuda_measure(struct loaded *loaded, struct device_limits *out, struct error *err) {
    TRY(device_enter(loaded->device, err));
    struct probe p = {.loaded = loaded};
    enum status st = measure(&p, out, err);
    cudaFree(p.memory);
    if (p.begin)
        cudaEventDestroy(p.begin);
    if (p.end)
        cudaEventDestroy(p.end);
    return st;
}

/* What a pass made w a part of; NULL: w is as it was. */
static const struct weight *joined_to(const struct program *p, const struct weight *w) {
    for (int i = 0; i < p->n_joined; i++)
        if (p->joined[i].was == w)
            return p->joined[i].is;
    return NULL;
}

int64_t cuda_weight_bytes(const struct loaded *loaded, const struct weight *w) {
    const struct weight *all = joined_to(loaded->program, w);
    if (all)
        return (int64_t)((double)cuda_weight_bytes(loaded, all) * ((double)w->out / (double)all->out) *
                         ((double)w->in / (double)all->in));
    const struct placed *p = weight_on_device(loaded, w);
    const struct dweight *d = p->matrix.at ? &p->matrix : &p->floats;
    if (w == loaded->filter.head) // by greedy steps
        return loaded->filter.n_bytes;
    int64_t n_bytes = p->matrix.at ? placed_matrix_bytes(p) : d->out * d->in * element_bytes(d->element);
    return n_bytes + (d->scale ? d->out * (int64_t)sizeof(float) : 0);
}
