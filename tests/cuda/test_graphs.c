/* test_graphs.c - zeros that are gathered into one node of a captured graph: every reader finds them, in every replay,
 * and whatever else the graph writes stays.
 *
 *     build/cuda/test_graphs        wants a GPU */
#include "backend/cuda/device/device.h"
#include "backend/cuda/step/launch.h"
#include "backend/cuda/value.h"
#include "check.h"

#include "backend/cuda/cuda.h"
#include "backend/cuda/step/graph_fills.h"
#include "base/random.h"

#include <stdlib.h>
#include <string.h>

enum { PLACES = 6, BYTES = PLACES * COUNTER_BYTES };

struct rig {
    cudaStream_t stream;
    char *counters, *out, *beside; // out: [PLACES], a byte each
};

static void rig_open(struct rig *r) {
    EXPECT_EQ(cudaStreamCreate(&r->stream), cudaSuccess);
    EXPECT_EQ(cudaMalloc((void **)&r->counters, BYTES), cudaSuccess);
    EXPECT_EQ(cudaMalloc((void **)&r->out, PLACES), cudaSuccess);
    EXPECT_EQ(cudaMalloc((void **)&r->beside, COUNTER_BYTES), cudaSuccess);
}

static void rig_close(struct rig *r) {
    cudaFree(r->counters);
    cudaFree(r->out);
    cudaFree(r->beside);
    cudaStreamDestroy(r->stream);
}

static void fill(struct rig *r, char *at, int value) {
    EXPECT_EQ(cudaMemsetAsync(at, value, 4, r->stream), cudaSuccess);
}

/* out[i] = what counter i has then; it is used up by that. */
static void use(struct rig *r, int i) {
    EXPECT_EQ(cudaMemcpyAsync(r->out + i, r->counters + i * COUNTER_BYTES, 1, cudaMemcpyDeviceToDevice, r->stream),
              cudaSuccess);
    EXPECT_EQ(cudaMemcpyAsync(r->counters + i * COUNTER_BYTES, r->beside + 8, 4, cudaMemcpyDeviceToDevice, r->stream),
              cudaSuccess);
}

static int n_fills(cudaGraph_t graph) {
    cudaGraphNode_t nodes[64];
    enum cudaGraphNodeType type;
    size_t n = ARRAY_LEN(nodes);
    int fills = 0;
    EXPECT_EQ(cudaGraphGetNodes(graph, nodes, &n), cudaSuccess);
    for (size_t i = 0; i < n; i++) {
        EXPECT_EQ(cudaGraphNodeGetType(nodes[i], &type), cudaSuccess);
        fills += type == cudaGraphNodeTypeMemset;
    }
    return fills;
}

/* Replays it from counters that are not zero. */
static void replay(struct rig *r, cudaGraph_t graph, unsigned char *out, unsigned char *beside) {
    cudaGraphExec_t exec;
    EXPECT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    EXPECT_EQ(cudaMemsetAsync(r->counters, 0xee, BYTES, r->stream), cudaSuccess);
    EXPECT_EQ(cudaMemsetAsync(r->beside, 0x77, COUNTER_BYTES, r->stream), cudaSuccess);
    for (int i = 0; i < 3; i++) {
        EXPECT_EQ(cudaMemsetAsync(r->out, 0xcc, PLACES, r->stream), cudaSuccess);
        EXPECT_EQ(cudaGraphLaunch(exec, r->stream), cudaSuccess);
        EXPECT_EQ(cudaStreamSynchronize(r->stream), cudaSuccess);
        EXPECT_EQ(cudaMemcpy(out, r->out, PLACES, cudaMemcpyDeviceToHost), cudaSuccess);
        EXPECT_EQ(cudaMemcpy(beside, r->beside, 1, cudaMemcpyDeviceToHost), cudaSuccess);
    }
    cudaGraphExecDestroy(exec);
}

