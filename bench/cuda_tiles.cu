/* cuda_tiles.cu - times LINEAR by tiles (src/backend/cuda/tiles.cu) beside cuBLASLt's e4m3 products with one scale.
 *
 *     cuda_tiles table [ROWS ...]    each linear of some models: launches behind one another in a graph, weights rotated past the L2
 *     cuda_tiles step [ROWS ...]     the linears of all layers of a step, one behind the other
 *     cuda_tiles cuts [ROWS ...]     other cuts of each than tiles_cut_of's
 */
#include "backend/cuda/tiles.cu"

#include <algorithm>
#include <cublasLt.h>
#include <functional>
#include <stdio.h>
#include <string.h>
#include <string>
#include <vector>

#define TRY(call)                                                                          \
    do {                                                                                   \
        cudaError_t code_ = (call);                                                        \
        if (code_ != cudaSuccess) {                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(code_)); \
            exit(1);                                                                       \
        }                                                                                  \
    } while (0)

static const double PEAK = 4.6e12; // bytes a second that an H200 reads
static const size_t POOL = (size_t)1 << 30, WORKSPACE = 64 << 20;
enum { MAX_ROWS = 256, MAX_IN = 32768, MAX_WIDTH = 65536 };

struct shape {
    const char *name;
    int64_t out, in;
    bool gated;
    size_t bytes() const { return (size_t)out * in; }
};
struct model {
    const char *name;
    int n_layers;
    std::vector<shape> layer;
};
static const std::vector<model> MODELS = {
    {"Qwen2.5-7B",
     28,
     {{"qkv", 4608, 3584, false}, {"o", 3584, 3584, false}, {"gate_up", 37888, 3584, true}, {"down", 3584, 18944, false}}},
    {"Llama-3.1-8B",
     32,
     {{"qkv", 6144, 4096, false}, {"o", 4096, 4096, false}, {"gate_up", 28672, 4096, true}, {"down", 4096, 14336, false}}},
    {"Gemma-4-31B",
     60,
     {{"qkv", 16384, 5376, false}, {"o", 5376, 8192, false}, {"gate_up", 43008, 5376, true}, {"down", 5376, 21504, false}}},
};

static cudaStream_t stream;
static unsigned char *pool, *x8;
static float *ones;
static void *y, *workspace;
static cublasLtHandle_t blas;

static __global__ void fill(unsigned *at, size_t n, uint64_t seed, unsigned keep, unsigned set) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        uint64_t v = (i + seed * 0x100000000u) * 0x9e3779b97f4a7c15u;
        v = (v ^ v >> 30) * 0xbf58476d1ce4e5b9u;
        v = (v ^ v >> 27) * 0x94d049bb133111ebu;
        at[i] = ((unsigned)(v >> 32) & keep) | set;
    }
}

static void open() {
    TRY(cudaStreamCreate(&stream));
    TRY(cudaMalloc(&pool, POOL));
    TRY(cudaMalloc(&x8, (size_t)MAX_ROWS * MAX_IN));
    TRY(cudaMalloc(&y, (size_t)MAX_ROWS * MAX_WIDTH * 4));
    TRY(cudaMalloc(&ones, MAX_WIDTH * 4));
    TRY(cudaMalloc(&workspace, WORKSPACE));
    fill<<<1024, 256>>>((unsigned *)pool, POOL / 4, 1, 0xbfbfbfbfu, 0x10101010u); // e4m3 of sizes 2^-4 .. 8
    fill<<<1024, 256>>>((unsigned *)x8, (size_t)MAX_ROWS * MAX_IN / 4, 2, 0xbfbfbfbfu, 0x10101010u);
    std::vector<float> scale(MAX_WIDTH, 0.01f);
    TRY(cudaMemcpy(ones, scale.data(), MAX_WIDTH * 4, cudaMemcpyHostToDevice));
    TRY(cudaDeviceSynchronize());
    if (cublasLtCreate(&blas) != CUBLAS_STATUS_SUCCESS)
        exit(1);
}

static size_t where; // in the pool, of the next weight
static unsigned char *next_weight(const shape &s) {
    if (where + s.bytes() > POOL)
        where = 0;
    unsigned char *at = pool + where;
    where += s.bytes();
    return at;
}

