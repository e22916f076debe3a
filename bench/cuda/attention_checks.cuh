/* attention_checks.cuh - of attention.cu: a setup against the plain kernel, and QKV_PREP against double precision. */
#pragma once

#include "attention_world.cuh"

static std::vector<float> result(const setup &s) {
    world w = build(s, 1);
    run(w);
    TRY_CUDA(cudaStreamSynchronize(w.l.stream));
    TRY_CUDA(cudaGetLastError());
    std::vector<float> v = fetch(w, w.out);
    release(w);
    return v;
}

static const char *element_name(element e) {
    return e == ELEMENT_F32    ? "f32"
           : e == ELEMENT_F16  ? "f16"
           : e == ELEMENT_BF16 ? "bf16"
           : e == ELEMENT_E4M3 ? "e4m3"
                               : "int8";
}

/* Both kernels read the same elements, so that only the rounding of queries differs, of 11 bits or 8, and that of P. Of
 * shared keys, which are like their values, what is off in scores does not average out of results. */
static bool check(const setup &s) {
    if (!strstr(s.name, only) && !(turned && strcmp(only, "short") == 0))
        return true;
    world w = build(s, 1);
    double worst = 0;
    bool same = true;
    launch_attention(&w.l, &w.a, w.q, w.sinks, w.caches[0], w.plain);
    bool folds = true; // then the rows' largest sizes are asked for
    for (int n : s.queries)
        folds = folds && (s.queries[0] == 1 ? n == 1 : n > s.most_decode);
    std::vector<uint32_t> most(w.n_tokens);
    w.out.absmax = folds ? device<uint32_t>(w.n_tokens) : nullptr;
    for (int again = 0; again < 3; again++) {
        TRY_CUDA(cudaMemsetAsync(w.out.at, 0xFF, (size_t)w.n_tokens * w.out.width * 4, w.l.stream));
        if (folds)
            TRY_CUDA(cudaMemsetAsync(w.out.absmax, 0, w.n_tokens * 4, w.l.stream));
        run(w);
        cudaError_t code = cudaStreamSynchronize(w.l.stream);
        if (code != cudaSuccess) {
            printf("FAILED %s: %s\n", s.name, cudaGetErrorString(code));
            exit(1);
        }
        std::vector<float> got = fetch(w, w.out), want = fetch(w, w.plain);
        if (folds)
            TRY_CUDA(cudaMemcpy(most.data(), w.out.absmax, w.n_tokens * 4, cudaMemcpyDeviceToHost));
        for (int t = 0; t < w.n_tokens && folds; t++) {
            float largest = 0;
            for (int i = 0; i < w.out.width; i++)
                largest = std::max(largest, fabsf(got[(size_t)t * w.out.width + i]));
            same = same && memcmp(&largest, &most[t], 4) == 0;
        }
        for (int r = 0; r < w.n_tokens * s.n_heads; r++) {
            double size = 0, error = 0;
            for (int i = 0; i < s.dim; i++) {
                float g = got[(size_t)r * s.dim + i], x = want[(size_t)r * s.dim + i];
                size = std::max(size, (double)fabsf(x));
                error = g == g && x == x ? std::max(error, (double)fabsf(g - x)) : INFINITY;
            }
            worst = std::max(worst, error / std::max(size, 1e-30));
        }
    }
    cudaFree(w.out.absmax);
    release(w);
    double bound = s.e == ELEMENT_BF16 ? 0.01 : turned && s.e == ELEMENT_E4M3 ? 0.006 : 0.004;
    bool ok = worst <= bound && same;
    printf("%s %-28s %2d/%d x %d%s %-4s block %-3d columns %-2d window %d chunk %d: %.2e\n", ok ? "ok    " : "FAILED",
           s.name, s.n_heads, s.n_kv, s.dim, turned ? " short" : "", element_name(s.e), s.n_slots, s.columns, s.window,
           s.chunk, worst);
    return ok;
}

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

