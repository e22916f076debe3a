/* nodes.cu - what the nodes of a step that are neither product nor attention cost on a GPU: ADD_NORM, NORM, GATED_ACT,
 * their e4m3 qacts, and launch_quantise.
 *
 *     build/cuda/bench_nodes [check]      a table; with check: every node against double precision, outputs poisoned
 *
 * A node's time is that of a graph of 60 of them, each behind the one before, divided by 60: the median of 15 replays.
 * What it reads was written just before, as in a step, and so comes from the L2 cache while it fits.
 * GYRE_EARLY_START=0: without programmatic launches. */
#include "backend/cuda/qact/quantise.h"
#include "backend/cuda/rows/elementwise.h"
#include "backend/cuda/rows/norm.cu"
#include "backend/cuda/rows/norm.h"
#include "backend/cuda/value.h"
#include "graph_time.cuh"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

enum { NODES = 60, REPLAYS = 15 };

static cudaStream_t stream;
static uint64_t seed = 88172645463325252ull;

#define TRY_CUDA(call)                                                                       \
    do {                                                                                     \
        cudaError_t code_ = (call);                                                          \
        if (code_ != cudaSuccess) {                                                          \
            printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(code_)); \
            exit(1);                                                                         \
        }                                                                                    \
    } while (0)

static float uniform() {
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return (float)(seed >> 40) * 0x1p-23f - 1.0f;
}

static int bytes_of(element e) { return e == ELEMENT_F32 ? 4 : e == ELEMENT_E4M3 ? 1 : 2; }

static float decode(element e, const void *at, int64_t i) {
    switch (e) {
    case ELEMENT_F32: return static_cast<const float *>(at)[i];
    case ELEMENT_F16: return __half2float(static_cast<const __half *>(at)[i]);
    case ELEMENT_BF16: return __bfloat162float(static_cast<const __nv_bfloat16 *>(at)[i]);
    default: {
        int code = static_cast<const uint8_t *>(at)[i], exponent = code >> 3 & 15, fraction = code & 7;
        if ((code & 127) == 127)
            return NAN;
        float size = exponent ? ldexpf(1.0f + fraction / 8.0f, exponent - 7) : ldexpf(fraction / 8.0f, -6);
        return code & 128 ? -size : size;
    }
    }
}

/* Rows on the device, every byte 0xff (NaN in all elements) until filled. */
struct rows {
    dmat m;
    int n;
    std::vector<float> values; // as the device has them
    rows(int n_rows, int width, element e, int extra = 0) : n(n_rows) {
        m = {nullptr, width + extra, width, e, nullptr};
        size_t n_bytes = (size_t)n * m.stride * bytes_of(e);
        TRY_CUDA(cudaMalloc(&m.at, n_bytes));
        TRY_CUDA(cudaMemset(m.at, 0xff, n_bytes));
        if (e == ELEMENT_E4M3) {
            TRY_CUDA(cudaMalloc(&m.scale, n * sizeof(float)));
            TRY_CUDA(cudaMemset(m.scale, 0xff, n * sizeof(float)));
        }
    }
    rows(const rows &) = delete;
    ~rows() {
        cudaFree(m.at);
        cudaFree(m.scale);
    }
    void fill(float size, float centre = 0) {
        std::vector<char> host((size_t)n * m.stride * bytes_of(m.element));
        for (int64_t i = 0; i < n * m.stride; i++) {
            float x = centre + uniform() * size;
            if (m.element == ELEMENT_F32)
                reinterpret_cast<float *>(host.data())[i] = x;
            else if (m.element == ELEMENT_F16)
                reinterpret_cast<__half *>(host.data())[i] = __float2half(x);
            else
                reinterpret_cast<__nv_bfloat16 *>(host.data())[i] = __float2bfloat16(x);
        }
        TRY_CUDA(cudaMemcpy(m.at, host.data(), host.size(), cudaMemcpyHostToDevice));
        fetch();
    }
    void fetch() {
        std::vector<char> host((size_t)n * m.stride * bytes_of(m.element));
        std::vector<float> scale(n, 1.0f);
        TRY_CUDA(cudaMemcpy(host.data(), m.at, host.size(), cudaMemcpyDeviceToHost));
        if (m.scale)
            TRY_CUDA(cudaMemcpy(scale.data(), m.scale, n * sizeof(float), cudaMemcpyDeviceToHost));
        values.resize((size_t)n * m.width);
        for (int t = 0; t < n; t++)
            for (int i = 0; i < m.width; i++)
                values[(size_t)t * m.width + i] = decode(m.element, host.data(), t * m.stride + i) * scale[t];
    }
    const float *row(int t) const { return values.data() + (size_t)t * m.width; }
};

