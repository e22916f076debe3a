/* nodes.cu - what the nodes of a step that are neither product nor attention cost on a GPU: ADD_NORM, NORM, GATED_ACT,
 * their e4m3 qacts, and launch_quantise.
 *
 *     build/cuda/bench_nodes [check]      a table; with check: every node against double precision, outputs poisoned
 *
 * A node's time is that of a graph of 60 of them, each behind the one before, divided by 60: the median of 15 replays.
 * What it reads was written just before, as in a step, and so comes from the L2 cache while it fits.
 * GYRE_EARLY_START=0: without programmatic launches. */
#include "nodes_checks.cuh"

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
