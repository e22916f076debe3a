/* gemm_w4.cu - times LINEAR by weights of four bits on the device, shape by shape.
 *
 *   build/cuda/bench_gemm_w4 [table|many|cuts|few] [rows ...]
 *     table   every shape, format and number of rows: microseconds, GB/s of the weight as it lies on the card, per cent
 *             of 4.6 TB/s; of up to 8 rows once more by gemm_w4_few.cu
 *     many    the same by gemm_w4_many.cu, with TFLOP/s, in tiles of as many tokens as are chosen, and in others
 *     cuts    which cut into blocks and warps is fastest, the chosen one, and the four best
 *     few     the same of gemm_w4_few.cu
 * Random bytes are the weights: their scales are numbers, and nobody looks at what comes out. */
#include "backend/cuda/linear/ending.h"
#include "backend/cuda/linear/w4/gemm_w4_few.h"
#include "backend/cuda/linear/w4/gemm_w4_many.h"
#include "backend/cuda/value.h"
#include "backend/cuda/weights/quads.h"
#include "products.cuh"

#include <cstring>

struct format {
    const char *name;
    dquads q;
};
static const std::vector<format> FORMATS = {{"int4 g128", {QUADS_INT4, 128, true, false}},
                                            {"nvfp4", {QUADS_NVFP4, 16, false, false}},
                                            {"int4 g32", {QUADS_INT4, 32, false, false}},
                                            {"mxfp4", {QUADS_MXFP4, 32, false, false}}};

static size_t bytes_of(const shape &s, dquads q) { return (size_t)quads_bytes(q, s.out, s.in); }
static dgemm_w4 w4_of(const shape &s, dquads q) {
    static size_t where;
    size_t n = (bytes_of(s, q) + 255) / 256 * 256;
    where = where + n > POOL ? 0 : where;
    dgemm_w4 a = {};
    q.gated = s.gated;
    a.w = {pool + where, s.out, s.in, ELEMENT_QUADS, ones, q};
    a.ending.kind = s.gated ? ENDING_GATED : ENDING_PLAIN;
    where += n;
    return a;
}

/* Of a product: `put` launches one. */
template <class PUT> static double time_product(const shape &s, dquads q, int rows, int n_runs, PUT put) {
    q.gated = s.gated;
    int n = (int)std::clamp<int64_t>(600000000 / (int64_t)bytes_of(s, q), 10, 64);
    dmat x = {inputs, s.in, (int)s.in, ELEMENT_F16},
         to = {y, s.width(), s.width(), s.gated ? ELEMENT_F16 : ELEMENT_F32};
    auto put_all = [&] {
        for (int i = 0; i < n; i++)
            if (!put(w4_of(s, q), x, to))
                return false;
        return true;
    };
    double us = microseconds(stream, put_all, n_runs);
    return us < 0 ? us : us / n;
}
static double time_w4(const shape &s, dquads q, int rows, const gemm_w4_cut *cut, int n_runs) {
    return time_product(s, q, rows, n_runs, [&](const dgemm_w4 &a, dmat x, dmat to) {
        gemm_w4_cut usual = gemm_w4_cut_of(&a.w, rows);
        return gemm_w4_takes(&a, x, to, rows) &&
               launch_gemm_w4_cut(stream, rows, &a, x, to, cut ? cut : &usual) == cudaSuccess;
    });
}
static double time_few(const shape &s, dquads q, int rows, const gemm_w4_few_cut *cut, int n_runs) {
    return time_product(s, q, rows, n_runs, [&](const dgemm_w4 &a, dmat x, dmat to) {
        gemm_w4_few_cut usual = gemm_w4_few_cut_of(&a.w, rows);
        return gemm_w4_few_takes(&a, x, to, rows) &&
               launch_gemm_w4_few_cut(stream, rows, &a, x, to, cut ? cut : &usual) == cudaSuccess;
    });
}

static double time_many(const shape &s, dquads q, int rows, int tokens) {
    return time_product(s, q, rows, 3, [&](const dgemm_w4 &a, dmat x, dmat to) {
        gemm_w4_many_cut cut = gemm_w4_many_cut_by(&a.w, rows, tokens);
        return launch_gemm_w4_many_cut(stream, rows, &a, x, to, &cut) == cudaSuccess;
    });
}