/* Microseconds of all that `put` puts on the stream; negative: it does not run. */
static double microseconds(const std::function<bool()> &put, int n_runs) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t begin, end;
    TRY(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    bool fine = put();
    if (cudaStreamEndCapture(stream, &graph) != cudaSuccess || !fine) {
        cudaGetLastError();
        return -1;
    }
    TRY(cudaGraphInstantiate(&exec, graph, 0));
    TRY(cudaEventCreate(&begin));
    TRY(cudaEventCreate(&end));
    std::vector<float> times;
    for (int i = 0; i < n_runs + 1; i++) {
        float ms = 0;
        TRY(cudaEventRecord(begin, stream));
        TRY(cudaGraphLaunch(exec, stream));
        TRY(cudaEventRecord(end, stream));
        TRY(cudaEventSynchronize(end));
        TRY(cudaEventElapsedTime(&ms, begin, end));
        if (i > 0)
            times.push_back(ms);
    }
    TRY(cudaEventDestroy(begin));
    TRY(cudaEventDestroy(end));
    TRY(cudaGraphExecDestroy(exec));
    TRY(cudaGraphDestroy(graph));
    std::sort(times.begin(), times.end());
    return times[times.size() / 2] * 1e3;
}

static int launches_of(const shape &s) { return (int)std::clamp<int64_t>(600000000 / s.bytes(), 10, 48); }

static bool put_tiles(const shape &s, int rows, const tiles_cut *cut) {
    dtiles a = {{next_weight(s), s.out, s.in, ELEMENT_E4M3, ones}, nullptr, s.gated, 0, 0};
    int width = (int)(s.gated ? s.out / 2 : s.out);
    dmat x = {x8, s.in, (int)s.in, ELEMENT_E4M3, ones}, out = {y, width, width, s.gated ? ELEMENT_F16 : ELEMENT_F32, nullptr};
    if (!tiles_take(&a, x, out, rows))
        return false;
    tiles_cut c = cut ? *cut : tiles_cut_of(&a, rows);
    return launch_tiles_linear_cut(stream, rows, &a, x, out, &c) == cudaSuccess;
}

static double time_tiles(const shape &s, int rows, const tiles_cut *cut, int n_runs) {
    int n = launches_of(s);
    return microseconds(
               [&] {
                   for (int i = 0; i < n; i++)
                       if (!put_tiles(s, rows, cut))
                           return false;
                   return true;
               },
               n_runs) /
           n;
}

