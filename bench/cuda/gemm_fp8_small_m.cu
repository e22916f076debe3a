/* gemm_fp8_small_m.cu - times LINEAR by tiles (src/backend/cuda/linear/fp8/gemm_fp8_small_m.cu) beside the fastest of
 * cuBLASLt's e4m3 products with one scale.
 *
 *     bench_gemm_fp8_small_m table [ROWS ...]    each linear of some models: launches behind one another in a graph,
 *                                                weights rotated past the L2
 *     bench_gemm_fp8_small_m step [ROWS ...]     the linears of all layers of a step, one behind the other
 *     bench_gemm_fp8_small_m cuts [ROWS ...]     other cuts of each than small_m_cut_of's
 *     bench_gemm_fp8_small_m chain [ROWS ...]    layers as a step has them: ADD_NORM, qkv, a stand-in for attention,
 *                                    quantise, o, ADD_NORM, gate_up, quantise, down, with rings of several sizes
 */
#include "backend/cuda/linear/ending.h"
#include "backend/cuda/linear/fp8/gemm_fp8_small_m.cu"
#include "backend/cuda/linear/fp8/gemm_fp8_small_m.h"
#include "backend/cuda/qact/quantise.h"
#include "backend/cuda/rows/norm.h"
#include "backend/cuda/value.h"
#include "products.cuh"

static dsmall_m small_m_of(const shape &s, dweight w) {
    return {w, nullptr, {s.gated ? ENDING_GATED : ENDING_PLAIN, 0, 0}};
}

static bool put_tiles(const shape &s, int rows, const small_m_cut *cut) {
    dsmall_m a = small_m_of(s, weight_of(s));
    dmat x = {inputs, s.in, (int)s.in, ELEMENT_E4M3, ones};
    dmat out = {y, s.width(), s.width(), s.gated ? ELEMENT_F16 : ELEMENT_F32, nullptr};
    if (!small_m_takes(&a, x, out, rows))
        return false;
    small_m_cut c = cut ? *cut : small_m_cut_of(&a, rows);
    return launch_gemm_small_m_cut(stream, rows, &a, x, out, &c) == cudaSuccess;
}

static double time_tiles(const shape &s, int rows, const small_m_cut *cut, int n_runs) {
    return time_launches(s, n_runs, [&] { return put_tiles(s, rows, cut); });
}

static void table(const std::vector<int> &rows) {
    for (const model &m : MODELS)
        for (const shape &s : m.layer)
            for (int n : rows) {
                printf("%-12s %-7s M=%-3d", m.name, s.name, n);
                print_cell("tiles", time_tiles(s, n, nullptr, 7), s, n);
                print_cell("library", time_library(s, n, false).us, s, n);
                printf("\n");
                fflush(stdout);
            }
}

static void step(const std::vector<int> &rows) {
    for (const model &m : MODELS)
        for (int n : rows) {
            double us = microseconds(
                stream,
                [&] {
                    bool fine = true;
                    for (int i = 0; i < m.n_layers; i++)
                        for (const shape &s : m.layer)
                            fine = fine && put_tiles(s, n, nullptr);
                    return fine;
                },
                5);
            print_step(m, n, us, m.layer_bytes() * m.n_layers);
        }
}