static struct launch step_of(int n_rows) {
    struct launch l = {};
    l.stream = stream;
    l.n_tokens = l.n_seqs = l.n_rows = n_rows;
    return l;
}

/* As a LINEAR leaves them: m's elements are unscaled products with scales that bring them back to about their size. */
struct unscaled_scales {
    rows of_row, of_column;
    unscaled_scales(rows &products) : of_row(1, products.n, ELEMENT_F32), of_column(1, products.m.width, ELEMENT_F32) {
        of_row.fill(0.4f, 0.6f); // so that no row is too small for half precision
        of_column.fill(1);
        products.m.row_scale = static_cast<const float *>(of_row.m.at);
        products.m.col_scale = static_cast<const float *>(of_column.m.at);
        for (int t = 0; t < products.n; t++)
            for (int i = 0; i < products.m.width; i++)
                products.values[(size_t)t * products.m.width + i] *= of_row.row(0)[t] * of_column.row(0)[i];
    }
};

static dweight vector_of(rows &w) { return dweight{w.m.at, w.m.width, 1, ELEMENT_F32, nullptr}; }

// ---- checks -----------------------------------------------------------------------------------------------------

static int n_wrong;

/* got against want: error relative to the row's largest, and for qacts the cosine. */
static void expect(const char *what, rows &got, const std::vector<double> &want, double bound) {
    got.fetch();
    double worst = 0, cosine = 1;
    for (int t = 0; t < got.n; t++) {
        double most = 0, off = 0, gw = 0, gg = 0, ww = 0;
        for (int i = 0; i < got.m.width; i++) {
            double g = got.row(t)[i], w = want[(size_t)t * got.m.width + i];
            most = std::max(most, fabs(w));
            if (!(fabs(g - w) <= off))
                off = fabs(g - w);
            gw += g * w, gg += g * g, ww += w * w;
        }
        if (!(off / most <= worst))
            worst = off / most;
        if (!(gw / sqrt(gg * ww) >= cosine))
            cosine = gw / sqrt(gg * ww);
    }
    bool right = worst <= bound && (got.m.element != ELEMENT_E4M3 || cosine >= 0.999);
    printf("%-60s error %.3g (%.3g)  cosine %.7f%s\n", what, worst, bound, cosine, right ? "" : "  WRONG");
    n_wrong += !right;
}

static double bound_of(element e) {
    return e == ELEMENT_F32    ? 2e-6
           : e == ELEMENT_F16  ? 6e-4
           : e == ELEMENT_BF16 ? 4.5e-3
                               : 0.0365; // e4m3: half of the last step, 32 of 448, and a bit
}

static void norm_double(const double *x, const float *w, bool plus_one, int n, double eps, double *y) {
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += x[i] * x[i];
    double factor = 1 / sqrt(sum / n + eps);
    for (int i = 0; i < n; i++)
        y[i] = x[i] * factor * (w ? w[i] + (plus_one ? 1.0 : 0.0) : 1.0);
}

