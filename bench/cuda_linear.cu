/* cuda_linear.cu - times LINEAR of a few rows on the device: our weight stream beside cuBLASLt, shape by shape, and all of a step.
 *
 *   build/cuda/linear [table|cuts|step] [rows ...]
 *     table   every shape and number of rows: microseconds, GB/s of the weight, per cent of 4.6 TB/s; nodes start early unless
 *             GYRE_EARLY_START=0; cuBLASLt's best of 16 (e4m3 x e4m3 with a scale a row and a token, or 16 bit)
 *     cuts    which cut into blocks and warps is fastest, the chosen one, and the three best
 *     step    all linears of a model's step in their order, without what lies between
 *
 * A figure is the median of 7 runs of a graph of 20 or more launches, divided by their number; weights rotate over 640 MB and more, so
 * none is in the L2 cache. Weights and inputs are random, never zeros: zeros take less power and run faster. */
#include "cuda/graph_time.cuh"
#include "backend/cuda/kernels.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <functional>
#include <string>
#include <vector>

static const double PEAK = 4.6e12; // bytes a second that an H200 reads

struct shape {
    const char *name;
    int64_t out, in;
    bool gated;
    element weight;
    int64_t bytes() const { return out * in * (weight == ELEMENT_E4M3 ? 1 : 2); }
};
struct model {
    const char *name;
    int n_layers;
    std::vector<shape> layer;
    shape head;
};

static const std::vector<model> MODELS = {
    {"Qwen2.5-7B",
     28,
     {{"qkv", 4608, 3584, false, ELEMENT_E4M3},
      {"o", 3584, 3584, false, ELEMENT_E4M3},
      {"gate_up", 37888, 3584, true, ELEMENT_E4M3},
      {"down", 3584, 18944, false, ELEMENT_E4M3}},
     {"head", 152064, 3584, false, ELEMENT_F16}},
    {"Llama-3.1-8B",
     32,
     {{"qkv", 6144, 4096, false, ELEMENT_E4M3},
      {"o", 4096, 4096, false, ELEMENT_E4M3},
      {"gate_up", 28672, 4096, true, ELEMENT_E4M3},
      {"down", 4096, 14336, false, ELEMENT_E4M3}},
     {"head", 128256, 4096, false, ELEMENT_F16}},
    {"Llama-3.1-8B 16 bit",
     32,
     {{"qkv", 6144, 4096, false, ELEMENT_F16},
      {"o", 4096, 4096, false, ELEMENT_F16},
      {"gate_up", 28672, 4096, true, ELEMENT_F16},
      {"down", 4096, 14336, false, ELEMENT_F16}},
     {"head", 128256, 4096, false, ELEMENT_F16}},
    {"Gemma-4-31B",
     60,
     {{"qkv", 16384, 5376, false, ELEMENT_E4M3},
      {"o", 5376, 8192, false, ELEMENT_E4M3},
      {"gate_up", 43008, 5376, true, ELEMENT_E4M3},
      {"down", 5376, 21504, false, ELEMENT_E4M3}},
     {"head", 262144, 5376, false, ELEMENT_E4M3}},
};

// ---- the bench's memory -----------------------------------------------------------------------------------------

enum { MAX_ROWS = 64, MAX_WIDTH = 262144, MAX_IN = 21504 };
static const size_t POOL = 1536ull << 20, ROTATE = 640ull << 20;

static unsigned char *pool8, *pool16, *x8;
static __half_raw *x16;
static float *y, *ones;
static cudaStream_t stream;
static cublasLtHandle_t blas;
static void *workspace;
static const size_t WORKSPACE = 64 << 20;

static __global__ void fill(unsigned *at, size_t n, unsigned seed, unsigned mask, unsigned set) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += gridDim.x * (size_t)blockDim.x) {
        unsigned h = (unsigned)i * 2654435761u + seed;
        h = (h ^ h >> 15) * 2246822519u;
        h = (h ^ h >> 13) * 3266489917u;
        at[i] = ((h ^ h >> 16) & mask) | set;
    }
}

static __global__ void read_all(const uint4 *p, size_t n, unsigned *out) {
    unsigned sum = 0;
    size_t stride = gridDim.x * (size_t)blockDim.x;
#pragma unroll 8
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += stride) {
        uint4 v = __ldg(p + i);
        sum ^= v.x ^ v.y ^ v.z ^ v.w;
    }
    if (sum == 0x12345678)
        *out = 1;
}

