/* gemm_fp8_prefill.cu - times products of hundreds and thousands of rows (linear/fp8/gemm_fp8_prefill.cu)
 * beside the fastest of cuBLASLt's e4m3 products with one scale.
 *
 *     bench_gemm_fp8_prefill [ROWS ...]       the linears of some models: launches behind one another in a graph,
 *                                             weights rotated past the L2
 *     bench_gemm_fp8_prefill cuts [ROWS ...]  those by every cut
 *
 * Every figure twice: of a short graph, and steady, after half a second of the same, when power has taken the clock
 * down as it does in a step. Those of gated linears, ours, include scales and GATED_ACT; all others are unscaled
 * products in half precision. */
#include "backend/cuda/linear/fp8/gemm_fp8_gated.h"
#include "backend/cuda/linear/fp8/gemm_fp8_prefill.cu"
#include "backend/cuda/linear/fp8/gemm_fp8_prefill.h"
#include "backend/cuda/value.h"
#include "products.cuh"

static dmat input_of(const shape &s) { return {inputs, s.in, (int)s.in, ELEMENT_E4M3, ones}; }

static bool put_raw(const shape &s, int rows, int cut) {
    dmat out = {y, s.out, (int)s.out, ELEMENT_F16, nullptr};
    return launch_gemm_prefill_cut(stream, rows, weight_of(s), input_of(s), out, cut) == cudaSuccess;
}
static bool put_gated(const shape &s, int rows, int cut) {
    dgated a = {weight_of(s), nullptr, 0};
    dmat out = {y, s.width(), s.width(), ELEMENT_F16, nullptr};
    return launch_gemm_prefill_gated_cut(stream, rows, &a, input_of(s), out, cut) == cudaSuccess;
}

static void print_both(const char *name, const shape &s, int rows, const std::function<bool()> &put) {
    print_cell(name, time_launches(s, 7, put), s, rows);
    print_cell("steady", time_steadily(s, put), s, rows);
}

static void table(const shape &s, int rows) {
    library_times library = time_library(s, rows, true);
    print_cell("library", library.us, s, rows);
    print_cell("steady", library.steady_us, s, rows);
    int cut = gemm_prefill_cut_of(weight_of(s), rows);
    printf("  %s, tiles of %d, W shared by %d:", gemm_prefill_pays(weight_of(s), rows) ? "pays" : "does not pay",
           gemm_prefill_cut_at(cut).rows, gemm_prefill_cut_at(cut).sharers);
    print_both("raw", s, rows, [&] { return put_raw(s, rows, cut); });
    if (s.gated)
        print_both("gated", s, rows,
                   [&] { return put_gated(s, rows, gemm_prefill_pair_cut_of(weight_of(s), false, rows)); });
}

static void cuts(const shape &s, int rows) {
    for (int cut = 0; cut < GEMM_PREFILL_CUTS; cut++)
        if (gemm_prefill_takes_cut(rows, cut)) {
            printf("\n    tiles of %d, W shared by %d", gemm_prefill_cut_at(cut).rows,
                   gemm_prefill_cut_at(cut).sharers);
            print_both("", s, rows, [&] { return put_raw(s, rows, cut); });
        }
    for (int cut = 0; s.gated && cut < GEMM_PREFILL_PAIR_CUTS; cut++)
        if (gemm_prefill_takes_pair_cut(false, rows, cut)) {
            printf("\n    gated, tiles of %d, W shared by %d", gemm_prefill_pair_cut_at(cut).rows,
                   gemm_prefill_pair_cut_at(cut).sharers);
            print_both("", s, rows, [&] { return put_gated(s, rows, cut); });
        }
}

int main(int argc, char **argv) {
    bool tries = argc > 1 && std::string(argv[1]) == "cuts";
    std::vector<int> sizes = rows_of(tries ? argc : argc + 1, tries ? argv : argv - 1, {1024, 1536, 2048});
    open_operands();
    for (const model &m : MODELS)
        for (const shape &s : m.layer)
            for (int rows : sizes) {
                printf("%-12s %-7s M=%-4d", m.name, s.name, rows);
                (tries ? cuts : table)(s, rows);
                printf("\n");
                fflush(stdout);
            }
    return 0;
}
