/* cuda_ladder.cu - what an engine on library products could reach: the fastest of cuBLASLt's algorithms for each LINEAR of a model, and their sum.
 *
 *     nvcc -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a bench/cuda_ladder.cu -lcublasLt -o cuda_ladder
 *     cuda_ladder [qwen2.5-7b|llama-3.1-8b|gemma-4-31b] [fp8|fp8-rows|f16]
 *
 * fp8: e4m3 times e4m3 with one scale a side to bfloat16, the head in float16 as in the checkpoint; fp8-rows: with a scale a row on both sides, for
 * which the library has one algorithm; f16: float16 throughout. Each product is timed as 24 nodes of a graph whose weights are rotated over more than the L2 holds; the median of five replays counts. No bias, no
 * activation, no attention: it is the bound of engines that take their products from the library, not of the card. */
#include "cuda/graph_time.cuh"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <vector>

struct linear {
    const char *name;
    int out, in, count;
};
struct model {
    const char *name;
    std::vector<linear> linears; // the head last
};
static const model models[] = {
    {"qwen2.5-7b", {{"qkv", 4608, 3584, 28}, {"o", 3584, 3584, 28}, {"gate_up", 37888, 3584, 28}, {"down", 3584, 18944, 28}, {"head", 152064, 3584, 1}}},
    {"llama-3.1-8b", {{"qkv", 6144, 4096, 32}, {"o", 4096, 4096, 32}, {"gate_up", 28672, 4096, 32}, {"down", 4096, 14336, 32}, {"head", 128256, 4096, 1}}},
    {"gemma-4-31b",
     {{"qkv", 16384, 5376, 50}, {"o", 5376, 8192, 50}, {"qkv global", 18432, 5376, 10}, {"o global", 5376, 16384, 10}, {"gate_up", 43008, 5376, 60},
      {"down", 5376, 21504, 60}, {"head", 262144, 5376, 1}}},
};

enum { NODES = 24, REPLAYS = 5, ALGORITHMS = 12 };
static const size_t POOL = (size_t)3 << 30, ROTATED = (size_t)512 << 20, WORKSPACE = (size_t)64 << 20, X_BYTES = (size_t)128 << 20;

static cublasLtHandle_t blas;
static cudaStream_t stream;
static char *weights, *x, *y, *workspace;
static float *scales;

__global__ static void fill(unsigned *p, size_t n, unsigned mask, unsigned bits) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += gridDim.x * (size_t)blockDim.x) {
        unsigned h = ((unsigned)i ^ (unsigned)(i >> 32)) * 2654435761u;
        h = (h ^ h >> 15) * 2246822519u;
        p[i] = ((h ^ h >> 13) & mask) | bits;
    }
}
__global__ static void fill_float(float *p, size_t n, float v) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += gridDim.x * (size_t)blockDim.x)
        p[i] = v;
}

static void fill_as(bool fp8) { // any sign and fraction, sizes somewhat below 1; see src/backend/cuda/measure.cu
    fill<<<1056, 512>>>((unsigned *)weights, POOL / 4, fp8 ? 0x9f9f9f9fu : 0x8fff8fffu, fp8 ? 0x20202020u : 0x30003000u);
    fill<<<1056, 512>>>((unsigned *)x, X_BYTES / 4, fp8 ? 0x9f9f9f9fu : 0x8fff8fffu, fp8 ? 0x20202020u : 0x30003000u);
    TRY(cudaDeviceSynchronize());
}

