/* test_gemm_fp8_split_k.cu - unscaled products of many rows (src/backend/cuda/linear/fp8/gemm_fp8_split_k.cu) against
 * double precision: every cut, random shapes and numbers of rows, from rows of W and from near copies; and when the
 * node behind starts. */
#include "backend/cuda/linear/fp8/gemm_fp8_split_k.cu"
#include "backend/cuda/linear/fp8/gemm_fp8_split_k.h"
#include "backend/cuda/qact/quantise.h"
#include "backend/cuda/value.h"

#include "l2_copy_cases.cuh"
#include "requant_cases.cuh"

/* Copies of W as it is then, for one case in two. */
struct near_copies {
    dl2_copy copy;
    const dl2_copy *at[L2_COPY_SHAPES] = {};
    bool is_asked = false;
    void ask(const problem &p, int cut, uint64_t seed) {
        is_asked = true;
        if (hash(seed) % 2 && l2_copy_of(stream, w_of(p), {split_k_cut_at(cut).rows, 1}, seed, &copy))
            at[hash(seed) / 2 % L2_COPY_SHAPES] = &copy;
    }
};

/* Where the product reads a near copy, the rows themselves are NaN. */
static void check(int out, int in, int n, int cut, uint64_t seed, bool alike = false) {
    problem p = {out, in, n, false, false, 0, ELEMENT_F16, alike};
    fill_operands(p, seed, 130, {1, 1}, {1, 1}); // unscaled products have no scales
    split_k_cut c = split_k_cut_at(cut);
    begin(p);
    printf("tiles of %d, terms in %d parts, W shared by %d: ", c.rows, c.split, c.sharers);
    if (!split_k_takes(w_of(p), x_of(p), y_of(p), n)) {
        refuse();
        return;
    }
    near_copies l2_copy;
    l2_copy.ask(p, cut, seed);
    dweight w = w_of(p);
    if (l2_copy_for(l2_copy.at, &INSTANCES[cut], n)) {
        printf("near, ");
        w.at = nan_bytes((size_t)p.out * p.in);
    }
    run(p, [&](dmat y, dmat) { return launch_gemm_split_k_cut(stream, n, w, l2_copy.at, x_of(p), y, nullptr, cut); });
    judge(p, {c.split, true}, RAW_SUMS);
}

/* Rows are left to be made, of as many tiles as have a place at once. */
static void check_settling(int out, int in, int n, int cut, uint64_t seed) {
    problem p = {out, in, n, false, false, 0, ELEMENT_F16};
    split_k_cut c = split_k_cut_at(cut);
    begin(p);
    printf("tiles of %d, terms in %d parts, ", c.rows, c.split);
    near_copies l2_copy;
    check_rest(p, seed, [&](dmat x, dmat y, const drequant *requant) {
        if (requant && !l2_copy.is_asked)
            l2_copy.ask(p, cut, seed);
        return launch_gemm_split_k_cut(stream, n, w_of(p), l2_copy.at, x, y, requant, cut);
    });
}

// ---- the node behind ------------------------------------------------------------------------------------------------

/* Lets the next node start, and writes late. */
static __global__ void write_late(uint32_t *at, uint32_t value) {
    let_next_start();
    wait_for_previous();
    long long begun = clock64();
    while (clock64() - begun < 200000)
        ;
    at[threadIdx.x] = value;
}
static __global__ void read_before_waiting(const uint32_t *at, uint32_t value, unsigned long long *n_wrong) {
    bool wrong = __ldcg(at + threadIdx.x) != value;
    wait_for_previous();
    if (wrong)
        atomicAdd(n_wrong, 1);
}

/* Who starts behind the product finds what the node before the product left without waiting for the product. */
static void check_start_of_next(int cut, int n) {
    problem p = {2 * split_k_cut_at(cut).rows, 4096, n, false, false, 0, ELEMENT_F16};
    fill_operands(p, (uint64_t)cut + 1, 130, {1, 1}, {1, 1});
    begin(p);
    for (uint32_t value = 1; value <= (is_brief() ? 1 : 8); value++) {
        launch_node(write_late, 1, 32, 0, stream, d.absmax, value);
        MUST(launch_gemm_split_k_cut(stream, n, w_of(p), nullptr, x_of(p), y_of(p), nullptr, cut));
        launch_node(read_before_waiting, 1, 32, 0, stream, (const uint32_t *)d.absmax, value, &d.c->wrong);
    }
    counts found;
    MUST(cudaMemcpyAsync(&found, d.c, sizeof found, cudaMemcpyDeviceToHost, stream));
    MUST(cudaStreamSynchronize(stream));
    printf("the next node starts %s\n", found.wrong ? "TOO EARLY" : "when all before has ended");
    n_bad += found.wrong != 0;
}

int main(int argc, char **argv) {
    uint64_t seed = seed_of(argc, argv);
    open_operands(seed, (size_t)8192 * 22016, 700 * (22016 + 32), 700 * 8192, 700 * 8192);
    auto random = [&](int n) { return (int)(hash(seed++) % (unsigned)n); };
    for (int cut = 0; cut < SPLIT_K_CUTS; cut++) {
        if (!is_of_this_part(cut))
            continue;
        check_start_of_next(cut, 100);
        if (!is_brief())
            check_start_of_next(cut, 200);
        check(8, 16, 1, cut, seed); // parts without terms
        check(48, 128, 65, cut, seed);
        check(split_k_cut_at(cut).rows, 512, 128, cut, seed);
        if (!is_brief() || cut % 3 == (int)(seed % 3))
            check(3 * split_k_cut_at(cut).rows, 4096, 256, cut, seed); // rings go round
        check(split_k_cut_at(cut).rows, 16 * (1 + random(is_brief() ? 200 : 1184)), 1 + random(130), cut, seed, true);
        if (is_brief()) {
            check(8 * (1 + random(60)), 16 * (1 + random(80)), 1 + random(200), cut, seed);
            continue;
        }
        for (int i = 0; i < 12; i++)
            check(8 * (1 + random(i % 4 ? 100 : 600)), 16 * (1 + random(i % 3 ? 100 : 500)),
                  1 + random(i % 4 ? 300 : 550), cut, seed);
    }
    for (int i = 0; i < (is_brief() ? 6 : 60); i++) {
        if (!is_of_this_part(i))
            continue;
        int cut = random(SPLIT_K_CUTS), n = 1 + random(is_brief() ? 150 : 512),
            in = 16 * (1 + random(is_brief() ? 40 : 600));
        split_k_cut c = split_k_cut_at(cut);
        int tiles = 1 + random(blocks_of(&INSTANCES[cut]) / (c.split * c.sharers) / up_to(n, TOKENS * c.sharers));
        check_settling(split_k_cut_at(cut).rows * tiles, in, n, cut, seed++);
    }
    if (is_brief() || !is_of_this_part(0))
        return summary();
    struct shape_of {
        int out, in;
    };
    for (shape_of s : {shape_of{4608, 3584}, {3584, 3584}, {3584, 18944}, {4096, 14336}, {5376, 21504}})
        for (int n : {65, 96, 128, 160, 192, 224, 256, 448, 512}) {
            int cut = split_k_cut_of({d.w, s.out, s.in, ELEMENT_E4M3, nullptr}, n);
            if (cut >= 0)
                check(s.out, s.in, n, cut, seed++);
        }
    return summary();
}
