/* test_moe.cu - MOE_FFN (src/backend/cuda/moe): the stream, moe_tiles.cuh and moe_wide.cuh give the same bits, whatever
 * tiles the tokens of an expert come in. What the numbers are is held by test_ops_moe.c. Lists of pairs are those that
 * a loop over them makes. */
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
    element weights, product; // weights: MXFP4, QUADS of NVFP4, E4M3 or F16
    int width, ffn, n_experts, top_k, act, rows;
    bool biased;
    int first, n_here; // of the experts, which are here
};

/* Random bytes as a matrix of experts, whose scales are numbers of a reasonable size whatever they are. */
static dweight matrix(const problem &p, int64_t units, int64_t in, bool gated) {
    int64_t out = p.n_here * units * (gated ? 2 : 1);
    dweight w = {nullptr, out, in, p.weights};
    w.quads = {QUADS_NVFP4, 16, false, gated};
    size_t n = p.weights == ELEMENT_MXFP4   ? blocks_bytes(p.weights, out, in, {units, gated})
               : p.weights == ELEMENT_QUADS ? p.n_here * quads_bytes(w.quads, out / p.n_here, in)
                                            : out * in * (p.weights == ELEMENT_F16 ? 2 : 1);
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

/* Tokens of moe_wide's tiles. */
static int tokens_of_wide(const dmoe &a, const dweight &w13, const dweight &w2) {
    dmoe_cut c = moe_cut_of(&a, w13, w2, 40 * a.n_all);
    return c.is_wide ? c.tile : 0;
}
/* Of the stream's longest. */
static int tokens_of_stream(const dmoe &a, const dweight &w13, const dweight &w2) {
    return moe_cut_of(&a, w13, w2, 10 * a.n_all / a.top_k).tile;
}

static void check(const problem &p) {
    n_cases++;
    const char *name = p.weights == ELEMENT_MXFP4   ? "mxfp4"
                       : p.weights == ELEMENT_QUADS ? "nvfp4"
                       : p.weights == ELEMENT_E4M3  ? "e4m3"
                                                    : "f16";
    bool in_blocks = p.weights == ELEMENT_MXFP4 || p.weights == ELEMENT_QUADS;
    printf("%s%s width %d ffn %d experts %d of %d, %d from the %dth on here, rows %d%s:", name,
           p.product == ELEMENT_BF16 ? " (bf16)" : "", p.width, p.ffn, p.top_k, p.n_experts, p.n_here, p.first, p.rows,
           p.biased ? " biased" : "");
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
    dmoe a = {p.n_here, p.top_k, p.ffn, p.act, 7.0f, nullptr, nullptr, false, 0, p.first, p.n_experts};
    int64_t scratch, list;
    moe_stream_bytes(&a, w13, w2, p.rows, &scratch, &list);
    a.scratch = on_device(std::vector<uint8_t>(scratch + (1 << 20), 0xff));
    a.list = on_device(std::vector<uint8_t>(list + (1 << 20), 0)); // cuts of other tiles want more
    launch l = {};
    l.stream = stream, l.n_tokens = l.n_seqs = l.n_rows = p.rows;
    l.plan.counts = on_device(std::vector<int32_t>{p.rows, p.rows, p.rows, 0});
    size_t n = (size_t)p.rows * p.width;
    std::vector<float> first;
    auto run = [&](const char *name, int tile, bool wide, bool tiled = false) {
        dmoe_cut c = moe_cut_of(&a, w13, w2, p.rows);
        if (tile > 0) {
            c.is_joined = c.is_direct = false;
            c.is_wide = wide, c.is_tiled = tiled, c.tile = tile;
            c.most_tiles = p.rows * p.top_k / tile + p.n_experts;
        }
        std::vector<float> y(n, NAN);
        dmat to = {on_device(y), p.width, p.width, ELEMENT_F32};
        launch_moe_stream_cut(&l, &a, p.product, x, ids, weights, w13, w2, b13, b2, to, &c);
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
    run("stream", 8, false);
    if (p.rows <= 3)
        run("chosen", 0, false);
    for (int tile = 16; tile <= tokens_of_stream(a, w13, w2); tile += 8)
        run("stream", tile, false);
    if (!in_blocks)
        run("tiles", 64, false, true);
    if (p.width % 64 == 0 && p.ffn % 64 == 0)
        for (int tile : {tokens_of_wide(a, w13, w2), 72})
            run("wide", tile, true);
    printf("\n");
}

template <class T> static std::vector<T> from_device(const T *at, size_t n) {
    std::vector<T> v(n);
    MUST(cudaMemcpy(v.data(), at, n * sizeof(T), cudaMemcpyDeviceToHost));
    return v;
}

/* Of n_here experts from first_here on: an expert's pairs in their order, in as few tiles as there may be, whose sizes
 * differ by one at the most. */
static void check_list(int n_experts, int first_here, int n_here, int top_k, int first, int n, int tile) {
    int pairs = n * top_k;
    dmoe a = {};
    a.n_experts = n_here, a.top_k = top_k, a.first_expert = first_here, a.n_all = n_experts;
    dmoe_cut cut = {};
    cut.tile = tile, cut.piece = n, cut.most_tiles = n_experts + pairs / tile;
    std::vector<int32_t> chosen((size_t)(first + n) * top_k);
    int few = 1 + draw(n_experts);
    for (size_t i = 0; i < chosen.size(); i++)
        chosen[i] = draw(i % 3 ? few : n_experts);
    dmat ids = {on_device(chosen), top_k, top_k, ELEMENT_I32};
    int64_t n_bytes;
    moe_list_at(&a, &cut, nullptr, &n_bytes);
    dmoe_list list = moe_list_at(&a, &cut, on_device(std::vector<uint8_t>(n_bytes, 0)), &n_bytes);
    launch l = {};
    l.stream = stream, l.n_tokens = first + n, l.n_seqs = 1;
    l.plan.counts = on_device(std::vector<int32_t>{first + n, 1, 1, 0});
    launch_moe_list(&l, &a, tile, first, n, ids, list);
    MUST(cudaGetLastError());
    MUST(cudaStreamSynchronize(stream));
    std::vector<int32_t> pair, wanted;
    std::vector<dmoe_tile> tiles = from_device(list.tiles, from_device(list.n_tiles, 1)[0]);
    size_t t = 0, wrong = 0;
    for (int e = 0; e < n_here; e++) {
        size_t begin = wanted.size();
        for (int i = 0; i < pairs; i++)
            if (chosen[(size_t)first * top_k + i] == first_here + e)
                wanted.push_back(i);
        size_t of_expert = wanted.size() - begin, n_tiles = (of_expert + tile - 1) / tile;
        for (size_t k = 0; k < n_tiles; k++, t++) {
            wrong += t >= tiles.size() || tiles[t].expert != e || tiles[t].first != (int)begin ||
                     tiles[t].n < (int)(of_expert / n_tiles) || tiles[t].n > (int)((of_expert + n_tiles - 1) / n_tiles);
            begin += t < tiles.size() ? tiles[t].n : 0;
        }
        wrong += begin != wanted.size();
    }
    pair = from_device(list.pair, wanted.size());
    wrong += t != tiles.size() || pair != wanted;
    printf("list of %d of %d experts from the %dth on, %d tokens from the %dth on with %d each, tiles of %d: %s\n",
           n_here, n_experts, first_here, n, first, top_k, tile, wrong ? "WRONG" : "fine");
    n_cases++, n_bad += wrong > 0;
}

int main(int argc, char **argv) {
    const char *given = argc > 1 ? argv[1] : getenv("GYRE_TEST_SEED");
    bool brief = getenv("GYRE_TEST_BRIEF") != nullptr;
    seed = given ? strtoull(given, nullptr, 10) : (uint64_t)time(nullptr);
    printf("seed %llu\n", (unsigned long long)seed);
    MUST(cudaStreamCreate(&stream));
    for (int i = 0; i < (brief ? 3 : 12); i++) {
        int top_k = 1 + draw(8), n_experts = 1 + draw(i % 3 == 1 ? 600 : 130),
            here = i % 2 ? n_experts : 1 + draw(n_experts);
        check_list(n_experts, draw(n_experts - here + 1), here, top_k, i % 2 ? draw(100) : 0,
                   1 + draw(i % 3 ? 6000 / top_k : 60), i % 2 ? 160 : 24);
    }
    const element formats[] = {ELEMENT_MXFP4, ELEMENT_QUADS, ELEMENT_E4M3, ELEMENT_F16};
    for (int i = 0; i < (brief ? 8 : 48); i++) {
        element weights = formats[i % 4];
        int unit = weights == ELEMENT_MXFP4 ? 32 : 64, n_experts = 2 + draw(12),
            here = draw(2) ? n_experts : 1 + draw(n_experts);
        check({weights, weights != ELEMENT_QUADS && draw(3) == 0 ? ELEMENT_BF16 : ELEMENT_F16,
               unit * (1 + draw(brief ? 8 : 14)), unit * (1 + draw(brief ? 8 : 14)), n_experts,
               1 + draw(n_experts < 4 ? n_experts : 4), i / 4 % 2 ? 4 : 0,
               1 + draw(i / 4 % 3 == 2   ? 3
                        : i / 4 % 3 == 0 ? 40
                        : brief          ? 120
                                         : 300),
               draw(2) != 0, draw(n_experts - here + 1), here});
    }
    printf("%llu cases, %llu bad\n", n_cases, n_bad);
    return n_bad != 0;
}
