/* gemm_time.c - what the library proposes for a product, and how long one of its algorithms takes; see gemm_internal.h.
 */
#include "backend/cuda/device/device.h"
#include "backend/cuda/linear/gemm_internal.h"
#include "backend/cuda/step/graph_fills.h"
#include "backend/cuda/step/launch.h"
#include "backend/cuda/value.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_ROUNDS = 8 };

// ---- proposals --------------------------------------------------------------------------------------------------

int gemm_alignment(const void *at) { return (int)MIN((uintptr_t)at & -(uintptr_t)at, 256); }

/* What an algorithm may take, and how operands lie: a value may be a run of columns of another, less well than the
 * library takes for granted. */
static cublasStatus_t describe(cublasLtMatmulPreference_t wish, const struct gemm *g, uint64_t workspace_bytes) {
    uint32_t of_x = (uint32_t)gemm_alignment(g->x.at), of_y = (uint32_t)gemm_alignment(g->y.at);
    const struct {
        cublasLtMatmulPreferenceAttributes_t what;
        const void *value;
        size_t n_bytes;
    } all[] = {{CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes, sizeof workspace_bytes},
               {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &of_x, sizeof of_x},
               {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &of_y, sizeof of_y},
               {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &of_y, sizeof of_y}};
    cublasStatus_t code = CUBLAS_STATUS_SUCCESS;
    for (size_t i = 0; code == CUBLAS_STATUS_SUCCESS && i < ARRAY_LEN(all); i++)
        code = cublasLtMatmulPreferenceSetAttribute(wish, all[i].what, all[i].value, all[i].n_bytes);
    return code;
}

static bool has(const struct proposals *p, const cublasLtMatmulAlgo_t *words) {
    for (int i = 0; i < p->n; i++)
        if (memcmp(&p->at[i].words, words, sizeof *words) == 0)
            return true;
    return false;
}

static cublasStatus_t ask(const struct gemm *g, const struct plan_of_rows *p, size_t workspace_bytes, int most,
                          struct proposals *out) {
    cublasLtMatmulHeuristicResult_t found[MOST_PROPOSALS / 2];
    cublasLtMatmulPreference_t wish;
    int n = 0;
    if (cublasLtMatmulPreferenceCreate(&wish) != CUBLAS_STATUS_SUCCESS)
        return CUBLAS_STATUS_ALLOC_FAILED;
    cublasStatus_t code = describe(wish, g, workspace_bytes);
    if (code == CUBLAS_STATUS_SUCCESS)
        code = cublasLtMatmulAlgoGetHeuristic(g->loaded->device->blas, g->description, g->w, p->x, p->y, p->y, wish,
                                              MIN(most, MOST_PROPOSALS / 2), found, &n);
    cublasLtMatmulPreferenceDestroy(wish);
    for (int i = 0; code == CUBLAS_STATUS_SUCCESS && i < n; i++)
        if (!has(out, &found[i].algo))
            out->at[out->n++] = (struct algorithm){found[i].algo, found[i].workspaceSize};
    return code;
}

enum status gemm_proposals(const struct gemm *g, const struct plan_of_rows *p, int most, struct proposals *out,
                           struct error *err) {
    out->n = 0;
    cublasStatus_t code = ask(g, p, WORKSPACE_BYTES, most, out);
    if (code != CUBLAS_STATUS_SUCCESS || out->n == 0)
        return gemm_refused(g->op, p->rows, code == CUBLAS_STATUS_SUCCESS ? CUBLAS_STATUS_NOT_SUPPORTED : code, err);
    return OK;
}

void gemm_add_proposals(const struct gemm *g, const struct plan_of_rows *p, int most, struct proposals *out) {
    ask(g, p, 0, most, out);
}

// ---- timing -----------------------------------------------------------------------------------------------------

/* A workspace for each node, so that counters can be zeroed in one, which algorithms without them get too. */
static bool put_nodes(const struct gemm *g, const struct plan_of_rows *p, const struct algorithm *a,
                      const struct same_shape *same_shape, int n) {
    char *workspace = g->loaded->device->workspace;
    if (cudaMemsetAsync(workspace, 0, (size_t)n * COUNTER_BYTES, g->loaded->device->stream) != cudaSuccess)
        return false;
    for (int i = 0; i < n; i++) {
        size_t offset = a->workspace_bytes <= COUNTER_BYTES ? (size_t)i * COUNTER_BYTES : 0;
        struct operands o = {same_shape->at[i % same_shape->n], g->x.at, g->y.at, workspace + offset};
        if (gemm_put(g, p, a, o) != CUBLAS_STATUS_SUCCESS)
            return false;
    }
    return true;
}