/* The fastest of the library's algorithms, with one scale for all; none: negative. */
static double time_library(const shape &s, int rows) {
    cublasLtMatmulDesc_t description;
    cublasLtMatrixLayout_t w_as, x_as, y_as;
    cublasOperation_t transposed = CUBLAS_OP_T;
    int8_t fast = 1;
    cublasLtMatmulDescCreate(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatmulDescSetAttribute(description, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
    cublasLtMatmulDescSetAttribute(description, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast);
    cublasLtMatmulDescSetAttribute(description, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &ones, sizeof ones);
    cublasLtMatmulDescSetAttribute(description, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &ones, sizeof ones);
    cublasLtMatrixLayoutCreate(&w_as, CUDA_R_8F_E4M3, s.in, s.out, s.in);
    cublasLtMatrixLayoutCreate(&x_as, CUDA_R_8F_E4M3, s.in, rows, s.in);
    cublasLtMatrixLayoutCreate(&y_as, CUDA_R_16F, s.out, rows, s.out);
    cublasLtMatmulPreference_t wish;
    cublasLtMatmulPreferenceCreate(&wish);
    cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &WORKSPACE, sizeof WORKSPACE);
    cublasLtMatmulHeuristicResult_t found[16];
    int n_found = 0;
    if (cublasLtMatmulAlgoGetHeuristic(blas, description, w_as, x_as, y_as, y_as, wish, 16, found, &n_found) != CUBLAS_STATUS_SUCCESS)
        n_found = 0;
    int n = launches_of(s);
    double best = -1;
    for (int f = 0; f < n_found; f++) {
        auto put = [&] {
            float one = 1, zero = 0;
            return cublasLtMatmul(blas, description, &one, next_weight(s), w_as, x8, x_as, &zero, y, y_as, y, y_as, &found[f].algo,
                                  workspace, WORKSPACE, stream) == CUBLAS_STATUS_SUCCESS;
        };
        if (!put()) // loads its module
            continue;
        double us = microseconds(
                        [&] {
                            bool fine = true;
                            for (int i = 0; i < n; i++)
                                fine = fine && put();
                            return fine;
                        },
                        3) /
                    n;
        if (us > 0 && (best < 0 || us < best))
            best = us;
    }
    cublasLtMatmulPreferenceDestroy(wish);
    return best;
}

static void print_cell(const char *name, double us, const shape &s) {
    printf("  %s %6.2f us %4.0f GB/s %3.0f%%", name, us, s.bytes() / us / 1e3, s.bytes() / us / PEAK * 1e8);
}

static void table(const std::vector<int> &rows) {
    for (const model &m : MODELS)
        for (const shape &s : m.layer)
            for (int n : rows) {
                printf("%-12s %-7s M=%-3d", m.name, s.name, n);
                print_cell("tiles", time_tiles(s, n, nullptr, 7), s);
                print_cell("library", time_library(s, n), s);
                printf("\n");
                fflush(stdout);
            }
}

static void step(const std::vector<int> &rows) {
    for (const model &m : MODELS)
        for (int n : rows) {
            double bytes = 0;
            for (const shape &s : m.layer)
                bytes += (double)s.bytes() * m.n_layers;
            double us = microseconds(
                [&] {
                    bool fine = true;
                    for (int i = 0; i < m.n_layers; i++)
                        for (const shape &s : m.layer)
                            fine = fine && put_tiles(s, n, nullptr);
                    return fine;
                },
                5);
            printf("%-12s step M=%-3d %7.3f ms, a layer %6.2f us, %4.0f GB/s (%.0f%%)\n", m.name, n, us / 1e3, us / m.n_layers,
                   bytes / us / 1e3, bytes / us / PEAK * 1e8);
            fflush(stdout);
        }
}

static void cuts(const std::vector<int> &rows) {
    for (const model &m : MODELS)
        for (const shape &s : m.layer)
            for (int n : rows) {
                std::vector<std::pair<double, tiles_cut>> tried;
                dtiles a = {{pool, s.out, s.in, ELEMENT_E4M3, ones}, nullptr, s.gated, 0, 0};
                int octets = up_to(columns_of(&a), 8), most = most_groups(tokens_of(n)) * M_ROWS / (s.gated ? 16 : 8);
                for (int split = 1; split <= 8; split *= 2)
                    for (int passes = 1; passes <= 3; passes++) {
                        int at_once = blocks_at_once(split) / split, o = up_to(octets, at_once * passes);
                        if (o > most || o > 32 || (split > 1 && passes > 1))
                            continue;
                        int stage = stage_bytes_of(s.gated, o, n), fit = (SHARED_MOST - OVERRUN - ATOM) / stage;
                        for (int room : {224 << 10, 108 << 10}) {
                            int stages = std::min((room - OVERRUN - ATOM) / stage, (int)MAX_STAGES);
                            if (stages < 2 || stages > fit)
                                continue;
                            tiles_cut c = {o, split, at_once * split, stages};
                            double us = time_tiles(s, n, &c, 2);
                            if (us > 0)
                                tried.push_back({us, c});
                        }
                    }
                std::sort(tried.begin(), tried.end(), [](auto &p, auto &q) { return p.first < q.first; });
                tiles_cut c = tiles_cut_of(&a, n);
                printf("%s %s M=%d: chosen %.2f us (%d octets, split %d, %d blocks, %d stages)\n", m.name, s.name, n,
                       time_tiles(s, n, &c, 3), c.octets, c.split, c.n_blocks, c.n_stages);
                for (size_t i = 0; i < tried.size() && i < 6; i++) {
                    const tiles_cut &t = tried[i].second;
                    printf("    %.2f us %d octets, split %d, %d blocks, %d stages\n", tried[i].first, t.octets, t.split, t.n_blocks,
                           t.n_stages);
                }
                fflush(stdout);
            }
}

int main(int argc, char **argv) {
    std::string what = argc > 1 ? argv[1] : "table";
    std::vector<int> rows;
    for (int i = 2; i < argc; i++)
        rows.push_back(atoi(argv[i]));
    if (rows.empty())
        rows = {16, 32, 64, 128};
    open();
    (what == "table" ? table : what == "cuts" ? cuts : step)(rows);
    return 0;
}