static void check_add_norm(int n_rows, int width, element d_element, element y_element, bool given, bool normed,
                           bool scaled, bool plus_one, int extra, bool raw = false) {
    rows x(n_rows, width, ELEMENT_F32, extra), d(n_rows, width, d_element, extra), r(n_rows, width, ELEMENT_F32, extra);
    rows y(n_rows, width, y_element, extra), only(n_rows, width, y_element, extra), w(1, width, ELEMENT_F32),
        v(1, width, ELEMENT_F32), scale(1, 1, ELEMENT_F32), both(n_rows, (width + 15) / 16 * 16, ELEMENT_E4M3),
        qact(n_rows, (width + 15) / 16 * 16, ELEMENT_E4M3);
    x.fill(3), d.fill(40), w.fill(2), v.fill(2), scale.fill(1.5f);
    both.m.width = qact.m.width = width;
    unscaled_scales *scales = raw ? new unscaled_scales(d) : nullptr;
    struct dadd_norm a = {vector_of(w), scaled ? vector_of(scale) : dweight{}, 1e-5f,
                          plus_one,     normed ? vector_of(v) : dweight{},     1e-6f,
                          plus_one};
    dmat none = {}, given_d = given ? d.m : none;
    struct launch l = step_of(n_rows);
    launch_add_norm(&l, &a, x.m, given_d, r.m, y.m, both.m);
    launch_add_norm(&l, &a, x.m, given_d, r.m, only.m, none);
    launch_add_norm(&l, &a, x.m, given_d, r.m, dmat{nullptr, y.m.stride, width, y_element, nullptr}, qact.m);
    TRY_CUDA(cudaGetLastError());
    TRY_CUDA(cudaStreamSynchronize(stream));
    std::vector<double> want_r, want_y((size_t)n_rows * width), dd(width);
    for (int t = 0; t < n_rows; t++) {
        for (int i = 0; i < width; i++)
            dd[i] = given ? d.row(t)[i] : 0.0;
        if (normed)
            norm_double(std::vector<double>(dd).data(), v.row(0), plus_one, width, 1e-6, dd.data());
        for (int i = 0; i < width; i++)
            want_r.push_back((x.row(t)[i] + dd[i]) * (scaled ? scale.row(0)[0] : 1.0));
        norm_double(want_r.data() + (size_t)t * width, w.row(0), plus_one, width, 1e-5,
                    want_y.data() + (size_t)t * width);
    }
    char what[200];
    snprintf(what, sizeof what, "add_norm %d x %d+%d d %s%d%s y %d%s%s", n_rows, width, extra, given ? "" : "none ",
             d_element, raw ? " raw" : "", y_element, normed ? " normed" : "", scaled ? " scaled" : "");
    expect((std::string(what) + " r").c_str(), r, want_r, 2e-6);
    expect((std::string(what) + " y").c_str(), y, want_y, bound_of(y_element));
    expect((std::string(what) + " y alone").c_str(), only, want_y, bound_of(y_element));
    expect((std::string(what) + " twin").c_str(), both, want_y, bound_of(ELEMENT_E4M3));
    expect((std::string(what) + " twin alone").c_str(), qact, want_y, bound_of(ELEMENT_E4M3));
    delete scales;
}

static void check_norm(int n_rows, int width, int group, element x_element, element y_element, bool gated) {
    rows x(n_rows, width, x_element), gate(n_rows, width, x_element), y(n_rows, width, y_element),
        w(1, group, ELEMENT_F32), qact(n_rows, (width + 15) / 16 * 16, ELEMENT_E4M3);
    x.fill(5), gate.fill(4), w.fill(2);
    qact.m.width = width;
    struct launch l = step_of(n_rows);
    launch_norm(&l, n_rows, x.m, gated ? gate.m : dmat{}, vector_of(w), 1e-6f, true, group, 0.75f, y.m,
                group == width ? qact.m : dmat{});
    TRY_CUDA(cudaGetLastError());
    TRY_CUDA(cudaStreamSynchronize(stream));
    std::vector<double> want((size_t)n_rows * width);
    for (size_t at = 0; at < want.size(); at += group) {
        std::vector<double> in(x.values.begin() + at, x.values.begin() + at + group);
        norm_double(in.data(), w.row(0), true, group, 1e-6, want.data() + at);
        for (int i = 0; i < group; i++)
            want[at + i] *= 0.75 * (gated ? gate.values[at + i] / (1 + exp(-(double)gate.values[at + i])) : 1.0);
    }
    char what[200];
    snprintf(what, sizeof what, "norm %d x %d group %d x %d y %d%s", n_rows, width, group, x_element, y_element,
             gated ? " gated" : "");
    expect(what, y, want, bound_of(y_element));
    if (group == width)
        expect((std::string(what) + " twin").c_str(), qact, want, bound_of(ELEMENT_E4M3));
}