/* QKV_PREP against prepared(): queries, and what lies in the cache where kv.cuh says. */
enum { NOT_RAW, RAW, RAW_BIASED };
static bool check_prep(int n_heads, int n_kv, int dim, int turned, bool interleaved, bool normed, element e,
                       element q_element, int n_slots, int raw = NOT_RAW, bool v_normed = false) {
    if (!strstr("qkv_prep", only))
        return true;
    setup s = {"qkv_prep",
               n_heads,
               n_kv,
               dim,
               0,
               0,
               0,
               false,
               e,
               n_slots,
               {100, 7, 33},
               {20, 7, 1},
               q_element == ELEMENT_F32 ? 8 : 16};
    world w = build(s, 1);
    int width = (n_heads + 2 * n_kv) * dim, T = w.n_tokens;
    std::vector<float> x((size_t)T * width), angles((size_t)T * turned + 1), norm(dim);
    std::normal_distribution<float> normal;
    for (auto *v : {&x, &angles, &norm})
        for (float &f : *v)
            f = normal(rng);
    dmat dx = {to_device(x), width, width, ELEMENT_F32};
    if (raw)
        dx = make_raw(x, T, width, raw == RAW_BIASED);
    drope rope = {turned, interleaved ? 1 : 0};
    rope.cos_sin = to_device(angles);
    dweight weight = {normed ? to_device(norm) : nullptr, dim, 1, ELEMENT_F32};
    dqkv a = {n_heads, n_kv, dim, dim, 1e-6f};
    a.v_norm = v_normed;
    w.q.element = q_element;
    launch_qkv_prep(&w.l, &a, turned ? &rope : nullptr, dx, weight, weight, w.caches[0], w.q);
    TRY_CUDA(cudaStreamSynchronize(w.l.stream));
    int n_blocks = 0, qb = kv_element_bytes(q_element);
    for (int len : s.lens)
        n_blocks += (len + n_slots - 1) / n_slots;
    std::vector<char> cache(n_blocks * block_bytes(s)), q((size_t)T * n_heads * dim * qb);
    std::vector<int> table(3 * (size_t)w.l.plan.table_width[0]);
    TRY_CUDA(cudaMemcpy(cache.data(), w.caches[0].at, cache.size(), cudaMemcpyDeviceToHost));
    TRY_CUDA(cudaMemcpy(q.data(), w.q.at, q.size(), cudaMemcpyDeviceToHost));
    TRY_CUDA(cudaMemcpy(table.data(), w.l.plan.block_table[0], table.size() * 4, cudaMemcpyDeviceToHost));
    kv_shape shape = {n_kv, dim, dim, n_slots, e};
    double worst = 0;
    for (int seq = 0, t = 0; seq < 3; seq++)
        for (int i = 0; i < s.queries[seq]; i++, t++)
            for (int h = 0; h < n_heads + 2 * n_kv; h++) {
                bool is_v = h >= n_heads + n_kv;
                int position = s.lens[seq] - s.queries[seq] + i, slot = position % n_slots,
                    kv = h - n_heads - (is_v ? n_kv : 0);
                const char *block =
                    cache.data() + table[(size_t)seq * w.l.plan.table_width[0] + position / n_slots] * block_bytes(s);
                std::vector<double> want =
                    prepared(x.data() + (size_t)t * width + h * dim, dim, normed && !is_v ? norm.data() : nullptr,
                             angles.data() + (size_t)t * turned, is_v ? 0 : turned, interleaved, is_v && v_normed);
                double size = 0, error = 0;
                for (int d = 0; d < dim; d++) {
                    double got =
                        h < n_heads
                            ? element_at(q.data() + (((size_t)t * n_heads + h) * dim + d) * qb, q_element)
                            : element_at(block + (is_v ? shape.value(kv, slot, d) : shape.key(kv, slot, d)), e) *
                                  (kv_has_scales(e) ? *(const float *)(block + shape.scale(is_v, kv, slot)) : 1.0f);
                    size = std::max(size, fabs(want[d]));
                    error = got == got ? std::max(error, fabs(got - want[d])) : INFINITY;
                }
                element stored = h < n_heads ? q_element : e; // half a unit of the largest, and of each value in e4m3
                double unit = stored == ELEMENT_F32    ? 1e-5
                              : stored == ELEMENT_F16  ? 0x1p-11
                              : stored == ELEMENT_BF16 ? 0x1p-8
                              : stored == ELEMENT_E4M3 ? 0x1p-4
                                                       : 1.0 / 254;
                worst = std::max(worst, error / size / unit);
            }
    for (const void *p : {(const void *)dx.at, (const void *)dx.row_scale, (const void *)dx.col_scale,
                          (const void *)dx.bias, (const void *)rope.cos_sin, weight.at})
        cudaFree(const_cast<void *>(p));
    release(w);
    bool ok = worst <= 1.02;
    printf("%s qkv_prep %d/%d x %d, %d turned%s%s%s%s, cache %s, queries %s, block %d: %.3f of the rounding\n",
           ok ? "ok    " : "FAILED", n_heads, n_kv, dim, turned, interleaved ? " in pairs" : "",
           normed ? ", normed" : "", v_normed ? ", values too" : "",
           raw == RAW_BIASED ? ", of raw products with biases"
           : raw             ? ", of raw products"
                             : "",
           element_name(e), element_name(q_element), n_slots, worst);
    return ok;
}
