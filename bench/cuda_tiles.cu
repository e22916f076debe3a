/* cuda_tiles.cu - times LINEAR by tiles (src/backend/cuda/tiles.cu) beside cuBLASLt's e4m3 products with one scale.
 *
 *     cuda_tiles table [ROWS ...]    each linear of some models: launches behind one another in a graph, weights rotated past the L2
 *     cuda_tiles step [ROWS ...]     the linears of all layers of a step, one behind the other
 *     cuda_tiles cuts [ROWS ...]     other cuts of each than tiles_cut_of's
 *     cuda_tiles chain [ROWS ...]    layers as a step has them: ADD_NORM, qkv, a stand-in for attention, quantise, o, ADD_NORM, gate_up,
 *                                    quantise, down, with rings of several sizes
 */
#include "backend/cuda/tiles.cu"
#include "cuda/graph_time.cuh"

#include <algorithm>
#include <cublasLt.h>
#include <functional>
#include <stdio.h>
#include <string.h>
#include <string>
#include <vector>

static const double PEAK = 4.6e12; // bytes a second that an H200 reads
static const size_t POOL = (size_t)3 << 29, WORKSPACE = 64 << 20;
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
    TRY(cudaMalloc(&ones, (MAX_WIDTH + 3 * MAX_ROWS) * 4)); // and the scales of a step
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

