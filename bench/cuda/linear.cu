/* linear.cu - times LINEAR of a few rows on the device: our weight stream beside cuBLASLt, shape by shape, and all of a
 * step.
 *
 *   build/cuda/bench_linear [table|cuts|step] [rows ...]
 *     table   every shape and number of rows: microseconds, GB/s of the weight, per cent of 4.6 TB/s; nodes start early
 *             unless GYRE_EARLY_START=0; cuBLASLt's best of 16 (e4m3 x e4m3 with one scale, or 16 bit)
 *     cuts    which cut into blocks and warps is fastest, the chosen one, and the three best
 *     step    all linears of a model's step in their order, without what lies between */
#include "backend/cuda/linear/ending.h"
#include "backend/cuda/linear/gemv.h"
#include "backend/cuda/value.h"
#include "products.cuh"

#include <cstring>

static const std::vector<model> ALL_MODELS = {MODELS[0], MODELS[1], in_16_bits(MODELS[1]), MODELS[2]};

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

static dmat input_of(const shape &s) { return {inputs, s.in, (int)s.in, ELEMENT_F16, nullptr}; }
static dmat output_of(const shape &s) {
    return {y, s.width(), s.width(), s.gated ? ELEMENT_F16 : ELEMENT_F32, nullptr};
}
static dgemv gemv_of(const shape &s) {
    dgemv a = {};
    a.w = weight_of(s);
    a.ending.kind = s.gated ? ENDING_GATED : ENDING_PLAIN;
    return a;
}

static double time_stream(const shape &s, int rows, const gemv_cut *cut, int n_runs) {
    dgemv first = gemv_of(s);
    if (!gemv_takes(&first, input_of(s), output_of(s), rows))
        return -1;
    struct launch l = {};
    l.stream = stream;
    return time_launches(s, n_runs, [&] {
        dgemv a = gemv_of(s);
        gemv_cut usual = gemv_cut_of(&a, rows);
        launch_gemv_cut(&l, rows, &a, input_of(s), output_of(s), cut ? cut : &usual);
        return cudaGetLastError() == cudaSuccess;
    });
}

static void table(const std::vector<int> &rows) {
    bool early = !getenv("GYRE_EARLY_START") || atoi(getenv("GYRE_EARLY_START"));
    for (const model &m : ALL_MODELS) {
        std::vector<shape> all = m.layer;
        all.push_back(m.head);
        std::vector<double> ours(rows.size()), theirs(rows.size());
        for (size_t i = 0; i < all.size(); i++) {
            const shape &s = all[i];
            for (size_t r = 0; r < rows.size(); r++) {
                printf("%s %s M=%d", m.name, s.name, rows[r]);
                double us = time_stream(s, rows[r], nullptr, 7), library = -1;
                print_cell(early ? "stream" : "stream, none early", us, s, rows[r]);
                if (early) {
                    library = time_library(s, rows[r], false).us;
                    print_cell("library", library, s, rows[r]);
                }
                printf("\n");
                fflush(stdout);
                double times = i + 1 == all.size() ? 1 : m.n_layers;
                ours[r] += times * (us > 0 ? us : 1e9);
                theirs[r] += times * (library > 0 ? library : 1e9);
            }
        }
        for (size_t r = 0; r < rows.size(); r++)
            printf("%s all linears M=%d: stream %.3f ms %.0f tokens/s, library %.3f ms %.0f tokens/s\n", m.name,
                   rows[r], ours[r] / 1e3, rows[r] / ours[r] * 1e6, theirs[r] / 1e3, rows[r] / theirs[r] * 1e6);
    }
}

static std::string cut_name(const gemv_cut &c) {
    char text[80];
    snprintf(text, sizeof text, "%dx16 rows, %dx%d warps, cluster %d, %d blocks%s", c.m_tiles, c.row_warps,
             c.column_warps, c.cluster, c.n_blocks, c.deep ? ", deep" : "");
    return text;
}

static void cuts(const std::vector<int> &rows) {
    for (const model &m : ALL_MODELS) {
        std::vector<shape> all = m.layer;
        all.push_back(m.head);
        for (const shape &s : all)
            for (int n : rows) {
                std::vector<std::pair<double, gemv_cut>> tried;
                dgemv first = gemv_of(s);
                gemv_cut usual = gemv_cut_of(&first, n);
                for (int tiles = 1; tiles <= GEMV_MAX_M_TILES; tiles++)
                    for (int cluster = 1; cluster <= 8; cluster *= 2)
                        for (int columns = 1; columns <= 8; columns *= 2)
                            for (int deep = 0; deep <= 1; deep++) {
                                gemv_cut c = {tiles, 8 / columns, columns, cluster, gemv_blocks(cluster), deep != 0};
                                if (cluster > 2 * usual.cluster || (deep && (n > 8 || cluster > 1)) ||
                                    !gemv_takes_cut(&first, n, &c))
                                    continue;
                                double us = time_stream(s, n, &c, 2);
                                if (us > 0)
                                    tried.push_back({us, c});
                            }
                std::sort(tried.begin(), tried.end(), [](auto &a, auto &b) { return a.first < b.first; });
                printf("%s %s M=%d: chosen %.2f us (%s)\n", m.name, s.name, n, time_stream(s, n, &usual, 5),
                       cut_name(usual).c_str());
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
    for (const model &m : ALL_MODELS)
        for (int n : rows) {
            auto put = [&](const shape &s) {
                dgemv a = gemv_of(s);
                launch_gemv(&l, n, &a, input_of(s), output_of(s));
            };
            bool takes = true;
            for (const shape &s : m.layer) {
                dgemv a = gemv_of(s);
                takes &= gemv_takes(&a, input_of(s), output_of(s), n);
            }
            if (!takes)
                continue;
            double us = microseconds(
                stream,
                [&] {
                    for (int i = 0; i < m.n_layers; i++)
                        for (const shape &s : m.layer)
                            put(s);
                    put(m.head);
                    return cudaGetLastError() == cudaSuccess;
                },
                5);
            print_step(m, n, us, m.layer_bytes() * m.n_layers + (double)m.head.bytes());
        }
}

int main(int argc, char **argv) {
    std::string what = argc > 1 ? argv[1] : "table";
    std::vector<int> rows = rows_of(argc, argv, {1, 2, 4, 8, 16, 24, 32, 48, 64});
    open_operands();
    double us = microseconds(
        stream,
        [&] { return read_all<<<132 * 8, 512, 0, stream>>>((const uint4 *)pool, POOL / 16, (unsigned *)y), true; }, 5);
    printf("reading alone: %.0f GB/s\n", POOL / us / 1e3);
    for (int n = 1; n <= GEMV_MAX_ROWS; n *= 2)
        for (const shape &s : MODELS[0].layer) {
            dgemv a = gemv_of(s);
            printf("%s M=%d: %s\n", s.name, n, cut_name(gemv_cut_of(&a, n)).c_str());
        }
    if (what == "table")
        table(rows);
    else if (what == "cuts")
        cuts(rows);
    else
        step(rows);
    return 0;
}
