/* test_gemm_fp8_gated.cu - LINEAR of many rows from e4m3 values with GATED_ACT
 * (linear/fp8/gemm_fp8_gated.cu) against double precision: random shapes and numbers of tokens, biases,
 * cuts of every kind; from rows of W, and from near copies (l2_copy.h) while rows are NaN. */
#include "backend/cuda/linear/fp8/gemm_fp8_gated.cu"
#include "backend/cuda/linear/fp8/gemm_fp8_gated.h"
#include "backend/cuda/value.h"

#include "l2_copy_cases.cuh"
#include "product_cases.cuh"

static const char *const SHARED[] = {"nothing shared", "W shared", "tokens shared"};

static void check(const problem &p, const gated_cut *cut, uint64_t seed) {
    fill_operands(p, seed, 16, of_ones(p), {0.5f, 1.5f});
    dgated a = {w_of(p), p.bias ? d.bias : nullptr, p.act};
    gated_cut c = cut ? *cut : gated_cut_of(&a, p.n);
    dl2_copy l2_copy;
    if (hash(seed) % 2 && l2_copy_of(stream, a.w, {c.octets * 16, 2}, seed, &l2_copy)) {
        a.l2_copy = &l2_copy;
        a.w.at = nan_bytes((size_t)p.out * p.in);
    }
    begin(p);
    printf("%d octets, %d parts, %s, %d blocks, %d stages%s: ", c.octets, c.parts, SHARED[c.shared], c.n_blocks,
           c.n_stages, a.l2_copy ? ", near" : "");
    if (!gated_takes(&a, x_of(p), y_of(p), p.n) || !gated_takes_cut(&a, p.n, &c)) {
        refuse();
        return;
    }
    run(p, [&](dmat y, dmat qact) {
        a.qact = qact;
        return launch_gemm_gated_cut(stream, p.n, &a, x_of(p), y, &c);
    });
    judge(p, {1, true}, BY_FAST_TANH);
}

int main(int argc, char **argv) {
    uint64_t seed = seed_of(argc, argv);
    open_operands(seed, 140 << 20, 700 * 22000, 700 * 38000, 600 * 38000);
    d.leaves_out = true;
    auto random = [&](int n) { return (int)(hash(seed++) % (unsigned)n); };
    // One tile, two pieces; then more of each, and pieces that do not go into the rings.
    check({48, 144, 65, true, false, 0, ELEMENT_F16}, nullptr, seed);
    check({128, 512, 128, true, true, 1, ELEMENT_BF16}, nullptr, seed);
    for (int i = 0; i < (is_brief() ? 3 : 40); i++)
        check({16 * (1 + random(is_brief() ? 100 : 200)), 16 * (9 + random(100)), 1 + random(is_brief() ? 300 : 512),
               true, random(2) != 0, random(2), random(2) ? ELEMENT_F16 : ELEMENT_BF16},
              nullptr, seed);
    for (int i = 0; i < (is_brief() ? 2 : 12); i++)
        check({16 * (1 + random(40)), 16 * (9 + random(i % 2 ? 300 : 1000)), 1 + random(300), true, false, i % 2,
               ELEMENT_F16, true},
              nullptr, seed);
    if (!is_brief()) {
        for (int n : {65, 128, 192, 256, 300, 512})
            check({37888, 3584, n, true, n % 8 != 0, 0, ELEMENT_F16}, nullptr, seed);
        check({27264, 5376, 256, true, false, 1, ELEMENT_BF16}, nullptr, seed);
    }
    const int OCTETS[] = {6, 7, 9, 11};
    for (int i = 0; i < (is_brief() ? 8 : 250);) {
        int n = 1 + random(i % 5 ? 300 : 600), out = 16 * (1 + random(i % 4 || is_brief() ? 100 : 600));
        int in = 16 * (1 + random(is_brief() ? 60 : 300));
        gated_cut c = {};
        c.shared = (gated_sharing)random(3);
        c.octets = OCTETS[random(4)];
        c.parts = 2 + random(3);
        int sharers = c.shared == GATED_SHARES_NOTHING ? 1 : 2;
        c.n_blocks = (1 + random(gated_blocks(c.shared) / sharers)) * sharers;
        c.n_stages = 2 + random(4);
        dgated a = {{nullptr, out, in, ELEMENT_E4M3, nullptr}};
        if (!gated_takes_cut(&a, n, &c))
            continue;
        check({out, in, n, true, random(2) != 0, random(2), i % 2 ? ELEMENT_F16 : ELEMENT_BF16}, &c, seed);
        i++;
    }
    return summary();
}
