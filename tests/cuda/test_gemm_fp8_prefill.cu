/* test_gemm_fp8_prefill.cu - products of hundreds and thousands of rows (linear/fp8/gemm_fp8_prefill.cu)
 * against double precision: raw ones by every cut, and pairs with GATED_ACT behind them; random shapes and numbers of
 * rows. */
#include "backend/cuda/linear/fp8/gemm_fp8_gated.h"
#include "backend/cuda/linear/fp8/gemm_fp8_prefill.cu"
#include "backend/cuda/linear/fp8/gemm_fp8_prefill.h"
#include "backend/cuda/value.h"

#include "product_cases.cuh"

static void check(int out, int in, int n, int cut, uint64_t seed, bool alike = false) {
    problem p = {out, in, n, false, false, 0, ELEMENT_F16, alike};
    if (!gemm_prefill_takes_cut(n, cut))
        return;
    fill_operands(p, seed, 260, {1, 1}, {1, 1}); // unscaled products have no scales
    begin(p);
    printf("tiles of %d, shared by %d: ", gemm_prefill_cut_at(cut).rows, gemm_prefill_cut_at(cut).sharers);
    if (!gemm_prefill_takes(w_of(p), x_of(p), y_of(p), n)) {
        refuse();
        return;
    }
    run(p, [&](dmat y, dmat) { return launch_gemm_prefill_cut(stream, n, w_of(p), x_of(p), y, cut); });
    judge(p, {1, true}, RAW_SUMS);
}

static void check_gated(const problem &p, int cut, uint64_t seed) {
    if (!gemm_prefill_takes_pair_cut(p.bias, p.n, cut))
        return;
    fill_operands(p, seed, 260, of_ones(p), {0.5f, 1.5f});
    dgated a = {w_of(p), p.bias ? d.bias : nullptr, p.act};
    begin(p);
    printf("tiles of %d, shared by %d: ", gemm_prefill_pair_cut_at(cut).rows, gemm_prefill_pair_cut_at(cut).sharers);
    if (!gemm_prefill_gated_takes(&a, x_of(p), y_of(p), p.n)) {
        refuse();
        return;
    }
    run(p, [&](dmat y, dmat qact) {
        a.qact = qact;
        return launch_gemm_prefill_gated_cut(stream, p.n, &a, x_of(p), y, cut);
    });
    judge(p, {1, true}, BY_FAST_TANH);
}

int main(int argc, char **argv) {
    uint64_t seed = seed_of(argc, argv);
    open_operands(seed, (size_t)8192 * 22016, (size_t)2600 * (22016 + 32), (size_t)2600 * 8200, (size_t)2400 * 8192);
    d.leaves_out = true;
    auto random = [&](int n) { return (int)(hash(seed++) % (unsigned)n); };
    for (int cut = 0; cut < GEMM_PREFILL_CUTS; cut++) {
        check(48, 144, 257, cut, seed);
        check(8 * (1 + random(80)), 16 * (1 + random(60)), 1 + random(300), cut, seed);
        if (is_brief())
            continue;
        check(8, 16, 1, cut, seed);
        check(gemm_prefill_cut_at(cut).rows, 640, 512, cut, seed);
        check(gemm_prefill_cut_at(cut).rows * 3, 256, 1024, cut, seed); // more tiles than one
        check(320, 16 * (1 + random(600)), 512, cut, seed, true);
        for (int i = 0; i < 10; i++)
            check(8 * (1 + random(i % 4 ? 100 : 600)), 16 * (1 + random(i % 3 ? 100 : 500)),
                  1 + random(i % 2 ? 600 : 1200), cut, seed);
    }
    for (int i = 0; i < (is_brief() ? GEMM_PREFILL_PAIR_CUTS : 60); i++) {
        int columns = i % 4 || is_brief() ? 100 : 500, pieces = is_brief() ? 60 : 300,
            rows = is_brief() ? 300 : 300 * (2 + i % 3);
        check_gated({16 * (1 + random(columns)), 16 * (1 + random(pieces)), 1 + random(rows), true, random(2) != 0,
                     random(2), random(2) ? ELEMENT_F16 : ELEMENT_BF16, i % 8 == 7},
                    i % GEMM_PREFILL_PAIR_CUTS, seed);
    }
    if (is_brief())
        return summary();
    for (int cut = 0; cut < GEMM_PREFILL_PAIR_CUTS; cut++) {
        int rows = gemm_prefill_pair_cut_at(cut).rows;
        for (int act = 0; act < 2; act++)
            for (int columns : {rows / 2, rows / 2 + 8, 4 * rows - 8}) // of a tile, of more
                check_gated({2 * columns, 640, 512, true, false, act, act ? ELEMENT_BF16 : ELEMENT_F16}, cut, seed++);
        check_gated({30080, 3584, 640, true, false, 0, ELEMENT_F16}, cut, seed);
        check_gated({8192, 1024, 2048, true, false, 1, ELEMENT_BF16}, cut, seed);
    }
    for (int cut = 0; cut < GEMM_PREFILL_CUTS; cut++)
        for (int n : {2304, 2048}) // eight tiles of tokens are shared by two blocks
            check(8192, 384, n, cut, seed++);
    struct shape_of {
        int out, in;
    };
    for (shape_of s : {shape_of{4608, 3584}, {3584, 3584}, {3584, 18944}, {5376, 21504}})
        for (int n : {1024, 1408, 2048})
            check(s.out, s.in, n, gemm_prefill_cut_of({d.w, s.out, s.in, ELEMENT_E4M3, nullptr}, n), seed++);
    return summary();
}
