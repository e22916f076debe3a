/* test_moe.cu - MOE_FFN of experts in blocks (src/backend/cuda/moe): the stream, moe_group.cuh and moe_wide.cuh give
 * the same bits, whatever tiles the tokens of an expert come in. What the numbers are is held by test_ops_moe.c. */
#define BARRIER_SPIN_LIMIT 20000000
#include "backend/cuda/moe/moe_stream.h"
#include "backend/cuda/weights/blocks.h"
#include "backend/cuda/weights/quads.h"

#include "products.cuh"

#include <time.h>
#include <vector>

static cudaStream_t stream;
static unsigned long long n_bad, n_cases;
static uint64_t seed;

static int draw(int n) { return (int)(hash(seed++) % (unsigned)n); }

template <class T> static T *on_device(const std::vector<T> &v) {
    void *at;
    MUST(cudaMalloc(&at, v.size() * sizeof(T) + 1024));
    MUST(cudaMemcpy(at, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
    return static_cast<T *>(at);
}
static std::vector<float> floats(size_t n, float low, float high) {
    std::vector<float> v(n);
    for (float &f : v)
        f = low + (high - low) * (draw(1 << 20) / (float)(1 << 20));
    return v;
}

struct problem {
    element weights; // MXFP4, or QUADS of NVFP4
    int width, ffn, n_experts, top_k, act, rows;
    bool biased;
};

/* Random bytes as a matrix of experts, whose scales are numbers of a reasonable size whatever they are. */
static dweight matrix(const problem &p, int64_t units, int64_t in, bool gated) {
    int64_t out = p.n_experts * units * (gated ? 2 : 1);
    dweight w = {nullptr, out, in, p.weights};
    w.quads = {QUADS_NVFP4, 16, false, gated};
    size_t n = p.weights == ELEMENT_MXFP4 ? blocks_bytes(p.weights, out, in, {units, gated})
                                          : p.n_experts * quads_bytes(w.quads, out / p.n_experts, in);
    std::vector<uint8_t> bytes(n);
    for (uint8_t &b : bytes)
        b = (uint8_t)(draw(256) & 0x9b);
    w.at = on_device(bytes);
    w.scale = on_device(floats(out, 0.5f, 2));
    return w;
}

static std::vector<int32_t> draw_ids(const problem &p) {
    std::vector<int32_t> ids;
    int few = 1 + draw(p.n_experts); // experts that half of the tokens go to, if they are enough
    for (int t = 0; t < p.rows; t++)
        for (int k = 0; k < p.top_k;) {
            int e = draw(few >= p.top_k && t % 2 ? few : p.n_experts);
            bool has = false;
            for (int i = 1; i <= k; i++)
                has |= ids[ids.size() - i] == e;
            if (!has)
                ids.push_back(e), k++;
        }
    return ids;
}

static void check(const problem &p) {
    n_cases++;
    printf("%s width %d ffn %d experts %d of %d rows %d%s:", p.weights == ELEMENT_MXFP4 ? "mxfp4" : "nvfp4", p.width,
           p.ffn, p.top_k, p.n_experts, p.rows, p.biased ? " biased" : "");
    dweight w13 = matrix(p, p.ffn, p.width, true), w2 = matrix(p, p.width, p.ffn, false), none = {};
    dweight b13 = none, b2 = none;
    if (p.biased) {
        b13 = {on_device(floats(w13.out, -1, 1)), w13.out, 1, ELEMENT_F32};
        b2 = {on_device(floats(w2.out, -1, 1)), w2.out, 1, ELEMENT_F32};
    }
    std::vector<__half> numbers((size_t)p.rows * p.width);
    for (__half &h : numbers)
        h = __float2half_rn(draw(2001) / 1000.0f - 1);
    dmat x = {on_device(numbers), p.width, p.width, ELEMENT_F16},
         ids = {on_device(draw_ids(p)), p.top_k, p.top_k, ELEMENT_I32},
         weights = {on_device(floats((size_t)p.rows * p.top_k, 0, 1)), p.top_k, p.top_k, ELEMENT_F32};
    dmoe a = {p.n_experts, p.top_k, p.ffn, p.act, 7.0f, nullptr, nullptr, false};
    int64_t scratch, list;
    moe_stream_bytes(&a, w13, w2, p.rows, &scratch, &list);
    a.scratch = on_device(std::vector<uint8_t>(scratch + (1 << 20), 0xff));
    a.list = on_device(std::vector<uint8_t>(list + (1 << 20), 0)); // cuts of other tiles want more
    launch l = {};
    l.stream = stream, l.n_tokens = l.n_seqs = l.n_rows = p.rows;
    l.plan.counts = on_device(std::vector<int32_t>{p.rows, p.rows, p.rows, 0});
    size_t n = (size_t)p.rows * p.width;
    std::vector<float> first;
    auto run = [&](const char *name, int tile, bool grouped, bool wide) {
        dmoe_cut c = moe_cut_of(&a, w13, w2, p.rows);
        if (tile > 0) {
            c.is_tiled = c.is_joined = c.is_direct = false;
            c.is_grouped = grouped, c.is_wide = wide, c.tile = tile;
            c.most_tiles = p.rows * p.top_k / tile + p.n_experts;
        }
        std::vector<float> y(n, NAN);
        dmat to = {on_device(y), p.width, p.width, ELEMENT_F32};
        launch_moe_stream_cut(&l, &a, ELEMENT_F16, x, ids, weights, w13, w2, b13, b2, to, &c);
        MUST(cudaGetLastError());
        MUST(cudaStreamSynchronize(stream));
        MUST(cudaMemcpy(y.data(), to.at, n * sizeof(float), cudaMemcpyDeviceToHost));
        cudaFree(to.at);
        size_t wrong = 0;
        for (size_t i = 0; i < n; i++)
            wrong += !(y[i] == y[i]) || (!first.empty() && memcmp(&y[i], &first[i], sizeof y[i]) != 0);
        if (first.empty())
            first = y;
        printf(" %s of %d %s", name, tile, wrong ? "WRONG" : "fine");
        n_bad += wrong > 0;
        fflush(stdout);
    };
    run("stream", 8, false, false);
    if (p.rows <= 3)
        run("chosen", 0, true, false);
    for (int tile = 8; tile <= 24; tile += 8)
        run("group", tile, true, false);
    if (p.width % 64 == 0 && p.ffn % 64 == 0)
        run("wide", 128, false, true);
    printf("\n");
}

int main(int argc, char **argv) {
    const char *given = argc > 1 ? argv[1] : getenv("GYRE_TEST_SEED");
    bool brief = getenv("GYRE_TEST_BRIEF") != nullptr;
    seed = given ? strtoull(given, nullptr, 10) : (uint64_t)time(nullptr);
    printf("seed %llu\n", (unsigned long long)seed);
    MUST(cudaStreamCreate(&stream));
    for (int i = 0; i < (brief ? 4 : 24); i++) {
        bool quads = i % 2;
        int unit = quads ? 64 : 32, n_experts = 2 + draw(12);
        check({quads ? ELEMENT_QUADS : ELEMENT_MXFP4, unit * (1 + draw(brief ? 8 : 14)),
               unit * (1 + draw(brief ? 8 : 14)), n_experts, 1 + draw(n_experts < 4 ? n_experts : 4), i % 4 < 2 ? 0 : 4,
               1 + draw(i % 4 > 1 ? 3
                        : i % 3   ? 40
                                  : 120),
               draw(2) != 0});
    }
    printf("%llu cases, %llu bad\n", n_cases, n_bad);
    return n_bad != 0;
}