static double act_double(int act, double limit, double g, double u) {
    switch (act) {
    case 0: return g / (1 + exp(-g)) * u;
    case 1: return 0.5 * g * (1 + tanh(0.7978845608028654 * (g + 0.044715 * g * g * g))) * u;
    case 2: return 0.5 * g * (1 + erf(g * 0.7071067811865476)) * u;
    case 3: return 1 / (1 + exp(-g)) * u;
    default:
        g = std::min(g, limit), u = std::max(std::min(u, limit), -limit);
        return (u + 1) * g / (1 + exp(-1.702 * g));
    }
}

/* Largest sizes of rows, as a step has them. */
struct largest_sizes {
    uint32_t *at;
    int n;
    explicit largest_sizes(int n_rows) : n(n_rows) {
        TRY_CUDA(cudaMalloc(&at, n * sizeof *at));
        TRY_CUDA(cudaMemset(at, 0, n * sizeof *at));
    }
    largest_sizes(const largest_sizes &) = delete;
    ~largest_sizes() { cudaFree(at); }
    static uint32_t of_row(const rows &x, int t) {
        float most = 0;
        for (int i = 0; i < x.m.width; i++)
            most = std::max(most, fabsf(x.row(t)[i]));
        uint32_t bits;
        memcpy(&bits, &most, sizeof bits);
        return bits;
    }
    void find(const rows &x) {
        std::vector<uint32_t> host;
        for (int t = 0; t < n; t++)
            host.push_back(of_row(x, t));
        TRY_CUDA(cudaMemcpy(at, host.data(), n * sizeof *at, cudaMemcpyHostToDevice));
    }
};

static void check_quantise(int n_rows, int width, element e, int extra) {
    rows x(n_rows, width, e, extra), looked(n_rows, width, ELEMENT_E4M3), known(n_rows, width, ELEMENT_E4M3);
    x.fill(5);
    largest_sizes most(n_rows);
    most.find(x);
    struct launch l = step_of(n_rows);
    launch_quantise(&l, n_rows, x.m, looked.m);
    x.m.absmax = most.at;
    launch_quantise(&l, n_rows, x.m, known.m);
    TRY_CUDA(cudaGetLastError());
    TRY_CUDA(cudaStreamSynchronize(stream));
    std::vector<double> want(x.values.begin(), x.values.end());
    char what[200];
    snprintf(what, sizeof what, "quantise %d x %d+%d %d", n_rows, width, extra, e);
    expect(what, looked, want, bound_of(ELEMENT_E4M3));
    expect((std::string(what) + ", largest known").c_str(), known, want, bound_of(ELEMENT_E4M3));
}

