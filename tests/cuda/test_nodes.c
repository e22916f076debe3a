/* test_nodes.c - what the graph of a step holds, by name: a node costs about a microsecond even if it does nothing, so
 * a dense layer may have seven. Needs a GPU; run where tests/models is. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/device/device.h"
#include "backend/cuda/step/launch.h"
#include "backend/cuda/value.h"
#include "check.h"
#include "model/model.h"
#include "on_device.h"

#include <cuda.h>
#include <stdio.h>
#include <string.h>

extern const struct backend_ops backend_cuda;

enum { MAX_NODES = 4096, ROWS = 1 };

struct listed {
    char name[100];
    int n;
};

struct listing {
    struct listed names[64];
    int n_names, n_nodes, n_products, n_early; // early: edges that let the later node start early
};

static void *driver(const char *function) {
    void *at = NULL;
    enum cudaDriverEntryPointQueryResult found;
    EXPECT_EQ(cudaGetDriverEntryPointByVersion(function, &at, CUDART_VERSION, cudaEnableDefault, &found), cudaSuccess);
    EXPECT(at != NULL);
    return at;
}

static void name_of(cudaGraphNode_t node, char *out, size_t n_bytes) {
    CUresult (*get_params)(CUgraphNode, CUDA_KERNEL_NODE_PARAMS *) = NULL;
    CUresult (*get_name)(const char **, CUfunction) = NULL, (*get_kernel_name)(const char **, CUkernel) = NULL;
    *(void **)&get_params = driver("cuGraphKernelNodeGetParams");
    *(void **)&get_name = driver("cuFuncGetName");
    *(void **)&get_kernel_name = driver("cuKernelGetName");
    enum cudaGraphNodeType type;
    CUDA_KERNEL_NODE_PARAMS params;
    const char *name = NULL;
    EXPECT_EQ(cudaGraphNodeGetType(node, &type), cudaSuccess);
    if (type != cudaGraphNodeTypeKernel) {
        snprintf(out, n_bytes, "no kernel, but a node of type %d", (int)type);
        return;
    }
    EXPECT_EQ(get_params(node, &params), CUDA_SUCCESS);
    EXPECT_EQ(params.func ? get_name(&name, params.func) : get_kernel_name(&name, params.kern), CUDA_SUCCESS);
    snprintf(out, n_bytes, "%s", name);
}

static bool is_product(const char *name) {
    static const char *const words[] = {"gemm", "gemv", "splitK", "cutlass", "cublas", "nvjet", "stream"};
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        if (strstr(name, words[i]))
            return true;
    return false;
}

static void list_node(struct listing *l, const char *name) {
    int i = 0;
    while (i < l->n_names && strcmp(l->names[i].name, name) != 0)
        i++;
    EXPECT(i < (int)ARRAY_LEN(l->names));
    if (i == l->n_names)
        snprintf(l->names[l->n_names++].name, sizeof l->names[i].name, "%s", name);
    l->names[i].n++;
    l->n_nodes++;
    l->n_products += is_product(name);
}

static void list_graph(cudaGraph_t graph, struct listing *l) {
    static cudaGraphNode_t nodes[MAX_NODES], from[MAX_NODES], to[MAX_NODES];
    static cudaGraphEdgeData edges[MAX_NODES];
    size_t n = MAX_NODES;
    EXPECT_EQ(cudaGraphGetNodes(graph, nodes, &n), cudaSuccess);
    *l = (struct listing){0};
    for (size_t i = 0; i < n; i++) {
        char name[100];
        name_of(nodes[i], name, sizeof name);
        list_node(l, name);
    }
    n = MAX_NODES;
    EXPECT_EQ(cudaGraphGetEdges(graph, from, to, edges, &n), cudaSuccess);
    for (size_t i = 0; i < n; i++)
        l->n_early += edges[i].type == cudaGraphDependencyTypeProgrammatic;
}

/* The ops of a step in which one sequence decodes, as they are captured. */
static void list_step(const char *folder, struct listing *l, int *n_layers) {
    struct model *m;
    struct on_device at;
    struct error err;
    EXPECT_OK(model_open(folder, &(struct model_options){0}, &m, &err), err);
    struct cache_config config = {.block_size = 16, .n_states = 2};
    for (int g = 0; g < m->program->n_groups; g++) {
        config.n_blocks[g] = 64;
        config.table_width[g] = 2;
    }
    struct bucket bucket = {64, 32, 32, 0};
    on_device_compile(&backend_cuda, (struct how){.load.dtype = "float16"}, m->program, &config, bucket, &at);
    struct launch launch = {at.device->stream, ROWS, ROWS, ROWS, at.exe->plan_view, at.loaded->block_size, true};
    cudaGraph_t graph;
    EXPECT_EQ(cudaStreamBeginCapture(at.device->stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_OK(step_launch(at.exe, &launch, &err), err);
    EXPECT_EQ(cudaStreamEndCapture(at.device->stream, &graph), cudaSuccess);
    list_graph(graph, l);
    *n_layers = m->spec->n_layers;
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    on_device_close(&at);
    model_free(m);
}

/* Beside products: two ADD_NORMs, QKV_PREP, two nodes of attention, GATED_ACT; at the ends EMBED, the last norm, two
 * nodes that draw. */
static void a_dense_layer_has_six_nodes_beside_its_products(void **state) {
    (void)state;
    static const char *const folders[] = {"qwen2", "qwen3", "llama", "mistral", "gemma2", "gemma3", "gemma4"};
    for (size_t i = 0; i < ARRAY_LEN(folders); i++) {
        if (test_is_brief() && (i + test_seed()) % 2)
            continue;
        char folder[80];
        struct listing l;
        int n_layers;
        snprintf(folder, sizeof folder, "tests/models/%s", folders[i]);
        list_step(folder, &l, &n_layers);
        print_message("%s: %d layers, %d nodes, %d of products, %d edges early\n", folders[i], n_layers, l.n_nodes,
                      l.n_products, l.n_early);
        for (int k = 0; k < l.n_names; k++)
            print_message("    %3d  %s\n", l.names[k].n, l.names[k].name);
        int capped = strcmp(folders[i], "gemma2") == 0; // SOFTCAP of the logits
        EXPECT(l.n_nodes - l.n_products <= 6 * n_layers + 4 + capped);
        EXPECT(l.n_early >= 2 * n_layers);
    }
}

/* SHORT_CONV, DELTA_RULE and the gated NORM are one node: with two ADD_NORMs and a GATED_ACT four to a layer. The layer
 * of attention has one more than others, its gate. */
static void a_delta_layer_has_four_nodes_beside_its_products(void **state) {
    (void)state;
    struct listing l;
    int n_layers, n_delta = 0, n_plain = 0;
    list_step("tests/models/qwen3_5", &l, &n_layers);
    for (int k = 0; k < l.n_names; k++) {
        print_message("    %3d  %s\n", l.names[k].n, l.names[k].name);
        n_delta += strstr(l.names[k].name, "delta_decode") ? l.names[k].n : 0;
        n_plain += strstr(l.names[k].name, "delta_rule") || strstr(l.names[k].name, "short_conv");
    }
    EXPECT_EQ(n_delta, 3);
    EXPECT_EQ(n_plain, 0);
    EXPECT(l.n_nodes - l.n_products <= 4 * 3 + 7 + 4);
}

int main(int argc, char **argv) {
    if (argc > 1) {
        struct listing l;
        int n_layers;
        list_step(argv[1], &l, &n_layers);
        printf("%s: %d nodes\n", argv[1], l.n_nodes);
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_dense_layer_has_six_nodes_beside_its_products),
        cmocka_unit_test(a_delta_layer_has_four_nodes_beside_its_products),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
