/* cuda_wide.cu - times LINEAR of many rows (src/backend/cuda/wide.cu) beside the fastest of cuBLASLt's e4m3 products with one scale.
 *
 *     cuda_wide table [ROWS ...]    each linear of some models: launches behind one another in a graph, weights rotated past the L2
 *     cuda_wide step [ROWS ...]     the linears of all layers of a step, one behind the other
 *     cuda_wide cuts [ROWS ...]     other cuts of each than wide_cut_of's, the fastest first
 *     cuda_wide layer [ROWS ...]    a layer without its attention, ADD_NORM and quantise between: other cuts of each product in turn
 *     cuda_wide cuts0 ...           of the first model (0, 1 and 2 there are)
 *
 * Ours includes scales, and GATED_ACT of gate_up; the library's is the raw products in half precision. */
#include "backend/cuda/wide.cu"
#include "cuda/graph_time.cuh"

#include <algorithm>
#include <cublasLt.h>
#include <functional>
#include <stdio.h>
#include <string.h>
#include <string>
#include <vector>

static const size_t POOL = (size_t)1 << 30, WORKSPACE = 64 << 20;
enum { MAX_ROWS = 2048, MAX_IN = 32768, MAX_WIDTH = 65536 };

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

static int launches_of(const shape &s) { return (int)std::clamp<int64_t>(600000000 / s.bytes(), 10, 48); }

static dwide wide_of(const shape &s) { return {{next_weight(s), s.out, s.in, ELEMENT_E4M3, ones}, nullptr, s.gated, 0}; }

static bool put_wide(const shape &s, int rows, const wide_cut *cut) {
    dwide a = wide_of(s);
    int width = (int)(s.gated ? s.out / 2 : s.out);
    dmat x = {x8, s.in, (int)s.in, ELEMENT_E4M3, ones}, out = {y, width, width, ELEMENT_F16, nullptr};
    wide_cut c = cut ? *cut : wide_cut_of(&a, rows);
    return wide_takes(&a, x, out, rows) && wide_takes_cut(&a, rows, &c) &&
           launch_wide_linear_cut(stream, rows, &a, x, out, &c) == cudaSuccess;
}