static void open() {
    TRY(cudaStreamCreate(&stream));
    TRY(cudaMalloc(&pool8, POOL));
    TRY(cudaMalloc(&pool16, POOL));
    TRY(cudaMalloc(&x8, (size_t)MAX_ROWS * MAX_IN));
    TRY(cudaMalloc(&x16, (size_t)MAX_ROWS * MAX_IN * 2));
    TRY(cudaMalloc(&y, (size_t)MAX_ROWS * MAX_WIDTH * 4));
    TRY(cudaMalloc(&ones, MAX_WIDTH * 4));
    TRY(cudaMalloc(&workspace, WORKSPACE));
    // e4m3 of sizes 2^-4 .. 8; halves of sizes 2^-8 .. 2
    fill<<<1024, 256>>>((unsigned *)pool8, POOL / 4, 1, 0xbfbfbfbfu, 0x10101010u);
    fill<<<1024, 256>>>((unsigned *)x8, (size_t)MAX_ROWS * MAX_IN / 4, 2, 0xbfbfbfbfu, 0x10101010u);
    fill<<<1024, 256>>>((unsigned *)pool16, POOL / 4, 3, 0x9fff9fffu, 0x20002000u);
    fill<<<1024, 256>>>((unsigned *)x16, (size_t)MAX_ROWS * MAX_IN / 2, 4, 0x9fff9fffu, 0x20002000u);
    std::vector<float> one(MAX_WIDTH, 0.01f);
    TRY(cudaMemcpy(ones, one.data(), MAX_WIDTH * 4, cudaMemcpyHostToDevice));
    TRY(cudaDeviceSynchronize());
    if (cublasLtCreate(&blas) != CUBLAS_STATUS_SUCCESS)
        exit(1);
}

/* The i-th copy of a weight. */
static unsigned char *weight_at(const shape &s, int i) {
    size_t n = std::max<size_t>(1, std::min<size_t>(POOL / s.bytes(), ROTATE / s.bytes() + 1));
    return (s.weight == ELEMENT_E4M3 ? pool8 : pool16) + (size_t)(i % n) * s.bytes();
}

// ---- timing -----------------------------------------------------------------------------------------------------

static int launches_of(const shape &s) { return (int)std::clamp<int64_t>(600000000 / s.bytes(), 20, 48); }

static dmat input_of(const shape &s) { return {x16, s.in, (int)s.in, ELEMENT_F16, nullptr}; }
static dmat output_of(const shape &s) {
    int width = (int)(s.gated ? s.out / 2 : s.out);
    return {y, width, width, s.gated ? ELEMENT_F16 : ELEMENT_F32, nullptr};
}
static dstream stream_of(const shape &s, int i) {
    dstream a = {};
    a.w = {weight_at(s, i), s.out, s.in, s.weight, s.weight == ELEMENT_E4M3 ? ones : nullptr};
    a.ending.kind = s.gated ? ENDING_GATED : ENDING_PLAIN;
    return a;
}

static double time_stream(const shape &s, int rows, const stream_cut *cut, int n_runs) {
    dstream first = stream_of(s, 0);
    if (!stream_takes(&first, input_of(s), output_of(s), rows))
        return -1;
    struct launch l = {};
    l.stream = stream;
    int n = launches_of(s);
    double us = microseconds(
            stream,
        [&] {
            for (int i = 0; i < n; i++) {
                dstream a = stream_of(s, i);
                stream_cut usual = stream_cut_of(&a, rows);
                launch_stream_linear_cut(&l, rows, &a, input_of(s), output_of(s), cut ? cut : &usual);
            }
            return cudaGetLastError() == cudaSuccess;
        },
        n_runs);
    return us / n;
}

// ---- cuBLASLt ---------------------------------------------------------------------------------------------------

struct library_plan {
    cublasLtMatmulDesc_t description;
    cublasLtMatrixLayout_t w, x, y;
    std::vector<cublasLtMatmulHeuristicResult_t> found;
};