/* *exec stays NULL where the library cannot, which is no fault. */
static cudaError_t capture(const struct gemm *g, const struct plan_of_rows *p, const struct algorithm *a,
                           const struct same_shape *same_shape, int n, cudaGraphExec_t *exec) {
    struct loaded *loaded = g->loaded;
    cudaGraph_t graph;
    *exec = NULL;
    cudaError_t code = cudaStreamBeginCapture(loaded->device->stream, cudaStreamCaptureModeThreadLocal);
    if (code != cudaSuccess)
        return code;
    bool works = put_nodes(g, p, a, same_shape, n);
    code = cudaStreamEndCapture(loaded->device->stream, &graph);
    if (code != cudaSuccess)
        return works ? code : cudaSuccess;
    if (works && a->workspace_bytes <= COUNTER_BYTES)
        code = graph_gather_fills(graph, loaded->device->workspace, (size_t)n * COUNTER_BYTES);
    if (works && code == cudaSuccess)
        code = cudaGraphInstantiate(exec, graph, 0);
    if (code != cudaSuccess)
        *exec = NULL;
    cudaGraphDestroy(graph);
    return code;
}

static int by_value(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* A graph that did not start must not count as one that took no time. */
static cudaError_t replay(struct loaded *loaded, cudaGraphExec_t exec, float *ms) {
    cudaError_t code = cudaEventRecord(loaded->device->begun, loaded->device->stream);
    if (code == cudaSuccess)
        code = cudaGraphLaunch(exec, loaded->device->stream);
    if (code == cudaSuccess)
        code = cudaEventRecord(loaded->device->ended, loaded->device->stream);
    if (code == cudaSuccess)
        code = cudaEventSynchronize(loaded->device->ended);
    return code == cudaSuccess ? cudaEventElapsedTime(ms, loaded->device->begun, loaded->device->ended) : code;
}

struct runner {
    cudaGraphExec_t exec; // NULL: the library cannot, or it is too slow
    float ms[MOST_ROUNDS];
};

/* One replay of each. Those that are slow do not go on, so that the rest meet each other at the clock that they would
 * run at. Returns the last fault. */
static cudaError_t run_round(struct loaded *loaded, struct runner *runners, int n, int round) {
    cudaError_t fault = cudaSuccess;
    float best = 0;
    for (int i = 0; i < n; i++) {
        cudaError_t code = runners[i].exec ? replay(loaded, runners[i].exec, &runners[i].ms[round]) : cudaSuccess;
        if (code != cudaSuccess) {
            fault = code;
            cudaGraphExecDestroy(runners[i].exec);
            runners[i].exec = NULL;
        }
        if (runners[i].exec && (best == 0 || runners[i].ms[round] < best))
            best = runners[i].ms[round];
    }
    for (int i = 0; i < n && round > 0; i++) // the first round loads the kernels
        if (runners[i].exec && runners[i].ms[round] > best * 1.2f) {
            cudaGraphExecDestroy(runners[i].exec);
            runners[i].exec = NULL;
        }
    return fault;
}

cudaError_t gemm_race(const struct gemm *g, const struct plan_of_rows *p, const struct proposals *proposals,
                      const struct same_shape *same_shape, int n, int rounds, double *us) {
    struct runner *runners = xcalloc((size_t)proposals->n, sizeof *runners);
    BUG_IF(n > WORKSPACE_BYTES / COUNTER_BYTES || rounds < 2 || rounds > MOST_ROUNDS);
    cudaError_t fault = cudaSuccess;
    int n_timed = 0;
    for (int i = 0; i < proposals->n; i++) {
        cudaError_t code = capture(g, p, &proposals->at[i], same_shape, n, &runners[i].exec);
        fault = code == cudaSuccess ? fault : code;
    }
    for (int round = 0; round < rounds; round++) {
        cudaError_t code = run_round(g->loaded, runners, proposals->n, round);
        fault = code == cudaSuccess ? fault : code;
    }
    for (int i = 0; i < proposals->n; i++) {
        us[i] = -1;
        if (!runners[i].exec)
            continue;
        n_timed++;
        cudaGraphExecDestroy(runners[i].exec);
        qsort(runners[i].ms + 1, (size_t)rounds - 1, sizeof *runners[i].ms, by_value);
        us[i] = (double)runners[i].ms[1 + (rounds - 2) / 2] * 1e3 / n;
    }
    free(runners);
    cudaGetLastError(); // of what the library could not do
    return n_timed > 0 ? cudaSuccess : fault;
}
