/* test_gemm_w4.cu - LINEAR by weights of four bits (src/backend/cuda/linear/w4) against double precision,
 * from codes as checkpoints have them through place_quads.cu: every format, random shapes, rows, biases and gated
 * pairs, all cuts. What of x stands beside a row must not change a bit of it; of few rows nor must the cut. */
#define BARRIER_SPIN_LIMIT 20000000
#include "backend/cuda/linear/w4/gemm_w4.cu"
#include "backend/cuda/linear/w4/gemm_w4_few.cu"
#include "backend/cuda/linear/w4/gemm_w4_many.cu"
#include "backend/cuda/weights/place_gguf.cu"
#include "backend/cuda/weights/place_quads.cu"

#include "products.cuh"

#include <algorithm>
#include <time.h>
#include <vector>

static cudaStream_t stream;
static unsigned long long n_bad, n_cases;
static uint64_t seed;

static int draw(int n) { return (int)(hash(seed++) % (unsigned)n); }
static float draw_float(float low, float high) { return low + (high - low) * (draw(1 << 20) / (float)(1 << 20)); }

template <class T> static T *on_device(const std::vector<T> &v) {
    void *at;
    MUST(cudaMalloc(&at, v.size() * sizeof(T) + 16));
    MUST(cudaMemcpy(at, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
    return static_cast<T *>(at);
}

struct problem {
    dquads q;
    bool blocks; // as GGUF stores it
    int out, in, n;
    bool bias;
    int act;
    element e;
    int width() const { return q.gated ? out / 2 : out; }
};

static const char *const KINDS[] = {"int4", "nvfp4", "mxfp4", "q8_0", "q4_k", "q6_k"};

/* A weight as a checkpoint stores it, and what it means. */
struct stored_weight {
    std::vector<uint8_t> codes, zeros;
    std::vector<float> scales;
    std::vector<double> values;
    float tensor_scale;
};

static float scale_of_kind(quad_kind kind) {
    if (kind == QUADS_MXFP4)
        return ldexpf(1, draw(12) - 9);
    if (kind == QUADS_NVFP4) {
        int e = draw(14) - 6; // up to 240
        return ldexpf((float)(8 + draw(8)), e - 3);
    }
    __half h = __float2half_rn(draw_float(0.001f, 0.02f));
    return __half2float(h);
}

static stored_weight stored_of(const problem &p) {
    static const double sizes[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    stored_weight w;
    int n_groups = (p.in + p.q.group - 1) / p.q.group;
    w.tensor_scale = p.q.kind == QUADS_NVFP4 ? draw_float(0.001f, 0.01f) : 1;
    w.codes.resize((size_t)p.out * p.in / 2);
    w.values.resize((size_t)p.out * p.in);
    for (int i = 0; i < p.out * n_groups; i++) {
        w.scales.push_back(draw(50) ? scale_of_kind(p.q.kind) : 0);
        w.zeros.push_back((uint8_t)(p.q.has_zeros ? draw(17) : 8));
    }
    for (int64_t i = 0; i < (int64_t)p.out * p.in; i++) {
        unsigned code = (unsigned)draw(16);
        int64_t group = i / p.in * n_groups + i % p.in / p.q.group;
        w.codes[i / 2] |= (uint8_t)(code << i % 2 * 4);
        double c = p.q.kind == QUADS_INT4 ? (int)code - w.zeros[group] : code & 8 ? -sizes[code & 7] : sizes[code];
        w.values[i] = c * w.scales[group] * w.tensor_scale;
    }
    return w;
}

/* GGUF's blocks: random bytes, with multipliers of a reasonable size, and what they mean. */
static double half_at(const uint8_t *p) { return __half2float(__ushort_as_half((unsigned short)(p[0] | p[1] << 8))); }
static void put_half(uint8_t *p, float v) {
    unsigned short bits = __half_as_ushort(__float2half_rn(v));
    p[0] = (uint8_t)bits, p[1] = (uint8_t)(bits >> 8);
}
static double value_of_block(quad_kind kind, const uint8_t *b, int c) {
    if (kind == QUADS_INT4)
        return half_at(b) * ((c < 16 ? b[2 + c] & 15 : b[c - 14] >> 4) - 8);
    if (kind == QUADS_Q8_0)
        return half_at(b) * (int8_t)b[2 + c];
    if (kind == QUADS_Q6_K) {
        int low = b[c / 128 * 64 + c % 64] >> c % 128 / 64 * 4 & 15,
            high = b[128 + c / 128 * 32 + c % 32] >> c % 128 / 32 * 2 & 3;
        return half_at(b + 208) * (int8_t)b[192 + c / 16] * (low + 16 * high - 32);
    }
    int sub = c / 32, q = b[16 + c / 64 * 32 + c % 32] >> sub % 2 * 4 & 15;
    int s = sub < 4 ? b[4 + sub] & 63 : (b[8 + sub] & 15) + 16 * (b[sub] >> 6),
        m = sub < 4 ? b[8 + sub] & 63 : b[8 + sub] / 16 + 16 * (b[4 + sub] >> 6);
    return half_at(b) * s * q - half_at(b + 2) * m;
}
struct block_type {
    int columns, bytes, d[2];
    float least;
};
static block_type type_of(quad_kind kind) {
    switch (kind) {
    case QUADS_Q8_0: return {32, 34, {0, 0}, 0x1p-8f};
    case QUADS_Q4_K: return {256, 144, {0, 2}, 0x1p-10f};
    case QUADS_Q6_K: return {256, 210, {208, 208}, 0x1p-12f};
    default: return {32, 18, {0, 0}, 0x1p-4f};
    }
}
static stored_weight stored_blocks(const problem &p) {
    stored_weight w;
    block_type t = type_of(p.q.kind);
    w.tensor_scale = 1;
    w.codes.resize((size_t)p.out * p.in / t.columns * t.bytes);
    for (uint8_t &byte : w.codes)
        byte = (uint8_t)draw(256);
    for (size_t b = 0; b < w.codes.size(); b += t.bytes)
        for (int at : t.d)
            put_half(&w.codes[b + at], draw(50) ? draw_float(1, 8) * (draw(2) ? t.least : -t.least) : 0);
    for (int64_t i = 0; i < (int64_t)p.out * p.in; i++)
        w.values.push_back(value_of_block(p.q.kind, &w.codes[i / t.columns * t.bytes], (int)(i % t.columns)));
    return w;
}

static double activated(int act, double gate, double up) {
    switch (act) {
    case 0: return gate / (1 + exp(-gate)) * up;
    case 1: return 0.5 * gate * (1 + tanh(0.7978845608028654 * (gate + 0.044715 * gate * gate * gate))) * up;
    case 2: return 0.5 * gate * (1 + erf(gate * 0.7071067811865476)) * up;
    default: return up / (1 + exp(-gate));
    }
}

struct outcome {
    double worst = 0; // of what it may be off
    long wrong = 0, stray = 0;
};

/* Sums of absolute terms beside each product: what float16 weights and float32 sums may be off. */
static void judge(const problem &p, const stored_weight &w, const std::vector<__half> &x, int x_stride,
                  const std::vector<float> &bias, const std::vector<float> &y, int y_stride, bool exact, outcome *o) {
    bool rounds = p.q.kind == QUADS_INT4 ? !exact : p.blocks;
    double unit = (p.q.kind == QUADS_Q4_K || p.q.kind == QUADS_Q6_K ? 0x1p-10
                   : rounds                                         ? 0x1p-11
                                                                    : 0) +
                  0x1p-24 * (8 + sqrt((double)p.in));
    for (int t = 0; t < p.n; t++) {
        std::vector<double> sum(p.out), size(p.out);
        for (int r = 0; r < p.out; r++) {
            for (int i = 0; i < p.in; i++) {
                double term = w.values[(size_t)r * p.in + i] * (double)__half2float(x[(size_t)t * x_stride + i]);
                sum[r] += term, size[r] += fabs(term) * (p.q.kind == QUADS_Q4_K ? 4 : 1); // c s and m may be larger
            }
            sum[r] += p.bias ? bias[r] : 0;
        }
        for (int u = 0; u < p.width(); u++) {
            double is = sum[u], most = unit * size[u];
            if (p.q.gated) {
                int up = u + p.width();
                most = unit * (1.2 * size[u] * fabs(sum[up]) + (fabs(sum[u]) + 0.3) * size[up]);
                most += p.act == 3 ? unit * size[u] * fabs(sum[up]) + size[up] * unit : 0;
                is = activated(p.act, sum[u], sum[up]);
                most += 2e-5 * fabs(is);
            }
            most += fabs(is) * (p.e == ELEMENT_F32 ? 2e-7 : p.e == ELEMENT_F16 ? 5e-4 : 4e-3) + 1e-6;
            double off = fabs(y[(size_t)t * y_stride + u] - is) / most;
            o->wrong += !(off <= 1);
            o->worst = off > o->worst ? off : o->worst;
        }
    }
}

static float value_at(const std::vector<uint8_t> &bytes, size_t i, element e) {
    if (e == ELEMENT_F32)
        return reinterpret_cast<const float *>(bytes.data())[i];
    uint16_t bits = reinterpret_cast<const uint16_t *>(bytes.data())[i];
    uint32_t wide = (uint32_t)bits << 16;
    return e == ELEMENT_F16 ? __half2float(__ushort_as_half(bits)) : reinterpret_cast<float &>(wide);
}

static std::vector<float> draw_floats(int n) {
    std::vector<float> v(n);
    for (float &f : v)
        f = draw_float(-1, 1);
    return v;
}
static void give_back(std::vector<void *> all) {
    for (void *at : all)
        cudaFree(at);
}

/* What kernels are given, there and here. */
struct operands {
    const problem &p;
    const stored_weight &w;
    const std::vector<__half> &x;
    const std::vector<float> &bias;
    dgemm_w4 a;
    dmat x_there, y_there;
    size_t element_size, y_bytes;

    size_t row_bytes() const { return (size_t)y_there.stride * element_size; }
    void poison() const { MUST(cudaMemset(y_there.at, 0xff, y_bytes)); }
    std::vector<uint8_t> fetch() const {
        std::vector<uint8_t> got(y_bytes);
        MUST(cudaStreamSynchronize(stream));
        MUST(cudaMemcpy(got.data(), y_there.at, y_bytes, cudaMemcpyDeviceToHost));
        return got;
    }
    dmat x_of(int row) const {
        dmat m = x_there;
        m.at = static_cast<__half *>(m.at) + (size_t)row * m.stride;
        return m;
    }
    /* exact: of INT4 products are. */
    void look(const std::vector<uint8_t> &got, bool exact, outcome *o) const {
        std::vector<float> y(y_bytes / element_size);
        for (size_t i = 0; i < y.size(); i++) {
            y[i] = value_at(got, i, p.e);
            bool inside = (int)(i / y_there.stride) < p.n && (int)(i % y_there.stride) < p.width();
            for (size_t b = 0; !inside && b < element_size; b++)
                o->stray += got[i * element_size + b] != 0xff;
        }
        judge(p, w, x, (int)x_there.stride, bias, y, (int)y_there.stride, exact, o);
    }
    bool row_is(const std::vector<uint8_t> &one, const std::vector<uint8_t> &all, int row) const {
        return memcmp(one.data(), all.data() + row * row_bytes(), p.width() * element_size) == 0;
    }
};

/* In two pieces. */
static void place(const problem &p, const stored_weight &w, const uint8_t *codes, const uint8_t *zeros,
                  const float *scales, const dweight &to, dplaced *counts) {
    dstored_quads s = {codes, p.in, p.q.kind, p.q.group, scales, p.q.has_zeros ? zeros : nullptr, w.tensor_scale};
    int cut_at = draw(p.out - 1) + 1, n_groups = (p.in + p.q.group - 1) / p.q.group;
    if (p.blocks) {
        int64_t row_bytes = (int64_t)w.codes.size() / p.out;
        dstored_gguf first = {codes, p.in, row_bytes}, second = {codes + cut_at * row_bytes, p.in, row_bytes};
        launch_place_gguf(stream, &first, cut_at, to, 0, counts);
        launch_place_gguf(stream, &second, p.out - cut_at, to, cut_at, counts);
    } else {
        launch_place_quads(stream, &s, cut_at, to, 0, counts);
        s.codes += (size_t)cut_at * p.in / 2, s.scale += (size_t)cut_at * n_groups,
            s.zero += s.zero ? cut_at * n_groups : 0;
        launch_place_quads(stream, &s, p.out - cut_at, to, cut_at, counts);
    }
}

static gemm_w4_few_cut random_few_cut(const dweight &w, int n_rows, const gemm_w4_few_cut &usual) {
    for (int tries = 0; tries < 50; tries++) {
        gemm_w4_few_cut c = usual; // sums are added up in the same order
        c.warps = 8 << draw(2);
        c.split = 1 << draw(4);
        c.n_blocks = c.split * (1 + draw((int)quads_tiles(w.quads, w.out)));
        c.a_copy = 1 + draw(4);
        c.n_copies = 1 + draw(W4_FEW_COPIES);
        c.alone = draw(2) != 0;
        if (gemm_w4_few_takes_cut(&w, n_rows, &c))
            return c;
    }
    return usual;
}

/* Few blocks, so that they go from tile to tile. */
static gemm_w4_many_cut random_many_cut(const dweight &w, int n_rows) {
    static const int sizes[] = {32, 64, 128, 192, 240, 256};
    gemm_w4_many_cut c = gemm_w4_many_cut_by(&w, n_rows, sizes[draw(6)]);
    c.n_blocks = std::min(c.n_blocks, 2 * (1 + draw(3)));
    return c;
}

/* gemm_w4_few.cu: the usual cut, another, and a row by itself with a third. */
static bool check_few(const operands &o, outcome *all) {
    const problem &p = o.p;
    gemm_w4_few_cut usual = gemm_w4_few_cut_of(&o.a.w, p.n), one = gemm_w4_few_cut_of(&o.a.w, 1);
    int row = draw(p.n);
    if (!gemm_w4_few_takes(&o.a, o.x_there, o.y_there, p.n) || usual.segments != one.segments)
        return false;
    o.poison();
    MUST(launch_gemm_w4_few(stream, p.n, &o.a, o.x_there, o.y_there));
    std::vector<uint8_t> got = o.fetch();
    o.look(got, true, all);
    gemm_w4_few_cut other = random_few_cut(o.a.w, p.n, usual), third = random_few_cut(o.a.w, 1, usual);
    printf("%d segments; %d warps, split %d, %d blocks, %d x %d copied; ", usual.segments, other.warps, other.split,
           other.n_blocks, other.n_copies, other.a_copy);
    o.poison();
    MUST(launch_gemm_w4_few_cut(stream, p.n, &o.a, o.x_there, o.y_there, &other));
    bool same = o.fetch() == got;
    o.poison();
    MUST(launch_gemm_w4_few_cut(stream, 1, &o.a, o.x_of(row), o.y_there, &third));
    return o.row_is(o.fetch(), got, row) && same;
}

static void check(const problem &p, const gemm_w4_cut *cut) {
    n_cases++;
    printf("%s%s group %d%s out %d in %d rows %d%s%s act %d element %d: ", p.blocks ? "blocks, " : "", KINDS[p.q.kind],
           p.q.group, p.q.has_zeros ? " zeros" : "", p.out, p.in, p.n, p.q.gated ? " gated" : "", p.bias ? " bias" : "",
           p.act, p.e);
    stored_weight w = p.blocks ? stored_blocks(p) : stored_of(p);
    int x_stride = p.in + 8 * draw(3), y_stride = p.width() + draw(5), rows = p.n + 3;
    std::vector<__half> x((size_t)rows * x_stride, __ushort_as_half(0x7fff)); // NaN beyond the rows
    for (int t = 0; t < p.n; t++)
        for (int i = 0; i < p.in; i++)
            x[(size_t)t * x_stride + i] = __float2half_rn(draw_float(-1, 1));
    std::vector<float> bias = draw_floats(p.out);
    size_t element_size = (size_t)element_bytes(p.e), y_bytes = (size_t)rows * y_stride * element_size;
    uint8_t *codes = on_device(w.codes), *zeros = on_device(w.zeros);
    float *scales = on_device(w.scales), *biases = on_device(bias), *of_rows = on_device(std::vector<float>(p.out));
    __half *x_there = on_device(x);
    uint8_t *y_there = on_device(std::vector<uint8_t>(y_bytes)),
            *tiles = on_device(std::vector<uint8_t>(quads_bytes(p.q, p.out, p.in), 0xff));
    dplaced *counts = on_device(std::vector<dplaced>(1)), placed;
    dgemm_w4 a = {};
    a.w = {tiles, p.out, p.in, ELEMENT_QUADS, of_rows, p.q};
    a.bias = p.bias ? biases : nullptr;
    a.ending.kind = p.q.gated ? ENDING_GATED : ENDING_PLAIN;
    a.ending.act = p.act;
    place(p, w, codes, zeros, scales, a.w, counts);
    MUST(cudaStreamSynchronize(stream));
    MUST(cudaMemcpy(&placed, counts, sizeof placed, cudaMemcpyDeviceToHost));
    operands o = {p,
                  w,
                  x,
                  bias,
                  a,
                  {x_there, x_stride, p.in, ELEMENT_F16},
                  {y_there, y_stride, p.width(), p.e},
                  element_size,
                  y_bytes};
    gemm_w4_cut c = cut ? *cut : gemm_w4_cut_of(&a.w, p.n);
    printf("%dx%d warps, split %d, %d blocks: ", c.row_warps, c.column_warps, c.split, c.n_blocks);
    fflush(stdout);
    if (!gemm_w4_takes(&a, o.x_there, o.y_there, p.n)) {
        printf("REFUSED %llu\n", ++n_bad);
        return;
    }
    o.poison();
    MUST(launch_gemm_w4_cut(stream, p.n, &a, o.x_there, o.y_there, &c));
    std::vector<uint8_t> got = o.fetch();
    // One row by itself, cut as it is then.
    int row = draw(p.n);
    o.poison();
    gemm_w4_cut of_one = cut ? *cut : gemm_w4_cut_of(&a.w, 1);
    MUST(launch_gemm_w4_cut(stream, 1, &a, o.x_of(row), o.y_there, &of_one));
    bool same = o.row_is(o.fetch(), got, row);
    outcome all;
    auto look = [&](const char *name, bool exact) {
        o.look(got, exact, &all);
        printf("%s worst %.3f, ", name, all.worst);
        all.worst = 0;
    };
    look("w4", p.q.group == QUADS_COLUMNS);
    o.poison();
    MUST(launch_gemm_w4_many(stream, p.n, &a, o.x_there, o.y_there));
    got = o.fetch();
    look("many", false);
    gemm_w4_many_cut other = random_many_cut(a.w, p.n);
    printf("of %d by %d blocks ", other.tokens, other.n_blocks);
    o.poison();
    MUST(launch_gemm_w4_many_cut(stream, p.n, &a, o.x_there, o.y_there, &other));
    got = o.fetch();
    look("many", false);
    if (p.n <= W4_FEW_MAX_ROWS)
        same = check_few(o, &all) && same;
    bool kept = placed.n_lost == 0 && placed.n_unreal == 0 && placed.squared_error == 0;
    bool fine = !all.wrong && !all.stray && same && kept;
    n_bad += !fine;
    printf("few worst %.3f%s%s%s%s\n", all.worst, all.wrong ? " WRONG" : "", all.stray ? " STRAY" : "",
           same ? "" : " DIFFERS", kept ? "" : " LOST BY PLACING");
    give_back({codes, zeros, scales, biases, of_rows, x_there, y_there, tiles, counts});
}

struct kind {
    dquads q;
    bool blocks;
};
enum { N_KINDS = 11 };
static kind kind_at(int i) {
    static const kind kinds[N_KINDS] = {
        {{QUADS_INT4, 128, true, false}, false},  {{QUADS_INT4, 128, false, false}, false},
        {{QUADS_INT4, 64, true, false}, false},   {{QUADS_INT4, 32, true, false}, false},
        {{QUADS_INT4, 32, false, false}, false},  {{QUADS_NVFP4, 16, false, false}, false},
        {{QUADS_MXFP4, 32, false, false}, false}, {{QUADS_Q8_0, 32, false, false}, true},
        {{QUADS_Q4_K, 32, false, false}, true},   {{QUADS_Q6_K, 16, false, false}, true},
        {{QUADS_INT4, 32, false, false}, true}};
    return kinds[i % N_KINDS];
}

static gemm_w4_cut random_cut(const dquads &q, int out, int in) {
    gemm_w4_cut c = {};
    c.column_warps = 1 + draw(GEMM_W4_MOST_WARPS / 4);
    c.row_warps = 4 * (1 + draw(GEMM_W4_MOST_WARPS / 4 / c.column_warps));
    c.split = 1 << draw(4);
    while (c.split * c.column_warps > quads_blocks(in))
        c.split = 1, c.column_warps = 1;
    int groups = w4_up_to(quads_tiles(q, out), c.row_warps);
    c.n_blocks = (c.split * c.column_warps > 1 ? groups : 1 + draw(groups)) * c.split;
    c.most_stages = 2 + draw(W4_MOST_STAGES - 1);
    return c;
}

/* Of Qwen2.5-7B's qkv, which has fewer blocks than a card multiprocessors: none leaves room for another of its node. */
static void blocks_of_few_are_alone() {
    dweight w = {nullptr, 4608, 3584, ELEMENT_QUADS, nullptr, {QUADS_INT4, 128, true, false}};
    for (int n : {1, 8, 16, 32}) {
        gemm_w4_cut c = gemm_w4_cut_of(&w, n);
        bool alone = c.split > 1 || c.n_blocks >= n_multiprocessors() || c.row_warps * c.column_warps >= 14;
        printf("qkv of %d rows: %dx%d warps, split %d, %d blocks%s\n", n, c.row_warps, c.column_warps, c.split,
               c.n_blocks, alone ? "" : " NOT ALONE");
        n_bad += !alone;
    }
}

int main(int argc, char **argv) {
    const char *given = argc > 1 ? argv[1] : getenv("GYRE_TEST_SEED");
    bool brief = getenv("GYRE_TEST_BRIEF") != nullptr;
    seed = given ? strtoull(given, nullptr, 10) : (uint64_t)time(nullptr);
    printf("seed %llu\n", (unsigned long long)seed);
    MUST(cudaStreamCreate(&stream));
    blocks_of_few_are_alone();
    for (int i = 0; i < N_KINDS; i++)
        check({kind_at(i).q, kind_at(i).blocks, 32, 256, 3, false, 0, ELEMENT_F32}, nullptr);
    const element elements[] = {ELEMENT_F32, ELEMENT_F16, ELEMENT_BF16};
    for (int i = 0; i < (brief ? 2 : 12) * N_KINDS; i++) {
        dquads q = kind_at(i).q;
        int unit = q.kind >= QUADS_Q4_K ? 256 : q.group > 64 ? 128 : 64, in = unit * (1 + draw(1024 / unit));
        problem p = {q,
                     kind_at(i).blocks,
                     8 * (1 + draw(40)),
                     in,
                     1 + draw(i % 5 > 1 ? 8
                              : i % 5   ? 32
                              : brief   ? 80
                                        : 300),
                     draw(2) != 0,
                     draw(4),
                     elements[draw(3)]};
        p.q.gated = draw(2) != 0;
        gemm_w4_cut c = random_cut(p.q, p.out, p.in);
        dweight w = {nullptr, p.out, p.in, ELEMENT_QUADS, nullptr, p.q};
        check(p, i % 2 && gemm_w4_takes_cut(&w, p.n, &c) ? &c : nullptr);
    }
    printf("%llu cases, %llu bad\n", n_cases, n_bad);
    return n_bad != 0;
}