static void check_act(int act, int n_rows, int width, element in, element out, bool raw = false) {
    rows both(n_rows, 2 * width, in), y(n_rows, width, out), only(n_rows, width, out),
        qact(n_rows, (width + 15) / 16 * 16, ELEMENT_E4M3), lone(n_rows, (width + 15) / 16 * 16, ELEMENT_E4M3);
    both.fill(9);
    qact.m.width = lone.m.width = width;
    unscaled_scales *scales = raw ? new unscaled_scales(both) : nullptr;
    dmat gate = both.m, up = both.m, none = {};
    gate.width = up.width = width;
    up.col_scale = raw ? up.col_scale + width : nullptr;
    up.at = static_cast<char *>(up.at) + width * bytes_of(in);
    struct launch l = step_of(n_rows);
    bool qacts = gated_act_takes_qact(act, gate, up, y.m);
    launch_gated_act(&l, n_rows, act, 7, gate, up, only.m, none);
    none.element = out;
    if (qacts) {
        launch_gated_act(&l, n_rows, act, 7, gate, up, y.m, qact.m);
        launch_gated_act(&l, n_rows, act, 7, gate, up, none, lone.m);
    }
    TRY_CUDA(cudaGetLastError());
    TRY_CUDA(cudaStreamSynchronize(stream));
    std::vector<double> want;
    for (int t = 0; t < n_rows; t++)
        for (int i = 0; i < width; i++)
            want.push_back(act_double(act, 7, both.row(t)[i], both.row(t)[width + i]));
    char what[200];
    delete scales;
    snprintf(what, sizeof what, "gated_act %d %d x %d in %d%s out %d", act, n_rows, width, in, raw ? " raw" : "", out);
    expect((std::string(what) + " alone").c_str(), only, want, bound_of(out));
    if (!qacts)
        return;
    expect(what, y, want, out == ELEMENT_F32 ? 4e-6 : bound_of(out));
    expect((std::string(what) + " twin").c_str(), qact, want, bound_of(ELEMENT_E4M3));
    expect((std::string(what) + " twin alone").c_str(), lone, want, bound_of(ELEMENT_E4M3));
}

static void check_all() {
    static const element all[] = {ELEMENT_F32, ELEMENT_F16, ELEMENT_BF16};
    static const int widths[] = {4, 64, 128, 896, 1536, 3584, 4096, 5120, 5376, 8192, 8196, 33, 16384};
    for (int width : widths)
        for (element d : all)
            for (int variant = 0; variant < 9; variant++) {
                static const int n_rows[] = {1, 4, 7, 10, 13, 16, 17, 65, 161};
                bool fits = width % 4 == 0 && width <= WIDEST, normed = variant >= 5 && fits;
                check_add_norm(n_rows[variant], width, d, all[(variant + width) % 3], variant != 3, normed, variant % 2,
                               variant & 2, variant == 2 ? 4 : variant == 1,
                               d == ELEMENT_F16 && variant >= 4 && variant != 6);
            }
    for (element in : all)
        for (element out : all) {
            static const int shapes[][2] = {{128, 128},   {512, 64},    {1024, 128},  {2048, 256},
                                            {512, 512},   {1024, 1024}, {99, 33},     {1536, 1536},
                                            {5376, 5376}, {8192, 8192}, {9000, 9000}, {256, 8}};
            for (auto s : shapes)
                check_norm(5, s[0], s[1], in, out, s[0] % 8 == 0);
            for (int act = 0; act < 5; act++)
                for (int width : {16, 37, 1000, 4864, 9216, 18944, 21504, 28672})
                    for (int n_rows : {3, 33, 70, 161}) {
                        if (n_rows == 161 && in != ELEMENT_F16)
                            continue;
                        if (act > 1 && n_rows > 3)
                            continue;
                        check_act(act, n_rows, width, in, out);
                        if (in == ELEMENT_F16 && n_rows != 3)
                            check_act(act, n_rows, width, in, out, true);
                    }
        }
    for (element e : all)
        for (int width : {16, 48, 3584, 18944, 32768, 40000})
            for (int n_rows : {1, 7, 33, 128, 300, 512})
                check_quantise(n_rows, width, e, n_rows == 7 ? 3 : n_rows == 33 ? 8 : 0);
    printf("%d wrong\n", n_wrong);
}

// ---- times ------------------------------------------------------------------------------------------------------

static double time_us(const std::function<void(int)> &node) {
    std::vector<double> times = replay_times(
        stream,
        [&] {
            for (int i = 0; i < NODES; i++)
                node(i);
            return true;
        },
        REPLAYS, 3);
    return times[times.size() / 2] / NODES;
}

static void tell(const char *what, int n_rows, int width, double n_bytes, double us) {
    printf("%-34s %5d x %-6d %7.2f us %7.0f GB/s\n", what, n_rows, width, us, n_bytes / us * 1e-3);
}

static __global__ void nothing(int) {
    let_next_start();
    wait_for_previous();
}