static void cuts(const std::vector<int> &rows) {
    for (const model &m : MODELS)
        for (const shape &s : m.layer)
            for (int n : rows) {
                std::vector<std::pair<double, small_m_cut>> tried;
                dsmall_m a = small_m_of(s, weight_of(s));
                int octets = up_to(units_of(&a), 8), most = most_octets(s.gated);
                for (int split = 1; split <= 8; split *= 2)
                    for (int passes = 1; passes <= 3; passes++) {
                        int at_once = small_m_blocks(split) / split, o = up_to(octets, at_once * passes);
                        if (o > most || o > 32 || (split > 1 && passes > 1))
                            continue;
                        for (int room : {224 << 10, 150 << 10, 110 << 10, 75 << 10}) {
                            small_m_cut c = {o, split, at_once * split, 2};
                            for (small_m_cut more = c;
                                 more.n_stages <= MAX_STAGES && shared_bytes(&a.ending, n, &more) <= (size_t)room;
                                 more.n_stages++)
                                c = more;
                            double us = time_tiles(s, n, &c, 2);
                            if (us > 0)
                                tried.push_back({us, c});
                        }
                    }
                std::sort(tried.begin(), tried.end(), [](auto &p, auto &q) { return p.first < q.first; });
                small_m_cut c = small_m_cut_of(&a, n);
                printf("%s %s M=%d: chosen %.2f us (%d octets, split %d, %d blocks, %d stages)\n", m.name, s.name, n,
                       time_tiles(s, n, &c, 3), c.octets, c.split, c.n_blocks, c.n_stages);
                for (size_t i = 0; i < tried.size() && i < 6; i++) {
                    const small_m_cut &t = tried[i].second;
                    printf("    %.2f us %d octets, split %d, %d blocks, %d stages\n", tried[i].first, t.octets, t.split,
                           t.n_blocks, t.n_stages);
                }
                fflush(stdout);
            }
}

// ---- layers as a step has them --------------------------------------------------------------------------------------

/* What stands for attention: so many blocks that each read some of the cache and write some of the row, with shared
 * memory as given. */
static __global__ void __launch_bounds__(192)
    attention_like(const uint4 *cache, int pieces, float *out, int n_out, const float *q) {
    let_next_start();
    wait_for_previous();
    uint4 sum = {};
    for (int i = threadIdx.x; i < pieces; i += blockDim.x) {
        uint4 v = __ldcs(cache + (size_t)blockIdx.x * pieces + i);
        sum.x ^= v.x, sum.y ^= v.y, sum.z ^= v.z, sum.w ^= v.w;
    }
    float v = q[blockIdx.x] + ((sum.x ^ sum.y ^ sum.z ^ sum.w) == 12345u);
    for (int i = threadIdx.x; i < n_out; i += blockDim.x)
        out[(size_t)blockIdx.x * n_out + i] = v * 1e-3f + (float)i * 1e-3f;
}

struct chain_cut {
    const char *name;
    int room[4];  // of shared memory, KB
    int split[4]; // 0: as chosen
    int attention_room;
};

static small_m_cut cut_in_room(const shape &s, int rows, int room, int split) {
    dsmall_m a = small_m_of(s, weight_of(s));
    return cut_in(&a, rows, split ? split : small_m_cut_of(&a, rows).split, room << 10);
}