static library_plan plan_of(const shape &s, int rows, bool outer) {
    library_plan p;
    bool narrow = s.weight == ELEMENT_E4M3;
    cudaDataType_t type = narrow ? CUDA_R_8F_E4M3 : CUDA_R_16F, to = narrow ? CUDA_R_16BF : CUDA_R_16F;
    cublasOperation_t transposed = CUBLAS_OP_T;
    cublasLtMatmulDescCreate(&p.description, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatmulDescSetAttribute(p.description, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
    if (narrow) {
        int8_t fast = 1;
        cublasLtMatmulMatrixScale_t mode = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
        cublasLtMatmulDescSetAttribute(p.description, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast);
        cublasLtMatmulDescSetAttribute(p.description, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &ones, sizeof ones);
        cublasLtMatmulDescSetAttribute(p.description, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &ones, sizeof ones);
        if (outer) {
            cublasLtMatmulDescSetAttribute(p.description, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &mode, sizeof mode);
            cublasLtMatmulDescSetAttribute(p.description, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &mode, sizeof mode);
        }
    }
    cublasLtMatrixLayoutCreate(&p.w, type, s.in, s.out, s.in);
    cublasLtMatrixLayoutCreate(&p.x, type, s.in, rows, s.in);
    cublasLtMatrixLayoutCreate(&p.y, to, s.out, rows, s.out);
    cublasLtMatmulPreference_t wish;
    cublasLtMatmulPreferenceCreate(&wish);
    cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &WORKSPACE, sizeof WORKSPACE);
    p.found.resize(16);
    int n = 0;
    if (cublasLtMatmulAlgoGetHeuristic(blas, p.description, p.w, p.x, p.y, p.y, wish, 16, p.found.data(), &n) != CUBLAS_STATUS_SUCCESS)
        n = 0;
    p.found.resize(n);
    cublasLtMatmulPreferenceDestroy(wish);
    return p;
}

static bool put_library(const library_plan &p, const shape &s, int i, const cublasLtMatmulAlgo_t *algorithm) {
    float one = 1, zero = 0;
    const void *x = s.weight == ELEMENT_E4M3 ? (const void *)x8 : x16;
    return cublasLtMatmul(blas, p.description, &one, weight_at(s, i), p.w, x, p.x, &zero, y, p.y, y, p.y, algorithm, workspace, WORKSPACE,
                          stream) == CUBLAS_STATUS_SUCCESS;
}

/* The fastest algorithm and its time; none: negative. */
static double time_library(const shape &s, int rows, int *which, library_plan *plan) {
    *plan = plan_of(s, rows, true);
    int n = launches_of(s);
    double best = -1;
    for (size_t a = 0; a < plan->found.size(); a++) {
        if (!put_library(*plan, s, 0, &plan->found[a].algo)) // loads its module
            continue;
        double us = microseconds(
            stream,
            [&] {
                for (int i = 0; i < n; i++)
                    if (!put_library(*plan, s, i, &plan->found[a].algo))
                        return false;
                return true;
            },
            3);
        if (us > 0 && (best < 0 || us / n < best)) {
            best = us / n;
            *which = (int)a;
        }
    }
    return best;
}

// ---- what is printed --------------------------------------------------------------------------------------------

static void print_cell(const char *name, double us, const shape &s) {
    if (us < 0)
        printf("  %s      -              ", name);
    else
        printf("  %s %7.2f us %4.0f GB/s %3.0f%%", name, us, s.bytes() / us / 1e3, s.bytes() / us / PEAK * 1e8);
}

static void table(const std::vector<int> &rows) {
    bool early = !getenv("GYRE_EARLY_START") || atoi(getenv("GYRE_EARLY_START"));
    for (const model &m : MODELS) {
        std::vector<shape> all = m.layer;
        all.push_back(m.head);
        std::vector<double> ours(rows.size()), theirs(rows.size());
        for (size_t i = 0; i < all.size(); i++) {
            const shape &s = all[i];
            for (size_t r = 0; r < rows.size(); r++) {
                printf("%s %s M=%d", m.name, s.name, rows[r]);
                double us = time_stream(s, rows[r], nullptr, 7), library = -1;
                int which = -1;
                library_plan plan;
                print_cell(early ? "stream" : "stream, none early", us, s);
                if (early) {
                    library = time_library(s, rows[r], &which, &plan);
                    print_cell("library", library, s);
                }
                printf("\n");
                fflush(stdout);
                double times = i + 1 == all.size() ? 1 : m.n_layers;
                ours[r] += times * (us > 0 ? us : 1e9);
                theirs[r] += times * (library > 0 ? library : 1e9);
            }
        }
        for (size_t r = 0; r < rows.size(); r++)
            printf("%s all linears M=%d: stream %.3f ms %.0f tokens/s, library %.3f ms %.0f tokens/s\n", m.name, rows[r], ours[r] / 1e3,
                   rows[r] / ours[r] * 1e6, theirs[r] / 1e3, rows[r] / theirs[r] * 1e6);
    }
}

static std::string cut_name(const stream_cut &c) {
    char text[80];
    snprintf(text, sizeof text, "%dx16 rows, %dx%d warps, cluster %d, %d blocks%s", c.m_tiles, c.row_warps, c.column_warps, c.cluster,
             c.n_blocks, c.deep ? ", deep" : "");
    return text;
}

static void cuts(const std::vector<int> &rows) {
    for (const model &m : MODELS) {
        std::vector<shape> all = m.layer;
        all.push_back(m.head);
        for (const shape &s : all)
            for (int n : rows) {
                std::vector<std::pair<double, stream_cut>> tried;
                dstream first = stream_of(s, 0);
                stream_cut usual = stream_cut_of(&first, n);
                for (int tiles = 1; tiles <= STREAM_MAX_M_TILES; tiles++)
                    for (int cluster = 1; cluster <= 8; cluster *= 2)
                        for (int columns = 1; columns <= 8; columns *= 2)
                            for (int deep = 0; deep <= 1; deep++) {
                                stream_cut c = {tiles, 8 / columns, columns, cluster, stream_blocks(cluster), deep != 0};
                                if (cluster > 2 * usual.cluster || (deep && (n > 8 || cluster > 1)) || !stream_takes_cut(&first, n, &c))
                                    continue;
                                double us = time_stream(s, n, &c, 2);
                                if (us > 0)
                                    tried.push_back({us, c});
                            }
                std::sort(tried.begin(), tried.end(), [](auto &a, auto &b) { return a.first < b.first; });
                printf("%s %s M=%d: chosen %.2f us (%s)\n", m.name, s.name, n, time_stream(s, n, &usual, 5), cut_name(usual).c_str());
                for (size_t i = 0; i < tried.size() && i < 4; i++)
                    printf("    %.2f us %s\n", tried[i].first, cut_name(tried[i].second).c_str());
                fflush(stdout);
            }
    }
}

/* All linears of a step, one behind the other as a graph has them. */
static void step(const std::vector<int> &rows) {
    struct launch l = {};
    l.stream = stream;
    for (const model &m : MODELS)
        for (int n : rows) {
            double bytes = 0;
            for (const shape &s : m.layer)
                bytes += (double)s.bytes() * m.n_layers;
            bytes += m.head.bytes();
            auto put = [&](const shape &s, int i) {
                dstream a = stream_of(s, i);
                launch_stream_linear(&l, n, &a, input_of(s), output_of(s));
            };
            bool takes = true;
            for (const shape &s : m.layer) {
                dstream a = stream_of(s, 0);
                takes &= stream_takes(&a, input_of(s), output_of(s), n);
            }
            if (!takes)
                continue;
            double us = microseconds(
            stream,
                [&] {
                    for (int i = 0; i < m.n_layers; i++)
                        for (const shape &s : m.layer)
                            put(s, i);
                    put(m.head, 0);
                    return cudaGetLastError() == cudaSuccess;
                },
                5);
            printf("%s step M=%d: %.3f ms, %.0f GB/s (%.0f%%), %.0f tokens/s\n", m.name, n, us / 1e3, bytes / us / 1e3,
                   bytes / us / PEAK * 1e8, n / us * 1e6);
            fflush(stdout);
        }
}

int main(int argc, char **argv) {
    std::string what = argc > 1 ? argv[1] : "table";
    std::vector<int> rows;
    for (int i = 2; i < argc; i++)
        rows.push_back(atoi(argv[i]));
    if (rows.empty())
        rows = {1, 2, 4, 8, 16, 24, 32, 48, 64};
    open();
    double us =
        microseconds(stream, [&] { return read_all<<<132 * 8, 512, 0, stream>>>((const uint4 *)pool8, POOL / 16, (unsigned *)y), true; }, 5);
    printf("reading alone: %.0f GB/s\n", POOL / us / 1e3);
    for (int n = 1; n <= STREAM_MAX_ROWS; n *= 2)
        for (const shape &s : MODELS[0].layer) {
            dstream a = stream_of(s, 0);
            printf("%s M=%d: %s\n", s.name, n, cut_name(stream_cut_of(&a, n)).c_str());
        }
    if (what == "table")
        table(rows);
    else if (what == "cuts")
        cuts(rows);
    else
        step(rows);
    return 0;
}