/* Microseconds of the fastest algorithm; negative: the library has none. */
static double fastest(const linear &l, int rows, bool fp8, bool by_row) {
    cudaDataType_t in = fp8 ? CUDA_R_8F_E4M3 : CUDA_R_16F, out = fp8 ? CUDA_R_16BF : CUDA_R_16F;
    size_t bytes = (size_t)l.out * l.in * (fp8 ? 1 : 2), n_copies = std::max<size_t>(1, std::min<size_t>(ROTATED / bytes + 1, POOL / bytes));
    cublasLtMatmulDesc_t d;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulPreference_t wish;
    cublasOperation_t turned = CUBLAS_OP_T;
    cublasLtMatmulDescCreate(&d, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatmulDescSetAttribute(d, CUBLASLT_MATMUL_DESC_TRANSA, &turned, sizeof turned);
    if (fp8) {
        cublasLtMatmulMatrixScale_t mode = by_row ? CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F : CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
        cublasLtMatmulDescSetAttribute(d, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &mode, sizeof mode);
        cublasLtMatmulDescSetAttribute(d, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &mode, sizeof mode);
        cublasLtMatmulDescSetAttribute(d, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &scales, sizeof scales);
        cublasLtMatmulDescSetAttribute(d, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &scales, sizeof scales);
    }
    cublasLtMatrixLayoutCreate(&a, in, l.in, l.out, l.in);
    cublasLtMatrixLayoutCreate(&b, in, l.in, rows, l.in);
    cublasLtMatrixLayoutCreate(&c, out, l.out, rows, l.out);
    cublasLtMatmulPreferenceCreate(&wish);
    cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &WORKSPACE, sizeof WORKSPACE);
    cublasLtMatmulHeuristicResult_t found[ALGORITHMS];
    int n = 0;
    if (cublasLtMatmulAlgoGetHeuristic(blas, d, a, b, c, c, wish, ALGORITHMS, found, &n) != CUBLAS_STATUS_SUCCESS)
        n = 0;
    double best = -1;
    for (int i = 0; i < n; i++) {
        const float one = 1, zero = 0;
        bool runs = cublasLtMatmul(blas, d, &one, weights, a, x, b, &zero, y, c, y, c, &found[i].algo, workspace, WORKSPACE, stream) == CUBLAS_STATUS_SUCCESS;
        TRY(cudaStreamSynchronize(stream));
        double us = !runs ? -1 : microseconds(
            stream,
            [&] {
                for (int k = 0; k < NODES && runs; k++)
                    runs = cublasLtMatmul(blas, d, &one, weights + k % n_copies * bytes, a, x, b, &zero, y, c, y, c, &found[i].algo, workspace, WORKSPACE,
                                          stream) == CUBLAS_STATUS_SUCCESS;
                return runs;
            },
            REPLAYS) / NODES;
        if (us > 0)
            best = best < 0 ? us : std::min(best, us);
    }
    cublasLtMatmulPreferenceDestroy(wish);
    cublasLtMatrixLayoutDestroy(a);
    cublasLtMatrixLayoutDestroy(b);
    cublasLtMatrixLayoutDestroy(c);
    cublasLtMatmulDescDestroy(d);
    return best;
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "qwen2.5-7b";
    bool by_row = argc > 2 && strcmp(argv[2], "fp8-rows") == 0, fp8 = argc <= 2 || by_row || strcmp(argv[2], "fp8") == 0;
    const model *m = nullptr;
    for (const model &known : models)
        m = strcmp(known.name, name) == 0 ? &known : m;
    if (!m) {
        fprintf(stderr, "cuda_ladder: %s is none of qwen2.5-7b, llama-3.1-8b, gemma-4-31b\n", name);
        return 2;
    }
    TRY(cudaStreamCreate(&stream));
    TRY(cudaMalloc(&weights, POOL));
    TRY(cudaMalloc(&x, X_BYTES));
    TRY(cudaMalloc(&y, (size_t)1 << 30));
    TRY(cudaMalloc(&workspace, WORKSPACE));
    TRY(cudaMalloc(&scales, ((size_t)1 << 20) * sizeof(float)));
    fill_float<<<256, 256>>>(scales, (size_t)1 << 20, 0.5f);
    cublasLtCreate(&blas);
    printf("%s, %s: microseconds of the fastest algorithm (TB/s of weights)\n", m->name, by_row ? "fp8 with a scale a row, head float16" : fp8 ? "fp8, head float16" : "float16");
    const int sizes[] = {1, 8, 32, 128, 256, 512, 2048};
    std::vector<double> sum(7, 0);
    std::vector<double> us[7];
    for (int as_fp8 = 1; as_fp8 >= 0; as_fp8--) { // the weights' bits are made once for each element
        fill_as(as_fp8);
        for (int r = 0; r < 7; r++)
            for (const linear &l : m->linears) {
                bool is_head = &l == &m->linears.back();
                if ((fp8 && !is_head) != (bool)as_fp8)
                    continue;
                double t = fastest(l, is_head && sizes[r] > 512 ? 1 : sizes[r], as_fp8, by_row); // a prompt has one row of logits
                us[r].push_back(t);
                sum[r] += t * l.count;
            }
    }
    for (int r = 0; r < 7; r++) {
        printf("M %5d", sizes[r]);
        for (size_t i = 0; i < m->linears.size(); i++) {
            const linear &l = m->linears[i];
            bool narrow = fp8 && i + 1 < m->linears.size();
            printf("  %s %.1f (%.2f)", l.name, us[r][i], (double)l.out * l.in * (narrow ? 1 : 2) / us[r][i] * 1e-6);
        }
        printf("  all %.3f ms: %.0f tokens/s\n", sum[r] * 1e-3, sizes[r] / sum[r] * 1e6);
    }
    return 0;
}