/* left_out: a bit a node. */
static double time_chain(const model &m, int rows, const chain_cut &how, unsigned left_out) {
    const shape *s = m.layer.data();
    int width = (int)s[0].in, heads = (int)s[1].in, ffn = (int)s[3].in;
    launch l = {};
    l.stream = stream;
    l.n_tokens = rows;
    float *f = (float *)y; // residual, what is added, q, attention's
    dmat r = {f, width, width, ELEMENT_F32}, d = {f + (size_t)rows * width, width, width, ELEMENT_F32};
    dmat qkv = {f + (size_t)rows * width * 2, s[0].out, (int)s[0].out, ELEMENT_F32};
    dmat at = {f + (size_t)rows * (width * 2 + s[0].out), heads, heads, ELEMENT_F32};
    dmat act = {f + (size_t)rows * (width * 2 + s[0].out + heads), ffn, ffn, ELEMENT_F16}, none = {};
    float *scales = ones + MAX_WIDTH; // of qacts
    dmat qact = {inputs, width, width, ELEMENT_E4M3, scales},
         qact_at = {inputs + (size_t)rows * width, heads, heads, ELEMENT_E4M3, scales + rows};
    dmat qact_act = {inputs + (size_t)rows * (width + heads), ffn, ffn, ELEMENT_E4M3, scales + 2 * rows};
    dadd_norm norm = {{ones, 1, width, ELEMENT_F32}, {}, 1e-6f, false, {}, 0, false};
    small_m_cut cut[4];
    for (int i = 0; i < 4; i++)
        cut[i] = cut_in_room(s[i], rows, how.room[i], how.split[i]);
    bool fine = true;
    auto product = [&](int i, dmat x, dmat to) {
        dsmall_m a = small_m_of(s[i], weight_of(s[i]));
        fine = fine &&
               (left_out >> (i + 4) & 1 || launch_gemm_small_m_cut(stream, rows, &a, x, to, &cut[i]) == cudaSuccess);
    };
    int n_blocks = std::min(264, rows * 4), pieces = rows * 272 * 1024 / 16 / n_blocks, n_out = rows * heads / n_blocks;
    cudaFuncSetAttribute(attention_like, cudaFuncAttributeMaxDynamicSharedMemorySize, how.attention_room << 10);
    double us = microseconds(
        stream,
        [&] {
            for (int i = 0; i < m.n_layers; i++) {
                if (!(left_out & 1))
                    launch_add_norm(&l, &norm, r, d, r, none, qact);
                product(0, qact, qkv);
                if (!(left_out & 2)) // reads what is the last of the pool
                    launch_node(attention_like, dim3(n_blocks), dim3(192), (size_t)how.attention_room << 10, stream,
                                (const uint4 *)(pool + POOL - ((size_t)128 << 20) * (i % 4 + 1)), pieces,
                                (float *)at.at, n_out, (const float *)qkv.at);
                if (!(left_out & 4))
                    launch_quantise(&l, rows, at, qact_at);
                product(1, qact_at, d);
                if (!(left_out & 1))
                    launch_add_norm(&l, &norm, r, d, r, none, qact);
                product(2, qact, act);
                if (!(left_out & 8))
                    launch_quantise(&l, rows, act, qact_act);
                product(3, qact_act, d);
            }
            return fine;
        },
        5);
    return us / m.n_layers;
}

static void chain(const std::vector<int> &rows) {
    const chain_cut cuts[] = {
        {"as chosen", {224, 224, 224, 224}, {}, 100},
        {"qkv and o whole", {224, 224, 224, 224}, {1, 1, 0, 0}, 100},
        {"qkv and o by two", {224, 224, 224, 224}, {2, 2, 0, 0}, 100},
        {"qkv, o and down by two", {224, 224, 224, 224}, {2, 2, 1, 2}, 100},
        {"down by two", {224, 224, 224, 224}, {0, 0, 0, 2}, 100},
        {"qkv, o whole, down by two", {224, 224, 224, 224}, {1, 1, 0, 2}, 100},
        {"rings of 118 and 104 KB, attention small", {120, 104, 120, 104}, {}, 1},
    };
    for (const model &m : {MODELS[0], MODELS[2]})
        for (int n : rows)
            for (const chain_cut &c : cuts) {
                double us = time_chain(m, n, c, 0);
                printf("%-12s M=%-3d %-52s layer %6.2f us", m.name, n, c.name, us);
                if (us < 0) {
                    printf("\n");
                    continue;
                }
                for (int i = 0; i < 4; i++) {
                    dending e = {m.layer[i].gated ? ENDING_GATED : ENDING_PLAIN, 0, 0};
                    small_m_cut t = cut_in_room(m.layer[i], n, c.room[i], c.split[i]);
                    printf(" [%d/%d %d %zuK]", t.octets, t.split, t.n_stages, shared_bytes(&e, n, &t) >> 10);
                }
                static const char *const nodes[] = {"norms", "attention", "quantise o", "quantise down",
                                                    "qkv",   "o",         "gate_up",    "down"};
                for (int i = 0; i < 8; i++) // what the layer is shorter without it
                    printf(" %s %.1f", nodes[i], us - time_chain(m, n, c, 1u << i));
                printf("\n");
                fflush(stdout);
            }
}

int main(int argc, char **argv) {
    std::string what = argc > 1 ? argv[1] : "table";
    std::vector<int> rows = rows_of(argc, argv, {16, 32, 64, 128});
    open_operands();
    (what == "table" ? table : what == "cuts" ? cuts : what == "chain" ? chain : step)(rows);
    return 0;
}
