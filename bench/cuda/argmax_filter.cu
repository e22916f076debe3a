/* argmax_filter.cu - times screening (src/backend/cuda/head/argmax_filter.cu) beside lm_head.cu and SAMPLE, which it
 * stands for.
 *
 *     bench_argmax_filter [table|alike|masks1000|outliers12|... [ROWS ...]]
 *                                               the head of Qwen2.5-7B in bfloat16, normal
 *                                               values: all nodes, by turns with lm_head.cu and SAMPLE, and nodes
 *                                               alone; alike: rows that have nine tenths in common, and so the same
 *                                               candidates; masks: one token in so many may come, the same of all
 *                                               rows, each of which has its own mask; outliers: a channel in 500 is so
 *                                               many times the others, first as it is, then with columns scaled by
 *                                               what steps have learned
 *
 * Every figure twice: of a short graph, and steady, after some tenths of a second of the same, when power has taken the
 * clock down as it does in a step. */
#include "backend/cuda/head/argmax_filter.cu"
#include "backend/cuda/head/argmax_filter.h"
#include "backend/cuda/head/lm_head.h"
#include "backend/cuda/sample/sample.h"
#include "backend/cuda/value.h"

#include "products.cuh"

static launch l;
static struct {
    void *w, *copy, *scratch, *x;
    float *logits;
    dbest *bests;
    dweight weight;
    dmat x_of;
    dfilter_state *state;
    int32_t *asked;
    dl2_sides sides;
    std::vector<uint32_t> flips;
    bool masked;
} d;
enum { OUT = 152064, IN = 3584 };

/* Rows of x are alike, as those of a step are: `common` of all, the rest their own. */
static __global__ void mix_rows(__nv_bfloat16 *x, int n, float common) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x + IN; i < n * IN; i += gridDim.x * blockDim.x)
        x[i] = __float2bfloat16(common * __bfloat162float(x[i % IN]) +
                                sqrtf(1 - common * common) * __bfloat162float(x[i]));
}
static __global__ void fill_normal(__nv_bfloat16 *at, size_t n, float deviation, uint64_t seed) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        uint64_t v = screen::mixed(seed * 0x100000000u + i);
        float u = ((uint32_t)v + 0.5f) / 4294967296.0f, angle = screen::uniform((uint32_t)(v >> 32));
        at[i] = __float2bfloat16(deviation * sqrtf(-2 * logf(u)) * cospif(2 * angle));
    }
}

static __global__ void widen(__nv_bfloat16 *x, int n, float times) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n * IN; i += gridDim.x * blockDim.x)
        if (screen::mixed(i % IN) % 500 == 0)
            x[i] = __float2bfloat16(times * __bfloat162float(x[i]));
}

/* As argmax_filter.c has them. */
static void find_sides() {
    int n_pages = (int)((filter_pages_bytes(d.weight) + SIDES_PAGE - 1) / SIDES_PAGE);
    dside_pages found = {};
    d.copy = (char *)d.copy + (-(uintptr_t)d.copy & (SIDES_PAGE - 1));
    if (getenv("GYRE_L2_COPIES") && !strcmp(getenv("GYRE_L2_COPIES"), "0"))
        return;
    TRY(l2_sides_find(stream, &d.sides));
    d.flips.resize(n_pages / 32 + 1);
    if (!d.sides.none)
        TRY(sides_of_pages(stream, &d.sides, d.copy, n_pages, d.flips.data(), &found));
    if (d.sides.none || found.none)
        d.flips.clear();
    printf("sides: %s\n", d.sides.none ? d.sides.none : found.none ? found.none : "known");
}

