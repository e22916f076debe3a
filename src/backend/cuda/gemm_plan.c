/* gemm_plan.c - which of the library's algorithms computes a LINEAR for each number of rows.
 *
 * The library's first proposal is up to a quarter slower than its best on some shapes of this card. So the best is found by timing:
 * for powers of two and the most rows that a step can have, each of up to 16 proposals, several times in a graph, with the weights
 * of as many layers as have the shape, so that none is in the cache still. The numbers between take the algorithm of the next timed
 * one above where the library says that it can compute them, else its first proposal. What was found is kept
 * (plan_cache.h) and asked for before anything else. A product whose weight is small is not worth timing. Whether
 * the library computes it at all, paths.c says. */
#include "backend/cuda/gemm_internal.h"

/* Few rows have kernels of ours, many take long to time: half of the proposals will do. */
enum { MOST_CANDIDATES = 16, HALF = 8, SMALL_ROWS = 32, LARGE_ROWS = 1024, MOST_WEIGHTS = 16, WORTH_TIMING = 2 << 20 };

_Static_assert(sizeof(cublasLtMatmulAlgo_t) == PLAN_WORDS * sizeof(uint64_t), "an algorithm is kept whole");

static int alignment_of(const void *at) { return (int)MIN((uintptr_t)at & -(uintptr_t)at, 256); }

static struct plan_key key_of(const struct gemm *g, int rows) {
    struct plan_key key = gemm_shape(g);
    key.rows = rows;
    key.align_x = alignment_of(g->x.at);
    key.align_y = alignment_of(g->y.at);
    return key;
}

// ---- what the library proposes ----------------------------------------------------------------------------------

/* A value may be a run of columns of another, so that it lies less well than the library takes for granted. */
static void tell_alignment(cublasLtMatmulPreference_t wish, const struct gemm *g) {
    uint32_t of_x = (uint32_t)alignment_of(g->x.at), of_y = (uint32_t)alignment_of(g->y.at);
    cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &of_x, sizeof of_x);
    cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &of_y, sizeof of_y);
    cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &of_y, sizeof of_y);
}

struct proposals {
    cublasLtMatmulHeuristicResult_t at[MOST_CANDIDATES];
    int n;
};

static enum status ask_library(const struct gemm *g, const struct plan_of_rows *p, int most, struct proposals *out, struct error *err) {
    cublasLtMatmulPreference_t wish;
    size_t workspace = WORKSPACE_BYTES;
    if (cublasLtMatmulPreferenceCreate(&wish) != CUBLAS_STATUS_SUCCESS)
        return gemm_refused(g->op, p->rows, CUBLAS_STATUS_ALLOC_FAILED, err);
    cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
    tell_alignment(wish, g);
    out->n = 0;
    cublasStatus_t code =
        cublasLtMatmulAlgoGetHeuristic(g->backend->blas, g->description, g->w, p->x, p->y, p->y, wish, most, out->at, &out->n);
    cublasLtMatmulPreferenceDestroy(wish);
    if (code != CUBLAS_STATUS_SUCCESS || out->n == 0)
        return gemm_refused(g->op, p->rows, code == CUBLAS_STATUS_SUCCESS ? CUBLAS_STATUS_NOT_SUPPORTED : code, err);
    return OK;
}

/* Whether the library can compute the product for these rows with an algorithm that was found elsewhere. */
static bool can_compute(const struct gemm *g, const struct plan_of_rows *p, const cublasLtMatmulAlgo_t *algorithm) {
    cublasLtMatmulHeuristicResult_t is;
    return cublasLtMatmulAlgoCheck(g->backend->blas, g->description, g->w, p->x, p->y, p->y, algorithm, &is) == CUBLAS_STATUS_SUCCESS &&
           is.state == CUBLAS_STATUS_SUCCESS && is.workspaceSize <= WORKSPACE_BYTES;
}

// ---- timing -----------------------------------------------------------------------------------------------------

/* The weights of the layers that have this shape. */
struct likes {
    const void *at[MOST_WEIGHTS];
    int n;
};

static struct likes likes_of(const struct gemm *g) {
    struct likes l = {.n = 0};
    const struct backend *b = g->backend;
    for (int i = 0; i < b->n_slots && l.n < MOST_WEIGHTS; i++) {
        const struct dweight *m = &b->placed[i].matrix;
        if (m->at && m->out == g->weight.out && m->in == g->weight.in && m->element == g->weight.element)
            l.at[l.n++] = m->at;
    }
    return l;
}

/* A step is not running yet, so its values can be overwritten: zeros would be multiplied with less power, and so faster. */
static void fill_input(const struct gemm *g, int rows) {
    struct ddummy random = {.key = 1, .deviation = 1};
    int64_t n = (int64_t)(rows - 1) * g->x.stride + g->x.width;
    bool e4m3 = g->x.element == ELEMENT_E4M3; // two to a number of 16 bits
    launch_fill_dummy(g->backend->stream, &random, 0, e4m3 ? n / 2 : n, g->x.at, e4m3 ? ELEMENT_F16 : g->x.element);
}