static void many(const std::vector<int> &rows, const std::vector<model> &models) {
    for (const model &m : models)
        for (size_t f = 0; f < 2; f++)
            for (int n : rows) {
                double all = 0, flops = 0;
                printf("%s %s M=%d, many:", m.name, FORMATS[f].name, n);
                for (const shape &s : m.layer) {
                    dquads q = FORMATS[f].q;
                    q.gated = s.gated;
                    dgemm_w4 first = w4_of(s, q);
                    int usual = gemm_w4_many_cut_of(&first.w, n).tokens;
                    double us = time_many(s, q, n, usual), is = 2.0 * s.out * s.in * n;
                    printf("  %s %.1f us %.0f TFLOP/s by %d", s.name, us, is / us / 1e6, usual);
                    for (int tokens : {64, 128, 192, 240, 256})
                        if (tokens != usual)
                            printf(", %d %.1f", tokens, time_many(s, q, n, tokens));
                    all += us, flops += is;
                }
                printf("  layer %.1f us %.0f TFLOP/s\n", all, flops / all / 1e6);
                fflush(stdout);
            }
}

static std::string cut_name(const gemm_w4_cut &c) {
    char text[80];
    snprintf(text, sizeof text, "%dx%d warps, split %d, %d blocks, %d stages", c.row_warps, c.column_warps, c.split,
             c.n_blocks, c.most_stages);
    return text;
}

template <class TIME> static void print_layer(const model &m, const format &f, int n, const char *by, TIME time) {
    double all = 0, bytes = 0;
    printf("%s %s M=%d%s:", m.name, f.name, n, by);
    for (const shape &s : m.layer) {
        double us = time(s, f.q, n, nullptr, 5);
        printf("  %s %.2f us %.0f GB/s %.0f%%", s.name, us, bytes_of(s, f.q) / us / 1e3,
               bytes_of(s, f.q) / us / PEAK * 1e8);
        all += us, bytes += (double)bytes_of(s, f.q);
    }
    printf("  layer %.2f us %.0f%%\n", all, bytes / all / PEAK * 1e8);
    fflush(stdout);
}
static void table(const std::vector<int> &rows, const std::vector<model> &models) {
    for (const model &m : models)
        for (const format &f : FORMATS)
            for (int n : rows) {
                print_layer(m, f, n, "", time_w4);
                if (n <= W4_FEW_MAX_ROWS)
                    print_layer(m, f, n, ", few", time_few);
            }
}

static void cuts(const std::vector<int> &rows, const std::vector<model> &models) {
    for (const model &m : models)
        for (const shape &s : m.layer)
            for (size_t k = 0; k < 2; k++)
                for (int n : rows) {
                    dquads q = FORMATS[k].q;
                    q.gated = s.gated;
                    std::vector<std::pair<double, gemm_w4_cut>> tried;
                    dgemm_w4 first = w4_of(s, q);
                    gemm_w4_cut usual = gemm_w4_cut_of(&first.w, n);
                    for (int split = 1; split <= 8; split *= 2)
                        for (int columns = 1; columns <= GEMM_W4_MOST_WARPS / 4; columns++)
                            for (int r = 4; r * columns <= GEMM_W4_MOST_WARPS; r += 4)
                                for (int v = 0; v < 2; v++) { // rings of all, or half a multiprocessor's memory
                                    gemm_w4_cut c = {r, columns, split, 0, 16};
                                    if (v == 1)
                                        c.most_stages =
                                            (int)((100 << 10) /
                                                  (columns * (r * quads_block_bytes(q) + (n + 7) / 8 * 2048)));
                                    int64_t want = (quads_tiles(q, s.out) + r - 1) / r,
                                            at_once = (split == 8 ? 16 : 132 / split);
                                    c.n_blocks = (int)(want < at_once ? want : at_once) * split;
                                    // Nothing is expected of those that leave a third of the multiprocessors idle, or
                                    // few warps on each.
                                    if ((split * columns > 1 && want > at_once) || c.n_blocks < 50 ||
                                        split * columns > quads_blocks(s.in) || c.most_stages > 16 ||
                                        !gemm_w4_takes_cut(&first.w, n, &c))
                                        continue;
                                    double us = time_w4(s, q, n, &c, 1);
                                    if (us > 0)
                                        tried.push_back({us, c});
                                }
                    std::sort(tried.begin(), tried.end(), [](auto &a, auto &b) { return a.first < b.first; });
                    printf("%s %s %s M=%d: chosen %.2f us (%s)\n", m.name, s.name, FORMATS[k].name, n,
                           time_w4(s, q, n, &usual, 5), cut_name(usual).c_str());
                    for (size_t i = 0; i < tried.size() && i < 5; i++)
                        printf("    %.2f us %s\n", tried[i].first, cut_name(tried[i].second).c_str());
                    fflush(stdout);
                }
}

