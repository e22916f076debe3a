/* test_gemm_fp8_small_m.cu - LINEAR from e4m3 values by tiles (src/backend/cuda/linear/fp8/gemm_fp8_small_m.cu) against
 * double precision: random shapes and every number of tokens, biases, gated pairs, all cuts. */
#define BARRIER_SPIN_LIMIT 20000000
#include "backend/cuda/linear/ending.h"
#include "backend/cuda/linear/fp8/gemm_fp8_small_m.cu"
#include "backend/cuda/linear/fp8/gemm_fp8_small_m.h"
#include "backend/cuda/qact/quantise.h"
#include "backend/cuda/value.h"

#include "requant_cases.cuh"

/* Activations as kernels have them against double, gates from -80 to 80: relative errors; an up of 1. */
static __global__ void worst_activation(double *worst) {
    double k = -80 + 160.0 * (blockIdx.x * blockDim.x + threadIdx.x) / (gridDim.x * blockDim.x);
    float gate = (float)k;
    small_m_args a = {};
    double off = fabs(ended_pair<GATED_SILU>(a, gate, 1) / activated(0, gate, 1) - 1);
    if (gate > -4) // beyond, what tanh leaves of 1 + tanh in double is noise before it is here
        off = fmax(off, fabs(ended_pair<GATED_GELU_TANH>(a, gate, 1) / activated(1, gate, 1) - 1));
    if (gate != 0)
        atomicMax((unsigned long long *)worst,
                  (unsigned long long)__double_as_longlong(off == off ? off : INFINITY)); // bits of sizes are ordered
}

static void check(const problem &p, const small_m_cut *cut, uint64_t seed) {
    fill_operands(p, seed, SMALL_M_MAX_ROWS + 16 - p.n, of_ones(p), {0.5f, 1.5f});
    dsmall_m a = {w_of(p), p.bias ? d.bias : nullptr, {p.gated ? ENDING_GATED : ENDING_PLAIN, p.act, LIMIT}};
    small_m_cut c = cut ? *cut : small_m_cut_of(&a, p.n);
    begin(p);
    printf("%d octets, split %d, %d blocks, %d stages: ", c.octets, c.split, c.n_blocks, c.n_stages);
    if (!small_m_takes(&a, x_of(p), y_of(p), p.n)) {
        refuse();
        return;
    }
    run(p, [&](dmat y, dmat qact) {
        a.qact = qact;
        return launch_gemm_small_m_cut(stream, p.n, &a, x_of(p), y, &c);
    });
    judge(p, {c.split, false}, SCALED);
}

/* Rows are left to be made; all blocks have a place at once. */
static void check_settling(int out, int in, int n, uint64_t seed) {
    problem p = {out, in, n, false, false, 0, ELEMENT_F16};
    dsmall_m a = {w_of(p), nullptr, {ENDING_PLAIN, 0, 0}};
    small_m_cut c = small_m_cut_of(&a, n);
    begin(p);
    printf("%d octets, split %d, %d blocks, ", c.octets, c.split, c.n_blocks);
    check_rest(p, seed, [&](dmat x, dmat y, const drequant *requant) {
        a.requant = requant ? *requant : drequant{};
        return launch_gemm_small_m_cut(stream, n, &a, x, y, &c);
    });
}

static void check_activations() {
    double *worst = (double *)d.products, got;
    MUST(cudaMemset(worst, 0, sizeof *worst));
    worst_activation<<<4096, 256, 0, stream>>>(worst);
    MUST(cudaStreamSynchronize(stream));
    MUST(cudaMemcpy(&got, worst, sizeof got, cudaMemcpyDeviceToHost));
    printf("activations: %.2e of their size\n", got);
    n_bad += !(got <= 1e-5);
}

int main(int argc, char **argv) {
    uint64_t seed = seed_of(argc, argv);
    open_operands(seed, 140 << 20, 160 * 32768, 160 * 40000, 64 * 40000);
    auto random = [&](int n) { return (int)(hash(seed++) % (unsigned)n); };
    auto random_element = [&](bool gated) {
        int r = random(gated ? 2 : 3);
        return r == 0 ? ELEMENT_F16 : r == 1 ? ELEMENT_BF16 : ELEMENT_F32;
    };
    // One tile, one piece; then more of each.
    check({64, 128, 16, false, false, 0, ELEMENT_F32}, nullptr, seed);
    check({128, 512, 16, false, true, 0, ELEMENT_F32}, nullptr, seed);
    check({128, 512, 16, true, true, 0, ELEMENT_F16}, nullptr, seed);
    for (int n = 1; n <= SMALL_M_MAX_ROWS; n += is_brief() ? 1 + random(20) : 1) {
        bool gated = random(2);
        check({16 * (1 + random(200)), 16 * (1 + random(100)), n, gated, random(2) != 0, random(5),
               random_element(gated)},
              nullptr, seed);
    }
    for (int i = 0; i < (is_brief() ? 2 : 12); i++)
        check({16 * (1 + random(40)), 16 * (1 + random(1000)), 1 + random(SMALL_M_MAX_ROWS), i % 2 == 0, false, 0,
               ELEMENT_F16, true},
              nullptr, seed);
    if (!is_brief())
        for (int n : {16, 33, 64}) {
            check({4608, 3584, n, false, true, 0, ELEMENT_F32}, nullptr, seed);
            check({3584, 3584, n, false, false, 0, ELEMENT_F32}, nullptr, seed);
            check({37888, 3584, n, true, false, 0, ELEMENT_F16}, nullptr, seed);
            check({3584, 18944, n, false, false, 0, ELEMENT_F32}, nullptr, seed);
            check({5376, 21504, n, false, false, 0, ELEMENT_F16}, nullptr, seed);
            check({16384, 5376, n, false, false, 0, ELEMENT_F16}, nullptr, seed);
        }
    for (int i = 0; i < (is_brief() ? 8 : 100); i++) {
        int n = 1 + random(SMALL_M_MAX_ROWS), out = 16 * (1 + random(i % 4 ? 100 : 600)),
            in = 16 * (1 + random(is_brief() ? 100 : 300));
        bool gated = random(2);
        small_m_cut c = {};
        c.split = 1 << random(3);
        c.octets = 1 + random(most_octets(gated));
        int tiles = up_to(up_to(gated ? out / 2 : out, 8), c.octets);
        if (c.split > 1 && (tiles > 96 / c.split || in < 128 * c.split))
            c.split = 1;
        c.n_blocks = c.split > 1 ? tiles * c.split : 1 + random(96);
        c.n_stages = 2 + random(MAX_STAGES - 1);
        int act = random(5);
        dending e = {gated ? ENDING_GATED : ENDING_PLAIN, act, 0};
        while (shared_bytes(&e, n, &c) > SHARED_MOST)
            c.n_stages--;
        check({out, in, n, gated, random(2) != 0, act, random_element(gated)}, &c, seed);
    }
    for (int i = 0; i < (is_brief() ? 4 : 40); i++)
        check_settling(8 * (1 + random(is_brief() ? 60 : 400)), 16 * (1 + random(is_brief() ? 60 : 600)),
                       1 + random(SMALL_M_MAX_ROWS), seed++);
    check_activations();
    return summary();
}