static void time_nothing(int n_blocks) {
    char what[80];
    snprintf(what, sizeof what, "nothing, %d blocks", n_blocks);
    tell(what, 0, 0, 0, time_us([&](int i) { launch_node(nothing, n_blocks, 256, 0, stream, i); }));
}

template <int C, int FOURS, bool NORMED> static void time_blocks(int n_rows, const add_norm_args &a, double n_bytes) {
    int threads = threads_of(a.x.width / 4, C, FOURS);
    if (threads > MOST_THREADS || C * threads / 32 > MAX_ROW_WARPS)
        return;
    char what[80];
    snprintf(what, sizeof what, "  %d x %d threads of %d fours%s", C, threads, FOURS, NORMED ? ", normed" : "");
    tell(what, n_rows, a.x.width, n_bytes, time_us([&](int) {
             launch_node(add_norm<ELEMENT_F32, false, NORMED, C, FOURS>, C * n_rows, threads, 0, stream, a);
         }));
}

template <bool NORMED> static void time_spreads(int n_rows, const add_norm_args &a, double n_bytes) {
    time_blocks<8, 1, NORMED>(n_rows, a, n_bytes);
    time_blocks<4, 1, NORMED>(n_rows, a, n_bytes);
    time_blocks<4, 2, NORMED>(n_rows, a, n_bytes);
    time_blocks<2, 2, NORMED>(n_rows, a, n_bytes);
    time_blocks<1, 3, NORMED>(n_rows, a, n_bytes);
    time_blocks<1, 4, NORMED>(n_rows, a, n_bytes);
}

static void time_add_norm(int n_rows, int width) {
    rows x(n_rows, width, ELEMENT_F32), d(n_rows, width, ELEMENT_F32), half(n_rows, width, ELEMENT_F16),
        y(n_rows, width, ELEMENT_F16), w(1, width, ELEMENT_F32), v(1, width, ELEMENT_F32),
        qact(n_rows, width, ELEMENT_E4M3);
    x.fill(1), d.fill(1), half.fill(1), w.fill(1), v.fill(1);
    TRY_CUDA(cudaMemset(d.m.at, 0, (size_t)n_rows * width * 4)); // r stays what it was
    struct dadd_norm a = {vector_of(w), {}, 1e-6f, false, {}, 0, false}, normed = a;
    normed.d_norm = vector_of(v);
    dmat none = {}, no_y = {nullptr, width, width, ELEMENT_F16, nullptr};
    struct launch l = step_of(n_rows);
    double size = (double)n_rows * width;
    tell("add_norm", n_rows, width, size * 14,
         time_us([&](int) { launch_add_norm(&l, &a, x.m, d.m, x.m, y.m, none); }));
    tell("add_norm d 16 bit", n_rows, width, size * 12,
         time_us([&](int) { launch_add_norm(&l, &a, x.m, half.m, x.m, y.m, none); }));
    tell("add_norm twin alone", n_rows, width, size * 13,
         time_us([&](int) { launch_add_norm(&l, &a, x.m, d.m, x.m, no_y, qact.m); }));
    tell("add_norm d 16 bit, twin alone", n_rows, width, size * 11,
         time_us([&](int) { launch_add_norm(&l, &a, x.m, half.m, x.m, no_y, qact.m); }));
    rows products(n_rows, width, ELEMENT_F16);
    products.fill(1);
    unscaled_scales scales(products);
    tell("add_norm d raw, twin alone", n_rows, width, size * 11,
         time_us([&](int) { launch_add_norm(&l, &a, x.m, products.m, x.m, no_y, qact.m); }));
    tell("add_norm y and twin", n_rows, width, size * 15,
         time_us([&](int) { launch_add_norm(&l, &a, x.m, d.m, x.m, y.m, qact.m); }));
    tell("add_norm, d normed", n_rows, width, size * 14,
         time_us([&](int) { launch_add_norm(&l, &normed, x.m, d.m, x.m, y.m, none); }));
    tell("norm", n_rows, width, size * 8, time_us([&](int i) {
             launch_norm(&l, n_rows, i % 2 ? d.m : x.m, none, vector_of(w), 1e-6f, false, width, 1, i % 2 ? x.m : d.m,
                         none);
         }));
    add_norm_args args = {
        x.m, d.m, norm_by(a.w, 1e-6f, false, width), norm_by(normed.d_norm, 1e-6f, false, width), nullptr, x.m,
        y.m, none};
    time_spreads<false>(n_rows, args, size * 14);
    time_spreads<true>(n_rows, args, size * 14);
}