/* A mask each, of tokens that a multiple of one_in is mixed to. */
static void mask_rows(std::vector<drow> &rows, dplaces *places, int one_in) {
    enum { WORDS = OUT / 32 };
    std::vector<int32_t> masks(rows.size() * WORDS), newest(rows.size(), -1);
    for (size_t r = 0; r < rows.size(); r++) {
        rows[r].mask = (int32_t)r * WORDS, rows[r].is_plain = 0, rows[r].is_changed = 1, rows[r].repetition = 1;
        for (int i = 0; i < OUT; i++)
            masks[r * WORDS + i / 32] |= (int32_t)((uint32_t)(screen::mixed(i) % one_in == 0) << i % 32);
    }
    int32_t *lists, *device_newest;
    TRY(cudaMalloc(&lists, masks.size() * 4));
    TRY(cudaMemcpy(lists, masks.data(), masks.size() * 4, cudaMemcpyHostToDevice));
    TRY(cudaMalloc(&device_newest, newest.size() * 4));
    TRY(cudaMemcpy(device_newest, newest.data(), newest.size() * 4, cudaMemcpyHostToDevice));
    places->lists = lists;
    l.plan.newest = device_newest;
    d.masked = true;
}

/* one_in: of masks; 0: there are none. */
static void open_all(float common, float times, int one_in) {
    TRY(cudaStreamCreate(&stream));
    d.weight = {nullptr, OUT, IN, ELEMENT_BF16, nullptr};
    TRY(cudaMalloc(&d.w, (size_t)OUT * IN * 2));
    TRY(cudaMalloc(&d.x, (size_t)HEAD_MAX_ROWS * IN * 2));
    TRY(cudaMalloc(&d.copy, filter_copy_bytes(d.weight) + 2 * SIDES_PAGE));
    TRY(cudaMalloc(&d.scratch, filter_scratch_bytes(d.weight, HEAD_MAX_ROWS)));
    TRY(cudaMalloc(&d.logits, (size_t)HEAD_MAX_ROWS * OUT * 4));
    TRY(cudaMalloc(&d.bests, HEAD_MAX_ROWS * HEAD_BESTS * sizeof(dbest)));
    TRY(cudaMalloc(&d.state, sizeof *d.state));
    TRY(cudaMemset(d.state, 0, sizeof *d.state));
    TRY(cudaMallocHost(&d.asked, sizeof *d.asked));
    fill_normal<<<4096, 256, 0, stream>>>((__nv_bfloat16 *)d.w, (size_t)OUT * IN, 0.02f, 1);
    fill_normal<<<512, 256, 0, stream>>>((__nv_bfloat16 *)d.x, (size_t)HEAD_MAX_ROWS * IN, 1, 2);
    mix_rows<<<512, 256, 0, stream>>>((__nv_bfloat16 *)d.x, HEAD_MAX_ROWS, common);
    widen<<<512, 256, 0, stream>>>((__nv_bfloat16 *)d.x, HEAD_MAX_ROWS, times);
    d.weight.at = d.w;
    d.x_of = {d.x, IN, IN, ELEMENT_BF16};
    std::vector<drow> rows(HEAD_MAX_ROWS);
    for (drow &r : rows)
        r = {}, r.is_plain = 1, r.mask = -1;
    drow *device_rows;
    dplaces *device_places, places = {};
    if (one_in > 0)
        mask_rows(rows, &places, one_in);
    TRY(cudaMalloc(&device_rows, rows.size() * sizeof(drow)));
    TRY(cudaMemcpy(device_rows, rows.data(), rows.size() * sizeof(drow), cudaMemcpyHostToDevice));
    TRY(cudaMallocHost(&places.sampled, HEAD_MAX_ROWS * sizeof(dsampled))); // of the host, as in a step
    TRY(cudaMalloc(&places.row_token, HEAD_MAX_ROWS * 4));
    TRY(cudaMalloc(&device_places, sizeof places));
    TRY(cudaMemcpy(device_places, &places, sizeof places, cudaMemcpyHostToDevice));
    find_sides();
    l.stream = stream;
    l.plan.rows = device_rows;
    l.plan.places = device_places;
    TRY(cudaMalloc((void **)&l.plan.counts, 5 * sizeof(int)));
}

static dfilter the_screen() {
    bool l2_copy = !d.flips.empty();
    return {d.weight, 0, 0, d.copy, d.scratch, d.state, d.asked, nullptr, l2_copy ? &d.sides : nullptr, d.flips.data()};
}

