/* moe.cu - times MOE_FFN and MOE_ROUTE of some models' layers on the device, and parts of them.
 *
 *   build/cuda/bench_moe [MODEL [rows ...]]     all models unless one is named by a part of its name; those that begin
 *                                               with Half are what one of two cards has
 *
 * Every token is sent to experts of its own choice, all equally likely. Layers rotate, so that no weight is in the L2
 * from before. Per cent are of reading, at 4.6 TB/s, each expert once that has a token. */
#include "backend/cuda/moe/moe.h"
#include "backend/cuda/moe/moe_stream.h"
#include "backend/cuda/value.h"
#include "backend/cuda/weights/blocks.h"
#include "graph_time.cuh"

#include <cstring>
#include <string>

static const double PEAK = 4.6e12;

struct mixture {
    const char *name;
    int width, ffn, n_experts, top_k, act, n_layers;
    bool biased;
    element weights;
    int n_here; // the first so many experts are this rank's; 0: all are
    int here() const { return n_here ? n_here : n_experts; }
};
static const mixture MIXTURES[] = {
    {"Qwen3-30B-A3B", 2048, 768, 128, 8, 0, 5, false, ELEMENT_E4M3},
    {"Half of each expert of Qwen3-30B-A3B", 2048, 384, 128, 8, 0, 5, false, ELEMENT_E4M3},
    {"Half of all experts of Qwen3-30B-A3B", 2048, 768, 128, 8, 0, 5, false, ELEMENT_E4M3, 64},
    {"Qwen3.5-35B-A3B", 2048, 512, 256, 8, 0, 5, false, ELEMENT_E4M3},
    {"gpt-oss-20b", 2880, 2880, 32, 4, 4, 5, true, ELEMENT_MXFP4},
    {"DeepSeek-V2-Lite", 2048, 1408, 64, 6, 0, 5, false, ELEMENT_E4M3},
};
enum { MOST_ROWS = 8192 };

static cudaStream_t stream;

static __global__ void fill_bytes(uint32_t *at, size_t n, uint32_t seed) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        uint64_t v = (i + seed) * 0x9e3779b97f4a7c15u;
        v = (v ^ v >> 30) * 0xbf58476d1ce4e5b9u;
        at[i] = ((uint32_t)(v >> 32) & 0xbfbfbfbfu) | 0x10101010u;
    }
}
static __global__ void fill_floats(float *at, size_t n, float v) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        at[i] = v;
}
static void *taken(size_t n_bytes) {
    void *at;
    TRY(cudaMalloc(&at, n_bytes + 1024));
    fill_bytes<<<1024, 256, 0, stream>>>((uint32_t *)at, n_bytes / 4 + 1, (uint32_t)n_bytes);
    return at;
}
static float *floats(size_t n, float v) {
    float *at = (float *)taken(n * 4);
    fill_floats<<<1024, 256, 0, stream>>>(at, n, v);
    return at;
}

struct layer {
    dweight w13, w2, b13, b2;
    dmat ids;
    int n_distinct;
};

struct problem {
    mixture m;
    int rows;
    std::vector<layer> layers;
    dmat x, y, weights, logits, ids_out;
    dmoe a;
    launch l;
    double expert_bytes() const {
        return 3.0 * m.width * m.ffn * (m.weights == ELEMENT_MXFP4 ? MXFP4_BLOCK / (16.0 * 64) : 1);
    }
    double layer_bytes() const {
        double n = 0;
        for (const layer &k : layers)
            n += k.n_distinct * expert_bytes();
        return n / (double)layers.size();
    }
};

/* Ids of a layer's tokens; how many of the experts that are here have one. */
static int draw_ids(const mixture &m, int rows, uint64_t &state, std::vector<int32_t> &ids) {
    std::vector<bool> has(m.n_experts);
    ids.clear();
    for (int t = 0; t < rows; t++)
        for (int k = 0; k < m.top_k;) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            int e = (int)((state >> 33) % (uint64_t)m.n_experts);
            if (std::find(ids.end() - k, ids.end(), e) != ids.end())
                continue;
            ids.push_back(e), has[e] = true, k++;
        }
    return (int)std::count(has.begin(), has.begin() + m.here(), true);
}

static void set_rows(problem &p, int rows) {
    static uint64_t state = 1;
    std::vector<int32_t> ids;
    p.rows = rows;
    for (layer &k : p.layers) {
        k.n_distinct = draw_ids(p.m, rows, state, ids);
        TRY(cudaMemcpy(k.ids.at, ids.data(), ids.size() * 4, cudaMemcpyHostToDevice));
    }
    int32_t counts[4] = {rows, rows, rows, 0};
    p.l.n_tokens = p.l.n_seqs = p.l.n_rows = rows;
    TRY(cudaMemcpy((void *)p.l.plan.counts, counts, sizeof counts, cudaMemcpyHostToDevice));
}

static dweight matrix(const mixture &m, int64_t out, int64_t in, bool gated) {
    int64_t units = gated ? m.ffn : out / m.here(),
            n = m.weights == ELEMENT_MXFP4 ? blocks_bytes(m.weights, out, in, {units, gated}) : out * in;
    return {taken(n), out, in, m.weights, floats(out, 1e-3f)};
}

