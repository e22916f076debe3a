/* library.cu - what products take by cuBLASLt, each by the fastest of the algorithms that it proposes: the linears of
 * some models as an engine on the library would run them.
 *
 *     bench_library [table [ROWS ...]]    e4m3 with one scale a side, e4m3 with a scale a row of both, for which there
 *                                         is one algorithm, the head in 16 bits; each as launches behind one another in
 *                                         a graph, weights rotated past the L2, and what all linears of a step add up
 *                                         to. No bias, no activation. */
#include "backend/cuda/value.h"
#include "products.cuh"

static double time_cell(const char *name, const shape &s, int rows, bool row_scales) {
    double us = time_library(s, rows, false, s.weight == ELEMENT_E4M3 ? CUDA_R_16BF : CUDA_R_16F, row_scales).us;
    print_cell(name, us, s, rows);
    return us;
}

static void table(const model &m, int rows) {
    double one = 0, row = 0;
    for (const shape &s : m.layer) {
        printf("%-12s %-7s M=%-4d", m.name, s.name, rows);
        one += m.n_layers * time_cell("one scale", s, rows, false);
        row += m.n_layers * time_cell("a scale a row", s, rows, true);
        printf("\n");
    }
    printf("%-12s %-7s M=%-4d", m.name, m.head.name, rows);
    double head =
        time_cell("16 bits", in_16_bits(m).head, rows > 512 ? 1 : rows, false); // a prompt has one row of logits
    printf("\n%-12s all     M=%-4d one scale %.3f ms, %.0f tokens/s; a scale a row %.3f ms, %.0f tokens/s\n", m.name,
           rows, (one + head) / 1e3, rows / (one + head) * 1e6, (row + head) / 1e3, rows / (row + head) * 1e6);
    fflush(stdout);
}

int main(int argc, char **argv) {
    std::vector<int> sizes = rows_of(argc, argv, {1, 8, 32, 128, 256, 512, 2048});
    open_operands();
    for (const model &m : MODELS)
        for (int rows : sizes)
            table(m, rows);
    return 0;
}
