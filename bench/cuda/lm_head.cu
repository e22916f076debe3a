/* lm_head.cu - times the LM head (src/backend/cuda/head/lm_head.cu) beside the fastest of cuBLASLt's products into
 * float32.
 *
 *     bench_lm_head [table [ROWS ...]]   heads of some models in 16 bits: launches behind one another in a graph,
 *                                     weights rotated past the L2, of rows that want no logits, and of rows that all do
 *     bench_lm_head cuts [ROWS ...]      other cuts of the first one than head_cut_of's
 *
 * Every figure twice: of a short graph, and steady, after half a second of the same, when power has taken the clock
 * down as it does in a step. The library's products write their logits. */
#include "backend/cuda/head/lm_head.cu"
#include "backend/cuda/head/lm_head.h"
#include "backend/cuda/value.h"
#include "products.cuh"

static struct launch l;
static drow *rows;
static dbest *bests;
static float *logits;

static void open_rows() {
    l.stream = stream;
    TRY(cudaMalloc(&rows, HEAD_MAX_ROWS * sizeof(drow)));
    TRY(cudaMalloc((void **)&l.plan.counts, 4 * sizeof(int)));
    TRY(cudaMalloc(&bests, HEAD_MAX_ROWS * HEAD_BESTS * sizeof(dbest)));
    TRY(cudaMalloc(&logits, (size_t)HEAD_MAX_ROWS * MAX_WIDTH * sizeof(float)));
    l.plan.rows = rows;
}

static void ask_for_rows(int n, bool written) {
    std::vector<drow> at(n);
    for (drow &r : at)
        r.is_plain = !written;
    int counts[4] = {n, n, n, written ? n : 0};
    TRY(cudaMemcpy(rows, at.data(), n * sizeof(drow), cudaMemcpyHostToDevice));
    TRY(cudaMemcpy((void *)l.plan.counts, counts, sizeof counts, cudaMemcpyHostToDevice));
}

static bool put_head(const shape &s, int n, const head_cut *cut) {
    dlm_head a = {weight_of(s), nullptr, 0};
    dmat x = {inputs, s.in, (int)s.in, ELEMENT_F16}, out = {logits, s.out, (int)s.out, ELEMENT_F32};
    head_cut c = cut ? *cut : head_cut_of(&a, n);
    return head_takes(&a, x, out, n) && launch_head_cut(&l, n, &a, x, out, bests, nullptr, &c) == cudaSuccess;
}

static void print_head(const char *name, const shape &s, int n, bool written, const head_cut *cut) {
    ask_for_rows(n, written);
    auto put = [&] { return put_head(s, n, cut); };
    print_cell(name, time_launches(s, 5, put), s, n);
    print_cell("steady", time_steadily(s, put), s, n);
}

static void table(const model &m, const std::vector<int> &sizes) {
    const shape &s = in_16_bits(m).head;
    for (int n : sizes) {
        library_times library = time_library(s, n, true, CUDA_R_32F);
        printf("%-12s M=%-4d", m.name, n);
        print_head("head", s, n, false, nullptr);
        print_head("written", s, n, true, nullptr);
        print_cell("library", library.us, s, n);
        print_cell("steady", library.steady_us, s, n);
        printf("\n");
        fflush(stdout);
    }
}

static void cuts(const model &m, const std::vector<int> &sizes) {
    const shape &s = in_16_bits(m).head;
    for (int n : sizes)
        for (int octets : {12, 16, 18, 24})
            for (int sharers = 1; sharers <= 2; sharers++) {
                head_cut c = {octets, head_blocks(sharers), head_stages(n, octets), sharers};
                if (octets > groups_of(n) * 8)
                    continue;
                printf("%-12s M=%-4d %d octets, %d stages, x shared by %d", m.name, n, c.octets, c.n_stages, c.sharers);
                print_head("", s, n, false, &c);
                printf("\n");
                fflush(stdout);
            }
}

int main(int argc, char **argv) {
    std::string what = argc > 1 ? argv[1] : "table";
    std::vector<int> sizes = rows_of(argc, argv, {1, 8, 16, 32, 64, 128, 192, 256, 384, 512});
    open_operands();
    open_rows();
    if (what == "cuts")
        cuts(MODELS[0], sizes);
    else
        for (const model &m : MODELS)
            table(m, sizes);
    return 0;
}
