/* attention_preps.cuh - of attention.cu: QKV_PREP against double precision. */
#pragma once

#include "attention_checks.cuh"

static float element_at(const char *at, element e) {
    switch (e) {
    case ELEMENT_F32: return *(const float *)at;
    case ELEMENT_F16: return __half2float(*(const __half *)at);
    case ELEMENT_BF16: return __bfloat162float(*(const __nv_bfloat16 *)at);
    case ELEMENT_E4M3: return (float)*(const __nv_fp8_e4m3 *)at;
    default: return (float)*(const signed char *)at;
    }
}

/* A head as QKV_PREP makes it, in double precision: norm with a weight, or with one of 1 (`unweighted`), rotation of
 * the first `turned` channels. */
static std::vector<double> prepared(const float *x, int n, const float *norm, const float *cos_sin, int turned,
                                    bool interleaved, bool unweighted) {
    std::vector<double> y(x, x + n), z;
    double sum = 0;
    for (double v : y)
        sum += v * v;
    for (int i = 0; i < n && (norm || unweighted); i++)
        y[i] *= (norm ? norm[i] : 1.0) / sqrt(sum / n + 1e-6);
    z = y;
    for (int i = 0; i < turned / 2; i++) {
        int a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + turned / 2;
        z[a] = y[a] * cos_sin[i] - y[b] * cos_sin[turned / 2 + i];
        z[b] = y[b] * cos_sin[i] + y[a] * cos_sin[turned / 2 + i];
    }
    return z;
}

/* x becomes what unscaled products of about its size mean. */
static dmat make_raw(std::vector<float> &x, int n_rows, int width, bool biased) {
    std::uniform_real_distribution<float> scales(0.5f, 2.0f);
    std::vector<float> row(n_rows), col(width), bias(width);
    std::vector<__half> half(x.size());
    for (float &f : row)
        f = scales(rng);
    for (float &f : col)
        f = scales(rng);
    for (float &f : bias)
        f = biased ? scales(rng) - 1 : 0;
    for (size_t i = 0; i < x.size(); i++) {
        half[i] = __float2half(x[i]);
        x[i] = (float)((double)__half2float(half[i]) * row[i / width] * col[i % width] + bias[i % width]);
    }
    return {to_device(half), width,          width,          ELEMENT_F16,
            nullptr,         to_device(row), to_device(col), biased ? to_device(bias) : nullptr};
}

enum { NOT_RAW, RAW, RAW_BIASED };

struct prep_case {
    int n_heads, n_kv, dim, turned;
    bool interleaved, normed;
    element e, q_element;
    int n_slots, raw = NOT_RAW;
    bool v_normed = false;
};

/* What QKV_PREP reads, here and on the device. */
struct prep_inputs {
    std::vector<float> x, angles, norm;
    dmat dx;
    drope rope;
    dweight weight;
};
static prep_inputs prep_inputs_of(const prep_case &c, int n_tokens) {
    prep_inputs in;
    int width = (c.n_heads + 2 * c.n_kv) * c.dim;
    std::normal_distribution<float> normal;
    in.x.resize((size_t)n_tokens * width), in.angles.resize((size_t)n_tokens * c.turned + 1), in.norm.resize(c.dim);
    for (auto *v : {&in.x, &in.angles, &in.norm})
        for (float &f : *v)
            f = normal(rng);
    in.dx = {to_device(in.x), width, width, ELEMENT_F32};
    if (c.raw)
        in.dx = make_raw(in.x, n_tokens, width, c.raw == RAW_BIASED);
    in.rope = {c.turned, c.interleaved ? 1 : 0};
    in.rope.cos_sin = to_device(in.angles);
    in.weight = {c.normed ? to_device(in.norm) : nullptr, c.dim, 1, ELEMENT_F32};
    return in;
}
static void release(const prep_inputs &in) {
    for (const void *p : {(const void *)in.dx.at, (const void *)in.dx.row_scale, (const void *)in.dx.col_scale,
                          (const void *)in.dx.bias, (const void *)in.rope.cos_sin, (const void *)in.weight.at})
        cudaFree(const_cast<void *>(p));
}

/* What QKV_PREP left. */
struct prep_results {
    std::vector<char> cache, q;
    std::vector<int> table;
};
static prep_results prep_results_of(const world &w, element q_element) {
    prep_results r;
    r.cache.resize(n_blocks_of(w.s) * block_bytes(w.s));
    r.q.resize((size_t)w.n_tokens * w.s.n_heads * w.s.dim * kv_element_bytes(q_element));
    r.table.resize(w.s.lens.size() * (size_t)w.l.plan.table_width[0]);
    TRY_CUDA(cudaMemcpy(r.cache.data(), w.caches[0].at, r.cache.size(), cudaMemcpyDeviceToHost));
    TRY_CUDA(cudaMemcpy(r.q.data(), w.q.at, r.q.size(), cudaMemcpyDeviceToHost));
    TRY_CUDA(cudaMemcpy(r.table.data(), w.l.plan.block_table[0], r.table.size() * 4, cudaMemcpyDeviceToHost));
    return r;
}

