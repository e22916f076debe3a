/* products.cuh - what the programs that time products share: the linears of some models, operands in memory, weights
 * that rotate past the L2, and the library's fastest algorithm.
 *
 * Operands are random: zeros take less power and run faster. Their bytes are e4m3 of sizes 2^-5 .. 2, and as halves of
 * 2^-11 .. 2. */
#pragma once

#include "backend/cuda/value.h"
#include "graph_time.cuh"

#include <cublasLt.h>
#include <string>
#include <utility>

static const double PEAK = 4.6e12; // bytes a second that an H200 reads
static const size_t POOL = 3ull << 30, WORKSPACE = 64 << 20;
enum { MAX_ROWS = 2048, MAX_IN = 32768, MAX_WIDTH = 262144, MAX_OUTPUT = MAX_ROWS * 65536 };

struct shape {
    const char *name;
    int64_t out, in;
    bool gated = false;
    element weight = ELEMENT_E4M3;
    size_t bytes() const { return (size_t)out * in * (weight == ELEMENT_E4M3 ? 1 : 2); }
    int width() const { return (int)(gated ? out / 2 : out); }
};
struct model {
    const char *name;
    int n_layers;
    std::vector<shape> layer; // qkv, o, gate_up, down
    shape head;
    double layer_bytes() const {
        double bytes = 0;
        for (const shape &s : layer)
            bytes += (double)s.bytes();
        return bytes;
    }
};
static const std::vector<model> MODELS = {
    {"Qwen2.5-7B",
     28,
     {{"qkv", 4608, 3584}, {"o", 3584, 3584}, {"gate_up", 37888, 3584, true}, {"down", 3584, 18944}},
     {"head", 152064, 3584, false, ELEMENT_F16}},
    {"Llama-3.1-8B",
     32,
     {{"qkv", 6144, 4096}, {"o", 4096, 4096}, {"gate_up", 28672, 4096, true}, {"down", 4096, 14336}},
     {"head", 128256, 4096, false, ELEMENT_F16}},
    {"Gemma-4-31B",
     60,
     {{"qkv", 16384, 5376}, {"o", 5376, 8192}, {"gate_up", 43008, 5376, true}, {"down", 5376, 21504}},
     {"head", 262144, 5376}},
};

/* The same linears in 16 bits. */
inline model in_16_bits(model m) {
    for (shape &s : m.layer)
        s.weight = ELEMENT_F16;
    m.head.weight = ELEMENT_F16;
    return m;
}

// ---- operands -------------------------------------------------------------------------------------------------------

static cudaStream_t stream;
static unsigned char *pool, *inputs;
static float *ones; // scales of all rows
static void *y, *workspace;
static cublasLtHandle_t blas;

static __global__ void fill(unsigned *at, size_t n, uint64_t seed) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        uint64_t v = (i + seed * 0x100000000u) * 0x9e3779b97f4a7c15u;
        v = (v ^ v >> 30) * 0xbf58476d1ce4e5b9u;
        v = (v ^ v >> 27) * 0x94d049bb133111ebu;
        at[i] = ((unsigned)(v >> 32) & 0xbfbfbfbfu) | 0x10101010u;
    }
}

static void open_operands() {
    TRY(cudaStreamCreate(&stream));
    TRY(cudaMalloc(&pool, POOL));
    TRY(cudaMalloc(&inputs, (size_t)MAX_ROWS * MAX_IN * 2));
    TRY(cudaMalloc(&y, (size_t)MAX_OUTPUT * 4));
    TRY(cudaMalloc(&ones, MAX_WIDTH * 4));
    TRY(cudaMalloc(&workspace, WORKSPACE));
    fill<<<1024, 256>>>((unsigned *)pool, POOL / 4, 1);
    fill<<<1024, 256>>>((unsigned *)inputs, (size_t)MAX_ROWS * MAX_IN / 2, 2);
    std::vector<float> scale(MAX_WIDTH, 0.01f);
    TRY(cudaMemcpy(ones, scale.data(), MAX_WIDTH * 4, cudaMemcpyHostToDevice));
    TRY(cudaDeviceSynchronize());
    if (cublasLtCreate(&blas) != CUBLAS_STATUS_SUCCESS)
        exit(1);
}

static unsigned char *next_weight(const shape &s) {
    static size_t where;
    if (where + s.bytes() > POOL)
        where = 0;
    unsigned char *at = pool + where;
    where += s.bytes();
    return at;
}
static dweight weight_of(const shape &s) {
    return {next_weight(s), s.out, s.in, s.weight, s.weight == ELEMENT_E4M3 ? ones : nullptr};
}

/* So many launches behind one another that none finds its weight in the L2. */
static int launches_of(const shape &s) { return (int)std::clamp<int64_t>(600000000 / (int64_t)s.bytes(), 10, 48); }
static bool put_launches(const shape &s, const std::function<bool()> &put) {
    for (int i = 0; i < launches_of(s); i++)
        if (!put())
            return false;
    return true;
}
/* Of one of them: alone, and after half a second of them. */
static double time_launches(const shape &s, int n_runs, const std::function<bool()> &put) {
    return microseconds(
               stream, [&] { return put_launches(s, put); }, n_runs) /
           launches_of(s);
}
static double time_steadily(const shape &s, const std::function<bool()> &put) {
    return steady_microseconds(
               stream, [&] { return put_launches(s, put); }, 0.5) /
           launches_of(s);
}

