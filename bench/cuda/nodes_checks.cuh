/* nodes_checks.cuh - of nodes.cu: every node against double precision. */
#pragma once

#include "nodes_rows.cuh"

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