static bool put_head(int n, const int32_t *done = nullptr) {
    dlm_head h = {d.weight, nullptr, 0};
    dmat logits = {d.logits, OUT, OUT, ELEMENT_F32};
    if (launch_lm_head(&l, n, &h, d.x_of, logits, d.bests, done) != cudaSuccess)
        return false;
    launch_sample(&l, logits, dbests{d.bests, head_parts(&h, n), done}, nullptr);
    return true;
}
/* As in a step: lm_head.cu and SAMPLE behind it, with nothing to do. */
static bool put_screen(int n) {
    dfilter s = the_screen();
    return launch_filter(&l, n, &s, d.x_of) == cudaSuccess && put_head(n, &d.state->is_done);
}
static screen::scratch the_scratch(int n) {
    screen::placing p = {static_cast<char *>(d.scratch), 0};
    return screen::scratch_at(p, IN, n);
}
static void put_rows(int n) {
    dfilter s = the_screen();
    screen::copied w = {screen::columns_of(&s), screen::rows_of(&s), OUT};
    launch_node(screen::round_rows<true>, dim3(n + 1), dim3(screen::row_threads(IN)), 0, stream, l.plan, d.x_of, w,
                the_scratch(n), d.state, screen::host_words{d.asked, nullptr});
}
static bool put_product(int n) {
    dfilter s = the_screen();
    return screen::launch_product(&l, n, &s, the_scratch(n)) == cudaSuccess;
}
static double milliseconds(const std::function<void()> &put) {
    static cudaEvent_t begin, end;
    float ms;
    if (!begin) {
        TRY(cudaEventCreate(&begin));
        TRY(cudaEventCreate(&end));
    }
    TRY(cudaEventRecord(begin, stream));
    put();
    TRY(cudaEventRecord(end, stream));
    TRY(cudaEventSynchronize(end));
    TRY(cudaEventElapsedTime(&ms, begin, end));
    return ms;
}
static bool ten(const std::function<bool()> &put) {
    for (int i = 0; i < 10; i++)
        if (!put())
            return false;
    return true;
}
static double short_us(const std::function<bool()> &put) {
    return microseconds(
               stream, [&] { return ten(put); }, 9) /
           10;
}
static double steady_us(const std::function<bool()> &put) {
    return steady_microseconds(
               stream, [&] { return ten(put); }, 0.25) /
           10;
}

static void print_lists(int n) {
    screen::scratch at = the_scratch(n);
    std::vector<int32_t> found(n);
    std::vector<float> bests(n);
    std::vector<screen::candidate> list((size_t)n * screen::MOST_FOUND);
    put_screen(n);
    TRY(cudaStreamSynchronize(stream));
    TRY(cudaMemcpy(found.data(), at.n_found, n * 4, cudaMemcpyDeviceToHost));
    TRY(cudaMemcpy(bests.data(), at.bests, n * 4, cudaMemcpyDeviceToHost));
    TRY(cudaMemcpy(list.data(), at.found, list.size() * sizeof list[0], cudaMemcpyDeviceToHost));
    double sum = 0, exact = 0;
    int most = 0, most_exact = 0;
    for (int r = 0; r < n; r++) {
        int here = 0;
        for (int i = 0; i < std::min(found[r], (int)screen::MOST_FOUND); i++)
            here += list[(size_t)r * screen::MOST_FOUND + i].upper >= bests[r];
        sum += found[r], exact += here;
        most = std::max(most, found[r]), most_exact = std::max(most_exact, here);
    }
    dfilter_state state;
    TRY(cudaMemcpy(&state, d.state, sizeof state, cudaMemcpyDeviceToHost));
    printf("       steps: %u done, %u left, paused %d\n", state.n_done, state.n_left, state.paused);
    printf("       a token's list has %.1f rows, at most %d, of which %.1f, at most %d, reach the best\n", sum / n,
           most, exact / n, most_exact);
}

static void set_rows(int n) {
    int counts[5] = {n, n, n, d.masked ? n : 0};
    l.n_rows = n;
    TRY(cudaMemcpy((void *)l.plan.counts, counts, sizeof counts, cudaMemcpyHostToDevice));
}

