/* test_split.cu - raw products of many rows (src/backend/cuda/split.cu) against double precision: every cut, random shapes and numbers
 * of rows. */
#include "backend/cuda/split.cu"

#include "product_cases.cuh"

static void check(int out, int in, int n, int cut, uint64_t seed) {
    problem p = {out, in, n, false, false, 0, ELEMENT_F16};
    fill_operands(p, seed, 130, {1, 1}, {1, 1}); // raw products have no scales
    split_cut c = split_cut_at(cut);
    begin(p);
    printf("tiles of %d, terms in %d parts: ", c.rows, c.split);
    if (!split_takes(w_of(p), x_of(p), y_of(p), n)) {
        refuse();
        return;
    }
    run(p, [&](dmat y) { return launch_split_product_cut(stream, n, w_of(p), x_of(p), y, cut); });
    judge(p, {loss_of(in), RAW_UNIT});
}

int main(int argc, char **argv) {
    uint64_t seed = seed_of(argc, argv);
    open_operands(seed, (size_t)8192 * 22016, 700 * (22016 + 32), 700 * 8192, 700 * 8192);
    auto random = [&](int n) { return (int)(hash(seed++) % (unsigned)n); };
    for (int cut = 0; cut < SPLIT_CUTS; cut++) {
        check(8, 16, 1, cut, seed); // parts without terms
        check(48, 128, 65, cut, seed);
        check(split_cut_at(cut).rows, 512, 128, cut, seed);
        if (is_brief()) {
            check(8 * (1 + random(60)), 16 * (1 + random(80)), 1 + random(200), cut, seed);
            continue;
        }
        for (int i = 0; i < 12; i++)
            check(8 * (1 + random(i % 4 ? 100 : 600)), 16 * (1 + random(i % 3 ? 100 : 500)), 1 + random(i % 4 ? 300 : 550), cut, seed);
    }
    if (is_brief())
        return summary();
    struct shape_of {
        int out, in;
    };
    for (shape_of s : {shape_of{4608, 3584}, {3584, 3584}, {3584, 18944}, {4096, 14336}, {5376, 21504}})
        for (int n : {65, 96, 128, 192, 224, 256}) {
            int cut = split_cut_of({d.w, s.out, s.in, ELEMENT_E4M3, nullptr}, n);
            if (cut >= 0)
                check(s.out, s.in, n, cut, seed++);
        }
    return summary();
}