static double time_wide(const shape &s, int rows, const wide_cut *cut, int n_runs) {
    int n = launches_of(s);
    return microseconds(
               stream,
               [&] {
                   for (int i = 0; i < n; i++)
                       if (!put_wide(s, rows, cut))
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
                        stream,
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

static void print_cell(const char *name, double us, const shape &s, int rows) {
    printf("  %s %6.2f us %5.2f TB/s %4.0f TFLOP/s", name, us, s.bytes() / us / 1e6, 2.0 * s.bytes() * rows / us / 1e6);
}

static void table(const model &m, const std::vector<int> &rows) {
    for (const shape &s : m.layer)
        for (int n : rows) {
            printf("%-12s %-7s M=%-4d", m.name, s.name, n);
            print_cell("wide", time_wide(s, n, nullptr, 7), s, n);
            print_cell("library", time_library(s, n), s, n);
            printf("\n");
            fflush(stdout);
        }
}

static void step(const model &m, const std::vector<int> &rows) {
    for (int n : rows) {
        double us = microseconds(
            stream,
            [&] {
                bool fine = true;
                for (int i = 0; i < m.n_layers; i++)
                    for (const shape &s : m.layer)
                        fine = fine && put_wide(s, n, nullptr);
                return fine;
            },
            5);
        printf("%-12s step M=%-4d %7.3f ms, a layer %6.2f us\n", m.name, n, us / 1e3, us / m.n_layers);
        fflush(stdout);
    }
}

/* Every way to split, with tiles such that all blocks have as many of them. */
static std::vector<wide_cut> cuts_of(const dwide &a, int rows) {
    std::vector<wide_cut> found;
    int octets = up_to(units_of(&a), 8), token_tiles = up_to(rows, TOKENS), most = 36 / (a.gated ? 2 : 1);
    for (int split = 1; split <= 8; split++) {
        int before = 0;
        for (int passes = 1; passes <= 20; passes++) {
            int at_once = wide_blocks(split) / split, row_tiles = at_once * passes / token_tiles;
            if (row_tiles == 0 || (split > 1 && passes > 1))
                continue;
            wide_cut c = {up_to(octets, row_tiles), split, at_once * split, 2};
            if (c.octets > most || c.octets < 2 || (c.octets * 3 < most && passes > 1) || c.octets == before)
                continue;
            before = c.octets;
            int most_stages = wide_stages(&a, &c);
            int half = most_stages; // so that two blocks have room
            for (c.n_stages = most_stages; c.n_stages > 1 && shared_bytes(&a, &c) > 113 * 1024; c.n_stages--)
                half = c.n_stages - 1;
            for (int n : {most_stages, most_stages - 1, most_stages - 2, half}) {
                c.n_stages = n;
                if (wide_takes_cut(&a, rows, &c))
                    found.push_back(c);
            }
        }
    }
    return found;
}

static void print_cut(double us, const wide_cut &c) {
    printf("    %6.2f us: %d octets, split %d, %d blocks, %d stages\n", us, c.octets, c.split, c.n_blocks, c.n_stages);
}

static void cuts(const model &m, const std::vector<int> &rows) {
    for (const shape &s : m.layer)
        for (int n : rows) {
            dwide a = wide_of(s);
            std::vector<std::pair<double, wide_cut>> tried;
            for (const wide_cut &c : cuts_of(a, n)) {
                double us = time_wide(s, n, &c, 2);
                if (us > 0)
                    tried.push_back({us, c});
            }
            std::sort(tried.begin(), tried.end(), [](auto &p, auto &q) { return p.first < q.first; });
            wide_cut c = wide_cut_of(&a, n);
            printf("%s %s M=%d: library %.2f, chosen of %zu:\n", m.name, s.name, n, time_library(s, n), tried.size());
            print_cut(time_wide(s, n, &c, 3), c);
            for (size_t i = 0; i < tried.size() && i < 7; i++)
                print_cut(tried[i].first, tried[i].second);
            fflush(stdout);
        }
}

/* A layer: ADD_NORM, qkv, quantise, o, ADD_NORM, gate_up, quantise, down. */
struct chain {
    const model &m;
    int rows;
    wide_cut cut[4];
    struct launch l;
    dmat residual, normed8, value, value8, heads, heads8, sum;

    dmat buffer(int width, element e, bool most) const {
        dmat d = {nullptr, width, width, e};
        size_t size = (size_t)rows * width * (e == ELEMENT_F32 ? 4 : e == ELEMENT_F16 ? 2 : 1);
        TRY(cudaMalloc(&d.at, size));
        TRY(cudaMemset(d.at, 0x11, size));
        if (e == ELEMENT_E4M3)
            TRY(cudaMalloc(&d.scale, rows * 4));
        if (most) {
            TRY(cudaMalloc(&d.most, rows * 4));
            TRY(cudaMemset(d.most, 0, rows * 4));
        }
        return d;
    }
    chain(const model &m, int rows) : m(m), rows(rows), l() {
        l.stream = stream;
        l.n_tokens = rows;
        int hidden = (int)m.layer[0].in, ffn = (int)m.layer[3].in, of_heads = (int)m.layer[1].in;
        residual = buffer(hidden, ELEMENT_F32, false);
        normed8 = buffer(hidden, ELEMENT_E4M3, false);
        value = buffer(ffn, ELEMENT_F16, true);
        value8 = buffer(ffn, ELEMENT_E4M3, false);
        heads = buffer((int)m.layer[0].out, ELEMENT_F16, true);
        heads8 = buffer(of_heads, ELEMENT_E4M3, false);
        sum = buffer(hidden, ELEMENT_F32, false);
        for (int i = 0; i < 4; i++) {
            dwide a = wide_of(m.layer[i]);
            cut[i] = wide_cut_of(&a, rows);
        }
    }
    bool product(int i, dmat x, dmat y) const {
        dwide a = wide_of(m.layer[i]);
        return launch_wide_linear_cut(stream, rows, &a, x, y, &cut[i]) == cudaSuccess;
    }
    bool put_layer() const {
        dadd_norm norm = {};
        norm.w = {ones, 1, residual.width, ELEMENT_F32, nullptr};
        norm.eps = 1e-6f;
        dmat part = heads, none = {nullptr, residual.width, residual.width, ELEMENT_F16};
        part.width = heads8.width;
        launch_add_norm(&l, &norm, residual, sum, residual, none, normed8);
        bool fine = product(0, normed8, heads);
        launch_quantise(&l, rows, part, heads8);
        fine = fine && product(1, heads8, sum);
        launch_add_norm(&l, &norm, residual, sum, residual, none, normed8);
        fine = fine && product(2, normed8, value);
        launch_quantise(&l, rows, value, value8);
        return fine && product(3, value8, sum) && cudaGetLastError() == cudaSuccess;
    }
    double time(int n_runs) const {
        const int LAYERS = 12;
        return microseconds(
                   stream,
                   [&] {
                       bool fine = true;
                       for (int i = 0; i < LAYERS; i++)
                           fine = fine && put_layer();
                       return fine;
                   },
                   n_runs) /
               LAYERS;
    }
};

static void layer(const model &m, const std::vector<int> &rows) {
    for (int n : rows) {
        chain c(m, n);
        printf("%s layer M=%d: %.2f us\n", m.name, n, c.time(5));
        for (int i = 0; i < 4; i++) {
            dwide a = wide_of(m.layer[i]);
            wide_cut usual = c.cut[i];
            std::vector<std::pair<double, wide_cut>> tried;
            for (const wide_cut &cut : cuts_of(a, n)) {
                c.cut[i] = cut;
                double us = c.time(2);
                if (us > 0)
                    tried.push_back({us, cut});
            }
            c.cut[i] = usual;
            std::sort(tried.begin(), tried.end(), [](auto &p, auto &q) { return p.first < q.first; });
            printf("  %s\n", m.layer[i].name);
            print_cut(c.time(3), usual);
            for (size_t k = 0; k < tried.size() && k < 5; k++)
                print_cut(tried[k].first, tried[k].second);
            fflush(stdout);
        }
    }
}

int main(int argc, char **argv) {
    std::string what = argc > 1 ? argv[1] : "table";
    std::vector<int> rows;
    for (int i = 2; i < argc; i++)
        rows.push_back(atoi(argv[i]));
    if (rows.empty())
        rows = {128, 256, 512};
    open();
    for (size_t i = 0; i < MODELS.size(); i++)
        if (what.back() < '0' || what.back() > '9' || what.back() - '0' == (int)i)
            (what.substr(0, 5) == "table"   ? table
             : what.substr(0, 4) == "cuts"  ? cuts
             : what.substr(0, 5) == "layer" ? layer
                                            : step)(MODELS[i], rows);
    return 0;
}
