/* test_quantise.cu - rows that are there by a scale known beforehand, or not (launch_quantise_rest of
 * src/backend/cuda/qact/quantise.cu).
 *
 * Rows that the scale fits must keep what is there, poison here; all others must be bit by bit what value.h says, of
 * the qact's elements and of 16 bits that are NaN where these tell, and are counted. The last rows of some steps are
 * there to fill it up: they are made and not counted. Values of unscaled products are held here too. */
#include "backend/cuda/qact/quantise.cu"
#include "backend/cuda/qact/quantise.h"
#include "backend/cuda/value.h"

#include "rows_of_sizes.cuh"

#include <time.h>
#include <vector>

enum { MOST_ROWS = 1100, MOST_WIDTH = 4096 };

struct counts {
    unsigned long long code, scale, stray, rows, own; // rows: that had to be made; own: of those, the step's
};

static __global__ void compare(dmat x, dmat got, dmat want, int n_rows, int n_own, counts *c) {
    int row = blockIdx.x;
    bool within = row < n_rows && is_within(x.absmax[row], got.static_scale);
    const uint8_t *is = static_cast<const uint8_t *>(got.at) + row * got.stride,
                  *made = static_cast<const uint8_t *>(want.at) + row * want.stride;
    for (int col = threadIdx.x; col < got.stride; col += blockDim.x) {
        bool inside = row < n_rows && col < got.width;
        if (is[col] != (inside ? made[col] : TWIN_POISON))
            atomicAdd(inside ? &c->code : &c->stray, 1);
    }
    if (threadIdx.x > 0)
        return;
    uint32_t scale = __float_as_uint(got.scale[row]);
    if (scale != (row < n_rows ? __float_as_uint(want.scale[row]) : TWIN_POISON * 0x1010101u))
        atomicAdd(&c->scale, 1);
    if (row < n_rows && !within)
        atomicAdd(&c->rows, 1);
    if (row < n_own && !within)
        atomicAdd(&c->own, 1);
}

static __global__ void unscaled_values(dmat raw, dmat to) { // a block a row
    int row = blockIdx.x;
    for (int col = threadIdx.x; col < to.width; col += blockDim.x)
        store(to, row, col,
              fmaf(load(raw.at, row * raw.stride + col, raw.element), raw.row_scale[row] * raw.col_scale[col],
                   raw.bias ? raw.bias[col] : 0.0f));
}

