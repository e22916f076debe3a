/* gemm_fp8_gated.cu - times LINEAR of many rows with GATED_ACT behind it (linear/fp8/gemm_fp8_gated.cu)
 * beside the fastest of cuBLASLt's e4m3 products with one scale.
 *
 *     bench_gemm_fp8_gated table [ROWS ...]    gate_up of some models: launches behind one another in a graph, weights
 *                                              rotated past the L2
 *     bench_gemm_fp8_gated cuts [ROWS ...]     other cuts of each than gated_cut_of's, the fastest first
 *     bench_gemm_fp8_gated cuts0 ...           of the first model (0, 1 and 2 there are)
 *
 * Every figure twice: of a short graph, and steady, after half a second of the same, when power has taken the clock
 * down as it does in a step. Ours includes scales and GATED_ACT; the library's is the unscaled products in half
 * precision. */
#include "backend/cuda/linear/fp8/gemm_fp8_gated.cu"
#include "backend/cuda/linear/fp8/gemm_fp8_gated.h"
#include "backend/cuda/value.h"
#include "products.cuh"

static dgated gated_of(const shape &s) { return {weight_of(s), nullptr, 0}; }

static bool put_wide(const shape &s, int rows, const gated_cut *cut) {
    dgated a = gated_of(s);
    dmat x = {inputs, s.in, (int)s.in, ELEMENT_E4M3, ones}, out = {y, s.width(), s.width(), ELEMENT_F16, nullptr};
    gated_cut c = cut ? *cut : gated_cut_of(&a, rows);
    return gated_takes(&a, x, out, rows) && gated_takes_cut(&a, rows, &c) &&
           launch_gemm_gated_cut(stream, rows, &a, x, out, &c) == cudaSuccess;
}

static double time_wide(const shape &s, int rows, const gated_cut *cut, int n_runs) {
    return time_launches(s, n_runs, [&] { return put_wide(s, rows, cut); });
}

static double time_wide_steadily(const shape &s, int rows, const gated_cut *cut) {
    return time_steadily(s, [&] { return put_wide(s, rows, cut); });
}

static void table(const model &m, const std::vector<int> &rows) {
    const shape &s = m.layer[2];
    for (int n : rows) {
        library_times library = time_library(s, n, true);
        printf("%-12s %-7s M=%-4d", m.name, s.name, n);
        print_cell("wide", time_wide(s, n, nullptr, 7), s, n);
        print_cell("steady", time_wide_steadily(s, n, nullptr), s, n);
        print_cell("library", library.us, s, n);
        print_cell("steady", library.steady_us, s, n);
        printf("\n");
        fflush(stdout);
    }
}

static void print_cut(double us, double steady_us, const gated_cut &c) {
    static const char *const SHARED[] = {"nothing shared", "W shared", "tokens shared"};
    printf("    %6.2f us, %6.2f steady: %d octets, %d parts, %d blocks, %d stages, %s\n", us, steady_us, c.octets,
           c.parts, c.n_blocks, c.n_stages, SHARED[c.shared]);
}

static void cuts(const model &m, const std::vector<int> &rows) {
    const shape &s = m.layer[2];
    for (int n : rows) {
        std::vector<std::pair<double, gated_cut>> tried;
        dgated a = gated_of(s);
        for (gated_sharing shared : {GATED_SHARES_NOTHING, GATED_SHARES_W, GATED_SHARES_X})
            for (int octets : {6, 7, 9, 11})
                for (int parts : {2, 3, 4}) {
                    gated_cut c = {octets, parts, gated_blocks(shared), gated_stages(octets, parts), shared};
                    double us = gated_takes_cut(&a, n, &c) ? time_wide(s, n, &c, 2) : -1;
                    if (us > 0)
                        tried.push_back({us, c});
                }
        std::sort(tried.begin(), tried.end(), [](auto &p, auto &q) { return p.first < q.first; });
        gated_cut c = gated_cut_of(&a, n);
        library_times library = time_library(s, n, true);
        printf("%s M=%d: library %.2f us, %.2f steady, chosen of %zu:\n", m.name, n, library.us, library.steady_us,
               tried.size());
        print_cut(time_wide(s, n, &c, 3), time_wide_steadily(s, n, &c), c);
        for (size_t i = 0; i < tried.size() && i < 5; i++)
            print_cut(tried[i].first, time_wide_steadily(s, n, &tried[i].second), tried[i].second);
        fflush(stdout);
    }
}

int main(int argc, char **argv) {
    std::string what = argc > 1 ? argv[1] : "table";
    std::vector<int> rows = rows_of(argc, argv, {128, 256, 512});
    open_operands();
    for (size_t i = 0; i < MODELS.size(); i++)
        if (what.back() < '0' || what.back() > '9' || what.back() - '0' == (int)i)
            (what.substr(0, 4) == "cuts" ? cuts : table)(MODELS[i], rows);
    return 0;
}
