/* test_moe.cu - MOE_FFN (src/backend/cuda/moe): the stream, moe_tiles.cuh and moe_wide.cuh give the same bits, whatever
 * tiles the tokens of an expert come in. What the numbers are is held by test_ops_moe.c. Lists of pairs are those that
 * a loop over them makes, whoever made them. */
#define BARRIER_SPIN_LIMIT 20000000
#include "backend/cuda/moe/moe_router.h"
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

template <class T> static std::vector<T> from_device(const T *at, size_t n) {
    std::vector<T> v(n);
    MUST(cudaMemcpy(v.data(), at, n * sizeof(T), cudaMemcpyDeviceToHost));
    return v;
}

/* A token's ids, but for those of shared experts, as a router posts them. */
static unsigned long long posted_ids(const int32_t *ids, int n) {
    unsigned long long word = 0;
    for (int k = 0; k < n; k++)
        word |= (unsigned long long)ids[k] << 8 * k;
    return word;
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
    dmoe a = {p.n_here, p.top_k, p.ffn, p.act, 7.0f, nullptr, nullptr, false, false, 0, p.first, p.n_experts};
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
        int64_t n_bytes;
        dmoe_list list = moe_list_at(&a, &c, a.list, &n_bytes);
        if (list.posted) {
            auto chosen = from_device(static_cast<const int32_t *>(ids.at), p.top_k);
            unsigned long long word = posted_ids(chosen.data(), p.top_k);
            MUST(cudaMemcpy(list.posted, &word, sizeof word, cudaMemcpyHostToDevice));
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
    if (p.rows == 1 && p.product == ELEMENT_F16) {
        a.is_posted = true;
        run("posted", 0, false);
        a.is_posted = false;
    }
    for (int tile = 16; tile <= tokens_of_stream(a, w13, w2); tile += 8)
        run("stream", tile, false);
    if (!in_blocks)
        run("tiles", 64, false, true);
    if (p.width % 64 == 0 && p.ffn % 64 == 0)
        for (int tile : {tokens_of_wide(a, w13, w2), 72})
            run("wide", tile, true);
    printf("\n");
}

/* Experts of which some are here, tokens that are sent to top_k of all, and tiles of so many. */
struct listing {
    int n_experts, first_here, n_here, top_k, first, n, tile;
};

static dmoe_list list_of(const listing &k, dmoe *a) {
    *a = {};
    a->n_experts = k.n_here, a->top_k = k.top_k, a->first_expert = k.first_here, a->n_all = k.n_experts;
    dmoe_cut cut = {};
    cut.tile = k.tile, cut.piece = k.n, cut.most_tiles = k.n_experts + k.n * k.top_k / k.tile;
    int64_t n_bytes;
    moe_list_at(a, &cut, nullptr, &n_bytes);
    return moe_list_at(a, &cut, on_device(std::vector<uint8_t>(n_bytes, 0)), &n_bytes);
}

/* An expert's pairs are in their order, in as few tiles as there may be, whose sizes differ by one at the most. */
static void check_listed(const char *by, const listing &k, const std::vector<int32_t> &chosen, const dmoe_list &list) {
    int pairs = k.n * k.top_k;
    std::vector<int32_t> pair, wanted;
    std::vector<dmoe_tile> tiles = from_device(list.tiles, from_device(list.n_tiles, 1)[0]);
    size_t t = 0, wrong = 0;
    for (int e = 0; e < k.n_here; e++) {
        size_t begin = wanted.size();
        for (int i = 0; i < pairs; i++)
            if (chosen[(size_t)k.first * k.top_k + i] == k.first_here + e)
                wanted.push_back(i);
        size_t of_expert = wanted.size() - begin, n_tiles = (of_expert + k.tile - 1) / k.tile;
        for (size_t i = 0; i < n_tiles; i++, t++) {
            wrong += t >= tiles.size() || tiles[t].expert != e || tiles[t].first != (int)begin ||
                     tiles[t].n < (int)(of_expert / n_tiles) || tiles[t].n > (int)((of_expert + n_tiles - 1) / n_tiles);
            begin += t < tiles.size() ? tiles[t].n : 0;
        }
        wrong += begin != wanted.size();
    }
    pair = from_device(list.pair, wanted.size());
    wrong += t != tiles.size() || pair != wanted;
    printf(
        "list by %s of %d of %d experts from the %dth on, %d tokens from the %dth on with %d each, tiles of %d: %s\n",
        by, k.n_here, k.n_experts, k.first_here, k.n, k.first, k.top_k, k.tile, wrong ? "WRONG" : "fine");
    n_cases++, n_bad += wrong > 0;
}

static launch launch_of(int n_tokens, int n_seqs) {
    launch l = {};
    l.stream = stream, l.n_tokens = n_tokens, l.n_seqs = n_seqs;
    l.plan.counts = on_device(std::vector<int32_t>{n_tokens, n_seqs, n_seqs, 0});
    return l;
}

static void check_list(const listing &k) {
    dmoe a;
    dmoe_list list = list_of(k, &a);
    std::vector<int32_t> chosen((size_t)(k.first + k.n) * k.top_k);
    int few = 1 + draw(k.n_experts);
    for (size_t i = 0; i < chosen.size(); i++)
        chosen[i] = draw(i % 3 ? few : k.n_experts);
    dmat ids = {on_device(chosen), k.top_k, k.top_k, ELEMENT_I32};
    launch l = launch_of(k.first + k.n, 1);
    launch_moe_list(&l, &a, k.tile, k.first, k.n, ids, list);
    MUST(cudaGetLastError());
    MUST(cudaStreamSynchronize(stream));
    check_listed("ids", k, chosen, list);
}

/* Routing's own list, of logits or of what a router makes of x: that of the ids it writes. A step has room for more
 * tokens than it has. */
static void check_routed(listing k, int n_shared, bool by_router) {
    enum { WIDTH = 200 };
    bool posts = by_router && k.n == 1;
    int room = posts ? 1 : k.n + draw(MOE_LISTED_TOKENS - k.n + 1), slots = k.top_k + n_shared,
        n_routed = k.n_experts - n_shared;
    droute route = {draw(3), n_routed, k.top_k, 0, 0, true, 1, n_shared};
    k.top_k = slots;
    dmoe a;
    dmoe_list list = list_of(k, &a);
    a.n_shared = n_shared;
    if (posts)
        list.posted = on_device(std::vector<unsigned long long>{0});
    dmat ids = {on_device(std::vector<int32_t>((size_t)room * slots, 1 << 20)), slots, slots, ELEMENT_I32},
         weights = {on_device(std::vector<float>((size_t)room * slots)), slots, slots, ELEMENT_F32};
    launch l = launch_of(k.n, k.n);
    l.n_tokens = room;
    if (by_router) {
        std::vector<__half> numbers((size_t)(room > n_routed ? room : n_routed) * WIDTH);
        for (__half &h : numbers)
            h = __float2half_rn(draw(2001) / 1000.0f - 1);
        void *at = on_device(numbers);
        dweight w = {at, n_routed, WIDTH, ELEMENT_F16};
        dmat x = {at, WIDTH, WIDTH, ELEMENT_F16};
        if (!moe_router_takes(&route, w, x, room))
            exit((printf("the router refuses\n"), 1));
        launch_moe_router(&l, &route, &a, x, w, {}, {}, {}, ids, weights, k.tile, list);
    } else {
        dmat logits = {on_device(floats((size_t)room * n_routed, -4, 4)), n_routed, n_routed, ELEMENT_F32};
        if (!moe_route_lists(&route, &a, room))
            exit((printf("routing refuses\n"), 1));
        launch_moe_route_listed(&l, &route, &a, logits, {}, {}, ids, weights, k.tile, list);
    }
    MUST(cudaGetLastError());
    MUST(cudaStreamSynchronize(stream));
    check_listed(by_router ? "a router" : "routing", k,
                 from_device(static_cast<const int32_t *>(ids.at), (size_t)k.n * slots), list);
    if (posts)
        n_bad += from_device(list.posted, 1)[0] !=
                 posted_ids(from_device(static_cast<const int32_t *>(ids.at), route.top_k).data(), route.top_k);
    std::vector<unsigned long long> seen = from_device(list.seen, 2);
    n_bad += seen[0] != 1; // a step that decodes
}

static void check_lists(int n) {
    for (int i = 0; i < n; i++) {
        int top_k = 1 + draw(8), n_experts = 1 + draw(i % 3 == 1 ? 600 : 130),
            here = i % 2 ? n_experts : 1 + draw(n_experts);
        check_list({n_experts, draw(n_experts - here + 1), here, top_k, i % 2 ? draw(100) : 0,
                    1 + draw(i % 3 ? 6000 / top_k : 60), i % 2 ? 160 : 24});
    }
    for (int i = 0; i < 2 * n; i++) {
        bool by_router = i % 2;
        int n_shared = i % 3 == 2 ? 1 + draw(2) : 0, n_experts = 8 + n_shared + draw(by_router ? 249 : 490),
            here = i % 3 ? n_experts : 1 + draw(n_experts);
        check_routed({n_experts, draw(n_experts - here + 1), here, 1 + draw(8), 0,
                      i % 4 == 1 ? 1 : 1 + draw(MOE_LISTED_TOKENS), draw(2) ? 8 : 24},
                     n_shared, by_router);
    }
}

int main(int argc, char **argv) {
    const char *given = argc > 1 ? argv[1] : getenv("GYRE_TEST_SEED");
    bool brief = getenv("GYRE_TEST_BRIEF") != nullptr;
    seed = given ? strtoull(given, nullptr, 10) : (uint64_t)time(nullptr);
    printf("seed %llu\n", (unsigned long long)seed);
    MUST(cudaStreamCreate(&stream));
    check_lists(brief ? 3 : 12);
    const element formats[] = {ELEMENT_MXFP4, ELEMENT_QUADS, ELEMENT_E4M3, ELEMENT_F16};
    for (int i = 0; i < (brief ? 12 : 48); i++) { // four of twelve of one token to three
        element weights = formats[i % 4];
        int unit = weights == ELEMENT_MXFP4 ? 32 : 64, n_experts = 2 + draw(12),
            here = draw(2) ? n_experts : 1 + draw(n_experts);
        check({weights, weights != ELEMENT_QUADS && draw(3) == 0 ? ELEMENT_BF16 : ELEMENT_F16,
               unit * (1 + draw(brief ? 8 : 14)), unit * (1 + draw(brief ? 8 : 14)), n_experts,
               1 + draw(n_experts < 4 ? n_experts : 4), i / 4 % 2 ? 4 : 0,
               1 + (i / 4 % 3 == 2 ? (i + i / 12) % 3
                                   : draw(i / 4 % 3 == 0 ? 40
                                          : brief        ? 120
                                                         : 300)),
               draw(2) != 0, draw(n_experts - here + 1), here});
    }
    // Rows so long that the tokens of two tiles have no room together. Whether blocks then keep one tile each depends
    // on how many blocks there are: from PTX the first case comes there, the second one was not seen to.
    check({ELEMENT_MXFP4, ELEMENT_F16, 2880, 32, 3, 2, 4, 40, true, 0, 3});
    check({ELEMENT_E4M3, ELEMENT_F16, 64, 2880, 3, 2, 0, 40, false, 0, 3});
    printf("%llu cases, %llu bad\n", n_cases, n_bad);
    return n_bad != 0;
}