template <class T> static T *on_device(const std::vector<T> &v) {
    void *at;
    MUST(cudaMalloc(&at, v.size() * sizeof(T)));
    MUST(cudaMemcpy(at, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
    return static_cast<T *>(at);
}

/* Values of unscaled products are what value.h says, to the bit, in place too, and nothing is written beside them. */
static bool rescales(const launch &l, uint64_t seed, int n_rows, int width, bool has_bias, bool in_place) {
    int stride = width + 8 * (int)(seed % 3);
    size_t n = (size_t)n_rows * stride;
    std::vector<__half> products(n);
    std::vector<float> rows(n_rows), columns(width), bias(width);
    auto number = [&] { return (int)(hash(seed++) % 4001) / 1000.0f - 2; };
    for (__half &h : products)
        h = __float2half_rn(number());
    for (std::vector<float> *v : {&rows, &columns, &bias})
        for (float &f : *v)
            f = number();
    dmat raw = {on_device(products), stride, width, ELEMENT_F16};
    raw.row_scale = on_device(rows), raw.col_scale = on_device(columns);
    raw.bias = has_bias ? on_device(bias) : nullptr;
    dmat y = {raw.at, stride, width, ELEMENT_F16}, want = y;
    std::vector<float> poison(n, -77);
    want.at = on_device(products);
    if (!in_place) {
        y = want = {on_device(poison), stride, width, ELEMENT_F32};
        want.at = on_device(poison);
    }
    unscaled_values<<<n_rows, 256, 0, l.stream>>>(raw, want);
    launch_rescale(&l, n_rows, raw, y);
    std::vector<uint8_t> is(n * (in_place ? 2 : 4)), wanted(is.size());
    MUST(cudaGetLastError());
    MUST(cudaStreamSynchronize(l.stream));
    MUST(cudaMemcpy(is.data(), y.at, is.size(), cudaMemcpyDeviceToHost));
    MUST(cudaMemcpy(wanted.data(), want.at, is.size(), cudaMemcpyDeviceToHost));
    if (is != wanted)
        printf("%d rows of %d unscaled products%s%s: WRONG\n", n_rows, width, has_bias ? ", biased" : "",
               in_place ? ", in place" : "");
    return is == wanted;
}

int main(int argc, char **argv) {
    uint64_t seed = argc > 1 ? strtoull(argv[1], nullptr, 10) : (uint64_t)time(nullptr);
    printf("seed %llu\n", (unsigned long long)seed);
    launch l = {};
    MUST(cudaStreamCreate(&l.stream));
    void *values;
    uint8_t *codes;
    float *scales;
    uint32_t *absmax;
    counts *c;
    int32_t *own;
    unsigned long long *told;
    MUST(cudaMalloc(&own, sizeof *own));
    MUST(cudaMallocHost(&told, sizeof *told));
    MUST(cudaMalloc(&values, (size_t)MOST_ROWS * (MOST_WIDTH + 16) * 4));
    MUST(cudaMalloc(&codes, (size_t)MOST_ROWS * (MOST_WIDTH + 32) * 2));
    MUST(cudaMalloc(&scales, MOST_ROWS * 8));
    MUST(cudaMalloc(&absmax, MOST_ROWS * 4));
    MUST(cudaMalloc(&c, sizeof *c));
    unsigned long long n_bad = 0, n_made = 0;
    auto random = [&](int n) { return (int)(hash(seed++) % (unsigned)n); };
    for (int i = 0; i < 120; i++) {
        int n_rows = i % 10 == 0 ? 1000 : 1 + random(600), n_own = i % 3 ? n_rows : random(n_rows + 1),
            there = n_rows + 8, width = 16 * (1 + random(MOST_WIDTH / 16));
        element e = random(2) ? ELEMENT_F16 : ELEMENT_BF16;
        dmat x = {values, width + 8 * random(3), width, e},
             got = {codes, width + 16 * random(3), width, ELEMENT_E4M3, scales};
        x.absmax = absmax;
        got.static_scale = ldexpf(1, random(12) - 8);
        dmat want = got;
        want.at = codes + (size_t)MOST_ROWS * (MOST_WIDTH + 32);
        want.scale = scales + MOST_ROWS;
        MUST(cudaMemsetAsync(codes, TWIN_POISON, (size_t)MOST_ROWS * (MOST_WIDTH + 32) * 2, l.stream));
        MUST(cudaMemsetAsync(scales, TWIN_POISON, MOST_ROWS * 8, l.stream));
        MUST(cudaMemsetAsync(absmax, 0, MOST_ROWS * 4, l.stream));
        MUST(cudaMemsetAsync(c, 0, sizeof *c, l.stream));
        fill_rows<<<there, 256, 0, l.stream>>>(x, seed, got.static_scale, i % 4 == 1);
        write_qacts<<<n_rows, 256, 0, l.stream>>>(x, got, want, TWIN_POISON);
        MUST(cudaMemcpyAsync(own, &n_own, sizeof n_own, cudaMemcpyHostToDevice, l.stream));
        *told = 0;
        launch_requantise(&l, n_rows, x, got, {told, own});
        compare<<<there, 256, 0, l.stream>>>(x, got, want, n_rows, n_own, c);
        counts found;
        MUST(cudaMemcpyAsync(&found, c, sizeof found, cudaMemcpyDeviceToHost, l.stream));
        MUST(cudaStreamSynchronize(l.stream));
        bool fine = found.code == 0 && found.scale == 0 && found.stray == 0 && *told == found.own &&
                    (i % 4 != 1 || found.rows == 0);
        if (!fine)
            printf("%d rows of %d, element %d, static scale %g: %llu codes, %llu scales, %llu strays; %llu rows made, "
                   "%llu counted of %llu\n",
                   n_rows, width, (int)e, (double)got.static_scale, found.code, found.scale, found.stray, found.rows,
                   *told, found.own);
        n_bad += !fine;
        n_made += found.rows;
    }
    n_bad += n_made < 1000; // or nothing was tested
    for (int i = 0; i < 12; i++)
        n_bad += !rescales(l, seed + i, i < 6 ? 1 + random(40) : RESCALE_MANY + 1 + random(20), 8 * (1 + random(300)),
                           i & 1, i & 2);
    printf(n_bad ? "%llu CASES FAILED\n" : "all fine\n", n_bad);
    return n_bad != 0;
}