// ---- the library ----------------------------------------------------------------------------------------------------

/* A product by cuBLASLt into 16 bits or float32, that of e4m3 with one scale a side, or with one a row. */
struct library_product {
    const shape &s;
    cublasLtMatmulDesc_t description = nullptr;
    cublasLtMatrixLayout_t w_as = nullptr, x_as = nullptr, y_as = nullptr;
    cublasLtMatmulHeuristicResult_t found[16];
    int n_found = 0;

    library_product(const shape &s, int rows, cudaDataType_t made, bool row_scales) : s(s) {
        cudaDataType_t type = s.weight == ELEMENT_E4M3 ? CUDA_R_8F_E4M3 : CUDA_R_16F;
        cublasOperation_t transposed = CUBLAS_OP_T;
        int8_t fast = 1;
        cublasLtMatmulDescCreate(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F);
        cublasLtMatmulDescSetAttribute(description, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
        if (s.weight == ELEMENT_E4M3) {
            auto mode =
                row_scales ? CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F : CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
            cublasLtMatmulDescSetAttribute(description, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &mode, sizeof mode);
            cublasLtMatmulDescSetAttribute(description, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &mode, sizeof mode);
            cublasLtMatmulDescSetAttribute(description, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast);
            cublasLtMatmulDescSetAttribute(description, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &ones, sizeof ones);
            cublasLtMatmulDescSetAttribute(description, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &ones, sizeof ones);
        }
        cublasLtMatrixLayoutCreate(&w_as, type, s.in, s.out, s.in);
        cublasLtMatrixLayoutCreate(&x_as, type, s.in, rows, s.in);
        cublasLtMatrixLayoutCreate(&y_as, made, s.out, rows, s.out);
        cublasLtMatmulPreference_t wish;
        cublasLtMatmulPreferenceCreate(&wish);
        cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &WORKSPACE,
                                             sizeof WORKSPACE);
        if (cublasLtMatmulAlgoGetHeuristic(blas, description, w_as, x_as, y_as, y_as, wish, 16, found, &n_found) !=
            CUBLAS_STATUS_SUCCESS)
            n_found = 0;
        cublasLtMatmulPreferenceDestroy(wish);
    }
    library_product(const library_product &) = delete;
    ~library_product() {
        for (cublasLtMatrixLayout_t as : {w_as, x_as, y_as})
            cublasLtMatrixLayoutDestroy(as);
        cublasLtMatmulDescDestroy(description);
    }
    bool put(int algorithm) const {
        float one = 1, zero = 0;
        return cublasLtMatmul(blas, description, &one, next_weight(s), w_as, inputs, x_as, &zero, y, y_as, y, y_as,
                              &found[algorithm].algo, workspace, WORKSPACE, stream) == CUBLAS_STATUS_SUCCESS;
    }
};

struct library_times {
    double us, steady_us; // negative: it has none
};
/* The fastest of its algorithms. */
static library_times time_library(const shape &s, int rows, bool steadily, cudaDataType_t made = CUDA_R_16F,
                                  bool row_scales = false) {
    library_product p(s, rows, made, row_scales);
    library_times best = {-1, -1};
    int which = 0;
    for (int i = 0; i < p.n_found; i++) {
        if (!p.put(i)) // loads its module
            continue;
        double us = time_launches(s, 3, [&] { return p.put(i); });
        if (us > 0 && (best.us < 0 || us < best.us)) {
            best.us = us;
            which = i;
        }
    }
    if (steadily && best.us > 0)
        best.steady_us = time_steadily(s, [&] { return p.put(which); });
    return best;
}

// ---- the command line and what is printed ---------------------------------------------------------------------------

static std::vector<int> rows_of(int argc, char **argv, std::vector<int> usual) {
    std::vector<int> rows;
    for (int i = 2; i < argc; i++)
        rows.push_back(std::clamp(atoi(argv[i]), 1, (int)MAX_ROWS));
    return rows.empty() ? usual : rows;
}

static void print_cell(const char *name, double us, const shape &s, int rows) {
    if (us < 0)
        printf("  %s -", name);
    else
        printf("  %s %7.2f us %4.0f GB/s %3.0f%% %4.0f TFLOP/s", name, us, s.bytes() / us / 1e3,
               s.bytes() / us / PEAK * 1e8, 2.0 * s.out * s.in * rows / us / 1e6);
}

/* What a step's time is, by its bytes. */
static void print_step(const model &m, int rows, double us, double bytes) {
    printf("%-12s step M=%-4d %7.3f ms, a layer %6.2f us, %4.0f GB/s (%.0f%%), %.0f tokens/s\n", m.name, rows, us / 1e3,
           us / m.n_layers, bytes / us / 1e3, bytes / us / PEAK * 1e8, rows / us * 1e6);
    fflush(stdout);
}