static void capture(struct rig *r, bool begins_with_zeros, cudaGraph_t *graph) {
    EXPECT_EQ(cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    if (!begins_with_zeros)
        fill(r, r->beside, 9); // not among the counters
    for (int i = 0; i < PLACES; i++) {
        if (i % 2 == 0) // one behind the other
            fill(r, r->counters + i * COUNTER_BYTES, 0);
        fill(r, r->counters + i * COUNTER_BYTES, i == 3 ? 5 : 0); // 5 is not zero
        use(r, i);
    }
    EXPECT_EQ(cudaStreamEndCapture(r->stream, graph), cudaSuccess);
}

static void gathered_zeros_are_found_in_every_replay_and_nothing_else_changes(void **state) {
    (void)state;
    struct rig r;
    rig_open(&r);
    for (int begins = 0; begins < 2; begins++) {
        unsigned char out[PLACES], beside;
        cudaGraph_t graph;
        capture(&r, begins, &graph);
        EXPECT_EQ(n_fills(graph), PLACES + PLACES / 2 + !begins);
        EXPECT_EQ(graph_gather_fills(graph, r.counters, BYTES), cudaSuccess);
        EXPECT_EQ(n_fills(graph), 2 + !begins); // the one for all, the 5, and what is beside
        replay(&r, graph, out, &beside);
        for (int i = 0; i < PLACES; i++)
            EXPECT_EQ(out[i], i == 3 ? 5 : 0);
        EXPECT_EQ(beside, begins ? 0x77 : 9);
        cudaGraphDestroy(graph);
    }
    rig_close(&r);
}

static void a_graph_without_zeros_there_stays_as_it_is(void **state) {
    (void)state;
    struct rig r;
    rig_open(&r);
    cudaGraph_t graph;
    size_t before = 0, after = 0;
    EXPECT_EQ(cudaStreamBeginCapture(r.stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    fill(&r, r.beside, 0);
    use(&r, 0);
    EXPECT_EQ(cudaStreamEndCapture(r.stream, &graph), cudaSuccess);
    EXPECT_EQ(cudaGraphGetNodes(graph, NULL, &before), cudaSuccess);
    EXPECT_EQ(graph_gather_fills(graph, r.counters, BYTES), cudaSuccess);
    EXPECT_EQ(cudaGraphGetNodes(graph, NULL, &after), cudaSuccess);
    EXPECT_EQ(before, after);
    cudaGraphDestroy(graph);
    rig_close(&r);
}

// ---- the library's counters ------------------------------------------------------------------------------------

enum { OUT = 37888, IN = 3584, ROWS = 256, NODES = 4, PERIOD = 1000003 };

struct product {
    cublasLtHandle_t blas;
    cublasLtMatmulDesc_t description;
    cublasLtMatrixLayout_t w, x, y;
    cublasLtMatmulAlgo_t algorithm;
    char *weight, *in;
    uint16_t *out[NODES];
};

static char *random_bytes(size_t n) {
    char *host = xmalloc(n), *device = NULL;
    for (size_t i = 0; i < n; i++) // e4m3 from 2^-4 to 2 of either sign
        host[i] = i < PERIOD ? (char)((philox4x32(test_seed(), i, 0).v[0] & 0x9f) | 0x20) : host[i - PERIOD];
    EXPECT_EQ(cudaMalloc((void **)&device, n), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(device, host, n, cudaMemcpyHostToDevice), cudaSuccess);
    free(host);
    return device;
}

/* With an algorithm whose workspace is a counter. */
static void product_open(struct product *p) {
    cublasLtMatmulHeuristicResult_t found[16];
    cublasLtMatmulPreference_t wish;
    cublasOperation_t turned = CUBLAS_OP_T;
    int8_t fast = 1;
    int n = 0, k = 0;
    EXPECT_EQ(cublasLtCreate(&p->blas), CUBLAS_STATUS_SUCCESS);
    cublasLtMatmulDescCreate(&p->description, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatmulDescSetAttribute(p->description, CUBLASLT_MATMUL_DESC_TRANSA, &turned, sizeof turned);
    cublasLtMatmulDescSetAttribute(p->description, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast);
    cublasLtMatrixLayoutCreate(&p->w, CUDA_R_8F_E4M3, IN, OUT, IN);
    cublasLtMatrixLayoutCreate(&p->x, CUDA_R_8F_E4M3, IN, ROWS, IN);
    cublasLtMatrixLayoutCreate(&p->y, CUDA_R_16F, OUT, ROWS, OUT);
    cublasLtMatmulPreferenceCreate(&wish);
    size_t most = COUNTER_BYTES;
    cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, sizeof most);
    EXPECT_EQ(cublasLtMatmulAlgoGetHeuristic(p->blas, p->description, p->w, p->x, p->y, p->y, wish, 16, found, &n),
              CUBLAS_STATUS_SUCCESS);
    cublasLtMatmulPreferenceDestroy(wish);
    while (k < n && found[k].workspaceSize == 0)
        k++;
    if (k == n)
        fail_msg("the library has no algorithm with a counter for %d rows with [%d, %d]", ROWS, OUT, IN);
    p->algorithm = found[k].algo;
    p->weight = random_bytes((size_t)OUT * IN);
    p->in = random_bytes((size_t)ROWS * IN);
    for (int i = 0; i < NODES; i++)
        EXPECT_EQ(cudaMalloc((void **)&p->out[i], (size_t)OUT * ROWS * 2), cudaSuccess);
}

static void product_close(struct product *p) {
    cublasLtMatmulDescDestroy(p->description);
    cublasLtMatrixLayoutDestroy(p->w);
    cublasLtMatrixLayoutDestroy(p->x);
    cublasLtMatrixLayoutDestroy(p->y);
    cublasLtDestroy(p->blas);
    cudaFree(p->weight);
    cudaFree(p->in);
    for (int i = 0; i < NODES; i++)
        cudaFree(p->out[i]);
}

static void put_products(struct rig *r, struct product *p) {
    const float factor = 1 / 1024.0f, zero = 0;
    for (int i = 0; i < NODES; i++)
        EXPECT_EQ(cublasLtMatmul(p->blas, p->description, &factor, p->weight, p->w, p->in, p->x, &zero, p->out[i], p->y,
                                 p->out[i], p->y, &p->algorithm, r->counters + i * COUNTER_BYTES, COUNTER_BYTES,
                                 r->stream),
                  CUBLAS_STATUS_SUCCESS);
}

static void products_by_gathered_counters_are_the_librarys_in_every_replay(void **state) {
    (void)state;
    static uint16_t alone[OUT * ROWS], captured[OUT * ROWS];
    struct rig r;
    struct product p = {0};
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    rig_open(&r);
    product_open(&p);
    put_products(&r, &p);
    EXPECT_EQ(cudaStreamSynchronize(r.stream), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(alone, p.out[0], sizeof alone, cudaMemcpyDeviceToHost), cudaSuccess);
    EXPECT_EQ(cudaStreamBeginCapture(r.stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    put_products(&r, &p);
    EXPECT_EQ(cudaStreamEndCapture(r.stream, &graph), cudaSuccess);
    EXPECT_EQ(n_fills(graph), NODES);
    EXPECT_EQ(graph_gather_fills(graph, r.counters, BYTES), cudaSuccess);
    EXPECT_EQ(n_fills(graph), 1);
    EXPECT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    for (int replay = 0; replay < (test_is_brief() ? 2 : 3); replay++) {
        for (int i = 0; i < NODES; i++)
            EXPECT_EQ(cudaMemsetAsync(p.out[i], 0xff, sizeof captured, r.stream), cudaSuccess);
        EXPECT_EQ(cudaGraphLaunch(exec, r.stream), cudaSuccess);
        EXPECT_EQ(cudaStreamSynchronize(r.stream), cudaSuccess);
        for (int i = 0; i < NODES; i++) {
            EXPECT_EQ(cudaMemcpy(captured, p.out[i], sizeof captured, cudaMemcpyDeviceToHost), cudaSuccess);
            EXPECT(memcmp(alone, captured, sizeof captured) == 0);
        }
    }
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    product_close(&p);
    rig_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gathered_zeros_are_found_in_every_replay_and_nothing_else_changes),
        cmocka_unit_test(products_by_gathered_counters_are_the_librarys_in_every_replay),
        cmocka_unit_test(a_graph_without_zeros_there_stays_as_it_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