/* So often that a graph takes some 200 us: the microseconds that the bytes or the arithmetic need at least. */
static int repetitions(const struct gemm *g, int rows) {
    double elements = (double)g->weight.out * (double)g->weight.in;
    double least_us = MAX(elements * (double)element_bytes(g->weight.element) / 4.6e6, 2 * elements * rows / 1e9);
    return (int)MIN(MAX(200 / least_us, 2), MOST_WEIGHTS);
}

/* In microseconds; a negative number if it cannot be put into a graph. */
static double time_one(const struct gemm *g, const struct plan_of_rows *p, const cublasLtMatmulAlgo_t *algorithm,
                       const struct likes *likes) {
    cudaStream_t stream = g->backend->stream;
    int n = repetitions(g, p->rows);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    if (cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess)
        return -1;
    bool is_put = true;
    for (int i = 0; is_put && i < n; i++)
        is_put = gemm_put(g, p, algorithm, likes->at[i % likes->n], g->x.at, g->y.at) == CUBLAS_STATUS_SUCCESS;
    cudaError_t code = cudaStreamEndCapture(stream, &graph);
    if (code != cudaSuccess || !is_put)
        return cudaGetLastError(), -1;
    code = cudaGraphInstantiate(&exec, graph, 0);
    cudaGraphDestroy(graph);
    if (code != cudaSuccess)
        return cudaGetLastError(), -1;
    float best = -1, ms;
    for (int run = 0; run < 3 && code == cudaSuccess; run++) { // the first loads the kernel
        cudaEventRecord(g->backend->begun, stream);
        cudaGraphLaunch(exec, stream);
        cudaEventRecord(g->backend->ended, stream);
        code = cudaEventSynchronize(g->backend->ended);
        if (code == cudaSuccess)
            code = cudaEventElapsedTime(&ms, g->backend->begun, g->backend->ended);
        if (code == cudaSuccess && run > 0 && (best < 0 || ms < best))
            best = ms;
    }
    cudaGraphExecDestroy(exec);
    return best < 0 ? -1 : (double)best * 1e3 / n;
}

static void keep(const struct gemm *g, struct plan_of_rows *p, const cublasLtMatmulAlgo_t *algorithm, double us) {
    struct plan_key key = key_of(g, p->rows);
    struct plan_choice choice = {.path = (int32_t)gemm_library(g), .us = us, .is_checked = true};
    memcpy(choice.algorithm, algorithm, sizeof *algorithm);
    p->algorithm = *algorithm;
    plan_cache_add(g->backend->plans, &key, &choice);
}

static enum status choose_by_time(const struct gemm *g, struct plan_of_rows *p, struct error *err) {
    struct proposals proposals;
    struct likes likes = likes_of(g);
    double best_us = -1;
    int best = -1;
    TRY(ask_library(g, p, p->rows > LARGE_ROWS || p->rows <= SMALL_ROWS ? HALF : MOST_CANDIDATES, &proposals, err));
    fill_input(g, p->rows);
    for (int i = 0; i < proposals.n; i++) {
        double us = time_one(g, p, &proposals.at[i].algo, &likes);
        if (us >= 0 && (best < 0 || us < best_us)) {
            best = i;
            best_us = us;
        }
    }
    DEVICE_TRY(g->backend, err, cudaStreamSynchronize(g->backend->stream), "%s: timing products of %d rows", g->op->weights[0]->name,
               p->rows);
    if (best < 0)
        return gemm_refused(g->op, p->rows, CUBLAS_STATUS_EXECUTION_FAILED, err);
    keep(g, p, &proposals.at[best].algo, MAX(best_us, 0.01));
    return OK;
}

// ---- choosing ---------------------------------------------------------------------------------------------------

bool gemm_is_worth_timing(const struct gemm *g) { return g->weight.out * g->weight.in * element_bytes(g->weight.element) >= WORTH_TIMING; }

/* From what was found before; false if it was not, or the library does not know it. */
static bool recall(const struct gemm *g, struct plan_of_rows *p) {
    struct plan_key key = key_of(g, p->rows);
    struct plan_choice *found = plan_cache_find(g->backend->plans, &key);
    if (!found || found->path != (int32_t)gemm_library(g))
        return false;
    memcpy(&p->algorithm, found->algorithm, sizeof p->algorithm);
    found->is_checked = found->is_checked || can_compute(g, p, &p->algorithm);
    return found->is_checked;
}

static enum status choose_like(const struct gemm *g, struct plan_of_rows *p, const struct plan_of_rows *above, struct error *err) {
    struct proposals first;
    if (above && can_compute(g, p, &above->algorithm)) {
        keep(g, p, &above->algorithm, 0);
        return OK;
    }
    TRY(ask_library(g, p, 1, &first, err));
    keep(g, p, &first.at[0].algo, 0);
    return OK;
}

enum status gemm_plan(struct gemm *g, struct error *err) {
    const struct plan_of_rows *timed = NULL;
    for (int i = g->n_plans - 1; i >= 0; i--) {
        struct plan_of_rows *p = &g->plans[i];
        bool is_timed = gemm_is_worth_timing(g) && (i == g->n_plans - 1 || (p->rows & (p->rows - 1)) == 0);
        if (!recall(g, p))
            TRY(is_timed ? choose_by_time(g, p, err) : choose_like(g, p, timed, err));
        timed = is_timed ? p : timed;
    }
    return OK;
}