/* Steps of n rows until they ask for a copy, and that. */
static void learn(int n) {
    set_rows(n);
    dfilter s = the_screen();
    dfilter_state state;
    for (int i = 0; i < 40 && !*reinterpret_cast<volatile int32_t *>(d.asked); i++) {
        put_screen(n);
        TRY(cudaStreamSynchronize(stream));
    }
    if (!*d.asked)
        return;
    *d.asked = 0;
    double ms = milliseconds([&] { launch_filter_again(stream, &s); });
    TRY(cudaMemcpy(&state, d.state, sizeof state, cudaMemcpyDeviceToHost));
    printf("steps of %d rows: %u left, %u done; asked for other scales, %u made in %.2f ms\n", n, state.n_left,
           state.n_done, state.n_again, ms);
}

static void table(int n) {
    set_rows(n);
    if (!put_head(n) || !put_screen(n)) // what is found out at the first launch is not captured
        printf("does not start: ");
    TRY(cudaStreamSynchronize(stream));
    TRY(cudaGetLastError());
    double bytes = (double)OUT * IN, ops = 2.0 * OUT * IN * n;
    double head[2], screen[2];
    for (int turn = 0; turn < 2; turn++) {
        head[turn] = short_us([&] { return put_head(n); });
        screen[turn] = short_us([&] { return put_screen(n); });
    }
    double head_steady = steady_us([&] { return put_head(n); }),
           filter_steady = steady_us([&] { return put_screen(n); });
    double own = short_us([&] {
        dfilter s = the_screen();
        return launch_filter(&l, n, &s, d.x_of) == cudaSuccess;
    });
    double rows = short_us([&] { return put_rows(n), true; });
    double with_product = short_us([&] { return put_rows(n), put_product(n); });
    double steady_product = steady_us([&] { return put_rows(n), put_product(n); });
    printf("M=%-4d head + SAMPLE %.1f %.1f (steady %.1f)  screening %.1f %.1f (steady %.1f)  of it its own nodes %.1f, "
           "rows %.1f, rows + "
           "product %.1f (steady "
           "%.1f)\n",
           n, head[0], head[1], head_steady, screen[0], screen[1], filter_steady, own, rows, with_product,
           steady_product);
    printf("       rows + product: %.0f GB/s, %.0f%% of reading, %.0f Tops; steady %.0f%%, %.0f Tops\n",
           bytes / with_product / 1e3, bytes / with_product / PEAK * 1e8, ops / with_product / 1e6,
           bytes / steady_product / PEAK * 1e8, ops / steady_product / 1e6);
    print_lists(n);
    fflush(stdout);
}

int main(int argc, char **argv) {
    float times = argc > 1 && !strncmp(argv[1], "outliers", 8) ? (float)atof(argv[1] + 8) : 1;
    int one_in = argc > 1 && !strncmp(argv[1], "masks", 5) ? atoi(argv[1] + 5) : 0;
    open_all(argc > 1 && !strcmp(argv[1], "alike") ? 0.95f : 0, times, one_in);
    TRY(cudaMemset(d.scratch, 0xff, filter_scratch_bytes(d.weight, HEAD_MAX_ROWS)));
    unsigned long long *bad;
    TRY(cudaMalloc(&bad, 8));
    dfilter s = the_screen();
    milliseconds([&] { launch_filter_copy(stream, &s, bad); });
    printf("the copy: %.2f ms\n", milliseconds([&] { launch_filter_copy(stream, &s, bad); }));
    if (argc > 1 && !strcmp(argv[1], "product")) {
        for (int n : rows_of(argc, argv, {64, 128, 256, 512})) {
            set_rows(n);
            put_rows(n), put_product(n);
            TRY(cudaStreamSynchronize(stream));
            double us = short_us([&] { return put_rows(n), put_product(n); }),
                   steady = steady_us([&] { return put_rows(n), put_product(n); });
            printf("M=%-4d rows + product %.1f steady %.1f, %.0f Tops steady\n", n, us, steady,
                   2.0 * OUT * IN * n / steady / 1e6);
        }
        return 0;
    }
    if (times != 1)
        for (int n : {1, 64})
            learn(n);
    for (int n : rows_of(argc, argv, {1, 8, 32, 64, 128, 192, 256, 512}))
        table(std::min(n, (int)HEAD_MAX_ROWS));
    return 0;
}