static void time_quantise(int n_rows, int width) {
    rows x(n_rows, width, ELEMENT_F16), qact(n_rows, width, ELEMENT_E4M3);
    x.fill(4);
    largest_sizes most(n_rows);
    most.find(x);
    struct launch l = step_of(n_rows);
    double n_bytes = (double)n_rows * width * 3;
    tell("quantise 16 bit", n_rows, width, n_bytes, time_us([&](int) { launch_quantise(&l, n_rows, x.m, qact.m); }));
    x.m.absmax = most.at;
    tell("quantise 16 bit, largest known", n_rows, width, n_bytes,
         time_us([&](int) { launch_quantise(&l, n_rows, x.m, qact.m); }));
}

static void time_act(int n_rows, int width) {
    rows wide(n_rows, 2 * width, ELEMENT_F32), half(n_rows, 2 * width, ELEMENT_F16), y(n_rows, width, ELEMENT_F16),
        qact(n_rows, width, ELEMENT_E4M3);
    rows ones(1, 2 * width, ELEMENT_F32);
    wide.fill(4), half.fill(4), ones.fill(0.001f);
    dmat none = {}, no_y = {nullptr, width, width, ELEMENT_F16, nullptr}, g32 = wide.m, g16 = half.m;
    g32.width = g16.width = width;
    dmat u32 = g32, u16 = g16;
    u32.at = static_cast<float *>(u32.at) + width, u16.at = static_cast<__half *>(u16.at) + width;
    struct launch l = step_of(n_rows);
    double size = (double)n_rows * width;
    for (int act = 0; act < 2; act++) {
        printf("%s\n", act ? "gelu_tanh" : "silu");
        tell("gated_act of float32", n_rows, width, size * 10,
             time_us([&](int) { launch_gated_act(&l, n_rows, act, 0, g32, u32, y.m, none); }));
        tell("gated_act of 16 bit", n_rows, width, size * 6,
             time_us([&](int) { launch_gated_act(&l, n_rows, act, 0, g16, u16, y.m, none); }));
        tell("gated_act of float32, twin", n_rows, width, size * 9,
             time_us([&](int) { launch_gated_act(&l, n_rows, act, 0, g32, u32, no_y, qact.m); }));
        dmat graw = g16, uraw = u16;
        graw.row_scale = uraw.row_scale = static_cast<const float *>(ones.m.at);
        graw.col_scale = uraw.col_scale = static_cast<const float *>(ones.m.at);
        tell("gated_act of raw, twin", n_rows, width, size * 5,
             time_us([&](int) { launch_gated_act(&l, n_rows, act, 0, graw, uraw, no_y, qact.m); }));
        tell("gated_act of 16 bit, twin", n_rows, width, size * 5,
             time_us([&](int) { launch_gated_act(&l, n_rows, act, 0, g16, u16, no_y, qact.m); }));
    }
    time_quantise(n_rows, width);
}

int main(int argc, char **argv) {
    TRY_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    if (argc > 1 && strcmp(argv[1], "check") == 0) {
        check_all();
        return n_wrong > 0;
    }
    printf("started early: %s\n", nodes_start_early() ? "yes" : "no");
    for (int n : {1, 132})
        time_nothing(n);
    for (int n_rows : {1, 8, 32, 128, 256, 512}) {
        for (int width : {3584, 4096, 5376})
            time_add_norm(n_rows, width);
        time_quantise(n_rows, 3584);
        for (int width : {18944, 21504})
            time_act(n_rows, width);
    }
    return 0;
}