static bool put_tiles(const shape &s, int rows, const tiles_cut *cut) {
    dtiles a = {{next_weight(s), s.out, s.in, ELEMENT_E4M3, ones}, nullptr, {s.gated ? ENDING_GATED : ENDING_PLAIN, 0, 0, {}}};
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
               stream,
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
                stream,
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
                dtiles a = {{pool, s.out, s.in, ELEMENT_E4M3, ones}, nullptr, {s.gated ? ENDING_GATED : ENDING_PLAIN, 0, 0, {}}};
                int octets = up_to(units_of(&a), 8), most = most_octets(s.gated);
                for (int split = 1; split <= 8; split *= 2)
                    for (int passes = 1; passes <= 3; passes++) {
                        int at_once = blocks_at_once(split) / split, o = up_to(octets, at_once * passes);
                        if (o > most || o > 32 || (split > 1 && passes > 1))
                            continue;
                        for (int room : {224 << 10, 150 << 10, 110 << 10, 75 << 10}) {
                            tiles_cut c = {o, split, at_once * split, 2};
                            for (tiles_cut more = c; more.n_stages <= MAX_STAGES && shared_bytes(&a.ending, n, &more) <= (size_t)room;
                                 more.n_stages++)
                                c = more;
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

// ---- layers as a step has them --------------------------------------------------------------------------------------

/* What stands for attention: so many blocks that each read some of the cache and write some of the row, with shared memory as given. */
static __global__ void __launch_bounds__(192) attention_like(const uint4 *cache, int pieces, float *out, int n_out, const float *q) {
    let_next_start();
    wait_for_previous();
    uint4 sum = {};
    for (int i = threadIdx.x; i < pieces; i += blockDim.x) {
        uint4 v = __ldcs(cache + (size_t)blockIdx.x * pieces + i);
        sum.x ^= v.x, sum.y ^= v.y, sum.z ^= v.z, sum.w ^= v.w;
    }
    float v = q[blockIdx.x] + ((sum.x ^ sum.y ^ sum.z ^ sum.w) == 12345u);
    for (int i = threadIdx.x; i < n_out; i += blockDim.x)
        out[(size_t)blockIdx.x * n_out + i] = v * 1e-3f + (float)i * 1e-3f;
}

struct chain_cut {
    const char *name;
    int room[4];  // of shared memory, KB
    int split[4]; // 0: as chosen
    int attention_room;
};

static tiles_cut cut_in_room(const shape &s, int rows, int room, int split) {
    dtiles a = {{pool, s.out, s.in, ELEMENT_E4M3, ones}, nullptr, {s.gated ? ENDING_GATED : ENDING_PLAIN, 0, 0, {}}};
    return cut_in(&a, rows, split ? split : tiles_cut_of(&a, rows).split, room << 10);
}

/* left_out: a bit a node. */
static double time_chain(const model &m, int rows, const chain_cut &how, unsigned left_out) {
    const shape *s = m.layer.data();
    int width = (int)s[0].in, heads = (int)s[1].in, ffn = (int)s[3].in;
    launch l = {};
    l.stream = stream;
    l.n_tokens = rows;
    float *f = (float *)y; // residual, what is added, q, attention's
    dmat r = {f, width, width, ELEMENT_F32}, d = {f + (size_t)rows * width, width, width, ELEMENT_F32};
    dmat qkv = {f + (size_t)rows * width * 2, s[0].out, (int)s[0].out, ELEMENT_F32};
    dmat at = {f + (size_t)rows * (width * 2 + s[0].out), heads, heads, ELEMENT_F32};
    dmat act = {f + (size_t)rows * (width * 2 + s[0].out + heads), ffn, ffn, ELEMENT_F16}, none = {};
    float *scales = ones + MAX_WIDTH; // of twins
    dmat twin = {x8, width, width, ELEMENT_E4M3, scales}, twin_at = {x8 + (size_t)rows * width, heads, heads, ELEMENT_E4M3, scales + rows};
    dmat twin_act = {x8 + (size_t)rows * (width + heads), ffn, ffn, ELEMENT_E4M3, scales + 2 * rows};
    dadd_norm norm = {{ones, 1, width, ELEMENT_F32}, {}, 1e-6f, false, {}, 0, false};
    tiles_cut cut[4];
    for (int i = 0; i < 4; i++)
        cut[i] = cut_in_room(s[i], rows, how.room[i], how.split[i]);
    bool fine = true;
    auto product = [&](int i, dmat x, dmat to) {
        dtiles a = {
            {next_weight(s[i]), s[i].out, s[i].in, ELEMENT_E4M3, ones}, nullptr, {s[i].gated ? ENDING_GATED : ENDING_PLAIN, 0, 0, {}}};
        fine = fine && (left_out >> (i + 4) & 1 || launch_tiles_linear_cut(stream, rows, &a, x, to, &cut[i]) == cudaSuccess);
    };
    int n_blocks = std::min(264, rows * 4), pieces = rows * 272 * 1024 / 16 / n_blocks, n_out = rows * heads / n_blocks;
    cudaFuncSetAttribute(attention_like, cudaFuncAttributeMaxDynamicSharedMemorySize, how.attention_room << 10);
    double us = microseconds(
        stream,
        [&] {
            for (int i = 0; i < m.n_layers; i++) {
                if (!(left_out & 1))
                    launch_add_norm(&l, &norm, r, d, r, none, twin);
                product(0, twin, qkv);
                if (!(left_out & 2)) // reads what is the last of the pool
                    launch_node(attention_like, dim3(n_blocks), dim3(192), (size_t)how.attention_room << 10, stream,
                                (const uint4 *)(pool + POOL - ((size_t)128 << 20) * (i % 4 + 1)), pieces, (float *)at.at, n_out,
                                (const float *)qkv.at);
                if (!(left_out & 4))
                    launch_quantise(&l, rows, at, twin_at);
                product(1, twin_at, d);
                if (!(left_out & 1))
                    launch_add_norm(&l, &norm, r, d, r, none, twin);
                product(2, twin, act);
                if (!(left_out & 8))
                    launch_quantise(&l, rows, act, twin_act);
                product(3, twin_act, d);
            }
            return fine;
        },
        5);
    return us / m.n_layers;
}

static void chain(const std::vector<int> &rows) {
    const chain_cut cuts[] = {
        {"as chosen", {224, 224, 224, 224}, {}, 100},
        {"qkv and o whole", {224, 224, 224, 224}, {1, 1, 0, 0}, 100},
        {"qkv and o by two", {224, 224, 224, 224}, {2, 2, 0, 0}, 100},
        {"qkv, o and down by two", {224, 224, 224, 224}, {2, 2, 1, 2}, 100},
        {"down by two", {224, 224, 224, 224}, {0, 0, 0, 2}, 100},
        {"qkv, o whole, down by two", {224, 224, 224, 224}, {1, 1, 0, 2}, 100},
        {"rings of 118 and 104 KB, attention small", {120, 104, 120, 104}, {}, 1},
    };
    for (const model &m : {MODELS[0], MODELS[2]})
        for (int n : rows)
            for (const chain_cut &c : cuts) {
                double us = time_chain(m, n, c, 0);
                printf("%-12s M=%-3d %-52s layer %6.2f us", m.name, n, c.name, us);
                if (us < 0) {
                    printf("\n");
                    continue;
                }
                for (int i = 0; i < 4; i++) {
                    dending e = {m.layer[i].gated ? ENDING_GATED : ENDING_PLAIN, 0, 0, {}};
                    tiles_cut t = cut_in_room(m.layer[i], n, c.room[i], c.split[i]);
                    printf(" [%d/%d %d %zuK]", t.octets, t.split, t.n_stages, shared_bytes(&e, n, &t) >> 10);
                }
                static const char *const nodes[] = {"norms", "attention", "quantise o", "quantise down", "qkv", "o", "gate_up", "down"};
                for (int i = 0; i < 8; i++) // what the layer is shorter without it
                    printf(" %s %.1f", nodes[i], us - time_chain(m, n, c, 1u << i));
                printf("\n");
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
    (what == "table" ? table : what == "cuts" ? cuts : what == "chain" ? chain : step)(rows);
    return 0;
}