static problem opened(const mixture &m) {
    problem p = {m};
    int64_t E = m.here(), F = m.ffn, D = m.width;
    for (int i = 0; i < m.n_layers; i++) {
        layer k = {};
        k.w13 = matrix(m, E * 2 * F, D, true);
        k.w2 = matrix(m, E * D, F, false);
        if (m.biased) {
            k.b13 = {floats(E * 2 * F, 0.1f), E * 2 * F, 1, ELEMENT_F32, nullptr};
            k.b2 = {floats(E * D, 0.1f), E * D, 1, ELEMENT_F32, nullptr};
        }
        k.ids = {taken((size_t)MOST_ROWS * m.top_k * 4), m.top_k, m.top_k, ELEMENT_I32, nullptr};
        p.layers.push_back(k);
    }
    p.x = {taken((size_t)MOST_ROWS * D * 2), D, (int)D, ELEMENT_F16, nullptr};
    p.y = {floats((size_t)MOST_ROWS * D, 0), D, (int)D, ELEMENT_F32, nullptr};
    p.weights = {floats((size_t)MOST_ROWS * m.top_k, 0.125f), m.top_k, m.top_k, ELEMENT_F32, nullptr};
    p.logits = {taken((size_t)MOST_ROWS * m.n_experts * 4), m.n_experts, m.n_experts, ELEMENT_F32, nullptr};
    p.ids_out = {taken((size_t)MOST_ROWS * m.top_k * 4), m.top_k, m.top_k, ELEMENT_I32, nullptr};
    p.a = {m.here(), m.top_k, m.ffn, m.act, 7.0f, nullptr, nullptr, false, false, 0, 0, m.n_experts};
    p.l.stream = stream;
    p.l.plan.counts = (const int32_t *)taken(64);
    int64_t scratch, list;
    moe_stream_bytes(&p.a, p.layers[0].w13, p.layers[0].w2, MOST_ROWS, &scratch, &list);
    p.a.scratch = taken(scratch);
    p.a.list = taken(list);
    TRY(cudaStreamSynchronize(stream));
    return p;
}

static void put_experts(const problem &p, const layer &k, const dmoe &a, const dmoe_cut &cut) {
    launch_moe_stream_cut(&p.l, &a, ELEMENT_F16, p.x, k.ids, p.weights, k.w13, k.w2, k.b13, k.b2, p.y, &cut);
}

/* Microseconds of what `put` puts for each layer. */
template <class F> static double time_layers(const problem &p, F put) {
    enum { ROUNDS = 4 };
    auto all = [&] {
        for (int i = 0; i < ROUNDS; i++)
            for (const layer &k : p.layers)
                put(k);
        return cudaGetLastError() == cudaSuccess;
    };
    return microseconds(stream, all, 9) / (ROUNDS * (double)p.layers.size());
}

static void table(problem &p, int rows) {
    set_rows(p, rows);
    double bytes = p.layer_bytes();
    dmoe_cut usual = moe_cut_of(&p.a, p.layers[0].w13, p.layers[0].w2, rows);
    int64_t n;
    droute route = {1, p.m.n_experts, p.m.top_k, 0, 0, true, 1};
    double alone_route = time_layers(p, [&](const layer &) {
        launch_moe_route(&p.l, &route, p.logits, dweight{}, dweight{}, p.ids_out, p.weights);
    });
    double alone_list = time_layers(p, [&](const layer &k) {
        launch_moe_list(&p.l, &p.a, usual.tile, 0, rows < usual.piece ? rows : usual.piece, k.ids,
                        moe_list_at(&p.a, &usual, p.a.list, &n));
    });
    printf("%s N=%d: %.1f experts, %.1f MB; route alone %.2f us, list alone %.2f us; chosen tile %d\n", p.m.name, rows,
           bytes / p.expert_bytes(), bytes * 1e-6, alone_route, alone_list, usual.tile);
    for (int tile : {8, 16, 24, usual.tile}) {
        if (usual.is_tiled ? tile != usual.tile : tile > 8 && rows <= 8)
            continue;
        int64_t pairs = (int64_t)usual.piece * p.m.top_k;
        dmoe_cut cut = usual;
        cut.tile = tile;
        cut.most_tiles = (int)(std::min<int64_t>(pairs, p.m.here()) + pairs / tile);
        double us = time_layers(p, [&](const layer &k) { put_experts(p, k, p.a, cut); });
        printf("    tile %2d: %7.2f us, %5.2f TB/s, %4.1f %%\n", tile, us, bytes / us * 1e-6,
               bytes / us * 1e6 / PEAK * 100);
        fflush(stdout);
    }
    auto by = [&](const char *name, bool wide, int tile) {
        dmoe_cut cut = usual;
        cut.is_wide = wide, cut.is_joined = cut.is_direct = cut.is_tiled = false, cut.tile = tile;
        cut.most_tiles =
            (int)(std::min<int64_t>((int64_t)cut.piece * p.m.top_k, p.m.here()) + cut.piece * p.m.top_k / tile);
        double us = time_layers(p, [&](const layer &k) { put_experts(p, k, p.a, cut); });
        printf("    %s: %7.2f us, %5.2f TB/s, %4.1f %%\n", name, us, bytes / us * 1e-6, bytes / us * 1e6 / PEAK * 100);
        fflush(stdout);
    };
    if (rows >= 32 && !usual.is_wide)
        by("wide   ", true, moe_cut_of(&p.a, p.layers[0].w13, p.layers[0].w2, 64 * p.m.n_experts).tile);
}

int main(int argc, char **argv) {
    std::vector<int> rows;
    for (int i = 2; i < argc; i++)
        rows.push_back(atoi(argv[i]));
    if (rows.empty())
        rows = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 2048};
    TRY(cudaStreamCreate(&stream));
    for (const mixture &m : MIXTURES) {
        if (argc > 1 && !strstr(m.name, argv[1]))
            continue;
        problem p = opened(m);
        for (int n : rows)
            table(p, n);
    }
    return 0;
}