/* Half a unit of the largest, and of each value in e4m3. */
static double rounding_of(element e) {
    return e == ELEMENT_F32    ? 1e-5
           : e == ELEMENT_F16  ? 0x1p-11
           : e == ELEMENT_BF16 ? 0x1p-8
           : e == ELEMENT_E4M3 ? 0x1p-4
                               : 1.0 / 254;
}

/* The error of head h of token t, the i-th of sequence seq, of how it is rounded. */
static double prep_error(const prep_case &c, const prep_inputs &in, const prep_results &r, const world &w, int seq,
                         int i, int t, int h) {
    kv_shape shape = {c.n_kv, c.dim, c.dim, c.n_slots, c.e};
    bool is_q = h < c.n_heads, is_v = h >= c.n_heads + c.n_kv;
    int position = w.s.lens[seq] - w.s.queries[seq] + i, slot = position % c.n_slots,
        kv = h - c.n_heads - (is_v ? c.n_kv : 0), width = (c.n_heads + 2 * c.n_kv) * c.dim,
        qb = kv_element_bytes(c.q_element);
    const char *block =
        r.cache.data() + r.table[(size_t)seq * w.l.plan.table_width[0] + position / c.n_slots] * block_bytes(w.s);
    std::vector<double> want =
        prepared(in.x.data() + (size_t)t * width + h * c.dim, c.dim, c.normed && !is_v ? in.norm.data() : nullptr,
                 in.angles.data() + (size_t)t * c.turned, is_v ? 0 : c.turned, c.interleaved, is_v && c.v_normed);
    double size = 0, error = 0;
    for (int d = 0; d < c.dim; d++) {
        double got = is_q ? element_at(r.q.data() + (((size_t)t * c.n_heads + h) * c.dim + d) * qb, c.q_element)
                          : element_at(block + (is_v ? shape.value(kv, slot, d) : shape.key(kv, slot, d)), c.e) *
                                (kv_has_scales(c.e) ? *(const float *)(block + shape.scale(is_v, kv, slot)) : 1.0f);
        size = std::max(size, fabs(want[d]));
        error = got == got ? std::max(error, fabs(got - want[d])) : INFINITY;
    }
    return error / size / rounding_of(is_q ? c.q_element : c.e);
}

/* QKV_PREP against prepared(): queries, and what lies in the cache where kv.cuh says. */
static bool check_prep(const prep_case &c) {
    if (!strstr("qkv_prep", only))
        return true;
    setup s = {"qkv_prep",
               c.n_heads,
               c.n_kv,
               c.dim,
               0,
               0,
               0,
               false,
               c.e,
               c.n_slots,
               {100, 7, 33},
               {20, 7, 1},
               c.q_element == ELEMENT_F32 ? 8 : 16};
    world w = build(s, 1);
    prep_inputs in = prep_inputs_of(c, w.n_tokens);
    dqkv a = {c.n_heads, c.n_kv, c.dim, c.dim, 1e-6f};
    a.v_norm = c.v_normed;
    w.q.element = c.q_element;
    launch_qkv_prep(&w.l, &a, c.turned ? &in.rope : nullptr, in.dx, in.weight, in.weight, w.caches[0], w.q);
    TRY_CUDA(cudaStreamSynchronize(w.l.stream));
    prep_results r = prep_results_of(w, c.q_element);
    double worst = 0;
    for (int seq = 0, t = 0; seq < 3; seq++)
        for (int i = 0; i < s.queries[seq]; i++, t++)
            for (int h = 0; h < c.n_heads + 2 * c.n_kv; h++)
                worst = std::max(worst, prep_error(c, in, r, w, seq, i, t, h));
    release(in);
    release(w);
    bool ok = worst <= 1.02;
    printf("%s qkv_prep %d/%d x %d, %d turned%s%s%s%s, cache %s, queries %s, block %d: %.3f of the rounding\n",
           ok ? "ok    " : "FAILED", c.n_heads, c.n_kv, c.dim, c.turned, c.interleaved ? " in pairs" : "",
           c.normed ? ", normed" : "", c.v_normed ? ", values too" : "",
           c.raw == RAW_BIASED ? ", of raw products with biases"
           : c.raw             ? ", of raw products"
                               : "",
           element_name(c.e), element_name(c.q_element), c.n_slots, worst);
    return ok;
}