static std::string few_name(const gemm_w4_few_cut &c) {
    char text[100];
    snprintf(text, sizeof text, "%d segments, %d warps, split %d, %d blocks, %d x %d copied%s", c.segments, c.warps,
             c.split, c.n_blocks, c.n_copies, c.a_copy, c.alone ? ", alone" : "");
    return text;
}

static void few_cuts(const std::vector<int> &rows, const std::vector<model> &models) {
    for (const model &m : std::vector<model>(models.begin(), models.begin() + 1))
        for (const shape &s : m.layer)
            for (int n : rows) {
                dquads q = FORMATS[0].q;
                std::vector<std::pair<double, gemm_w4_few_cut>> tried;
                q.gated = s.gated;
                dgemm_w4 first = w4_of(s, q);
                gemm_w4_few_cut usual = gemm_w4_few_cut_of(&first.w, n);
                for (int segments = 4; segments <= 16; segments *= 2)
                    for (int warps = 8; warps <= 16; warps *= 2)
                        for (int split = 1; split <= 4; split *= 2)
                            for (int a_copy = 1; a_copy <= 4; a_copy *= 2)
                                for (int copies = 2; copies <= 8; copies += copies < 4 ? 1 : 2)
                                    for (int alone = 0; alone < 2; alone++) {
                                        gemm_w4_few_cut c = {segments, warps,  split,     132 / split * split,
                                                             a_copy,   copies, alone != 0};
                                        int queue = warps * a_copy * copies;
                                        if (queue < 48 || queue > 192 || !gemm_w4_few_takes_cut(&first.w, n, &c))
                                            continue;
                                        double us = time_few(s, q, n, &c, 1);
                                        if (us > 0)
                                            tried.push_back({us, c});
                                    }
                std::sort(tried.begin(), tried.end(), [](auto &a, auto &b) { return a.first < b.first; });
                printf("%s %s %s M=%d: chosen %.2f us (%s)\n", m.name, s.name, FORMATS[0].name, n,
                       time_few(s, q, n, &usual, 5), few_name(usual).c_str());
                for (size_t i = 0; i < tried.size() && i < 6; i++)
                    printf("    %.2f us %s\n", tried[i].first, few_name(tried[i].second).c_str());
                for (int warps = 8; warps <= 16; warps *= 2) // the best of each
                    for (int split = 1; split <= 4; split *= 2)
                        for (int alone = 0; alone < 2; alone++)
                            for (const auto &t : tried)
                                if (t.second.warps == warps && t.second.split == split && t.second.alone == alone) {
                                    printf("        %.2f us %s\n", t.first, few_name(t.second).c_str());
                                    break;
                                }
                fflush(stdout);
            }
}

int main(int argc, char **argv) {
    open_operands();
    std::vector<int> rows = rows_of(argc, argv, {1, 8, 32});
    std::vector<model> models = {MODELS[0], MODELS[2]};
    const char *only = getenv("GYRE_BENCH_SHAPE"); // of the first model
    if (only) {
        models.resize(1);
        auto &layer = models[0].layer;
        layer.erase(std::remove_if(layer.begin(), layer.end(), [&](const shape &s) { return strcmp(s.name, only); }),
                    layer.end());
    }
    if (argc > 1 && strcmp(argv[1], "cuts") == 0)
        cuts(rows, models);
    else if (argc > 1 && strcmp(argv[1], "few") == 0)
        few_cuts(rows, models);
    else if (argc > 1 && strcmp(argv[1], "many") == 0)
        many(rows, models);
    else
        table(rows, models);
    return 0;
}
