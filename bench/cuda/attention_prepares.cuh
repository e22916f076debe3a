/* attention_prepares.cuh - of attention.cu: decode attention that takes QKV_PREP along against the two nodes. */
#pragma once

#include "attention_checks.cuh"

/* Caches that were written in two ways: an element may be rounded the other way where sums came in another order. */
static bool close_rows(const std::vector<char> &a, const std::vector<char> &b) {
    size_t n = 0;
    for (size_t i = 0; i < a.size(); i++)
        n += a[i] != b[i];
    return n * 2000 <= a.size();
}

/* Decode attention that takes QKV_PREP along against the two nodes: the same bytes in the cache, and results as near as
 * queries are rounded. */
static bool check_prepares(setup s, bool turned, bool normed, bool raw, int width_more = 0) {
    if (!strstr("prepares", only))
        return true;
    world w = build(s, 2);
    int width = (s.n_heads + 2 * s.n_kv) * s.dim, T = w.n_tokens, pitch = width + width_more;
    std::vector<float> x((size_t)T * pitch), angles((size_t)T * s.dim), norm(s.dim);
    std::normal_distribution<float> normal;
    for (auto *v : {&x, &norm})
        for (float &f : *v)
            f = normal(rng);
    for (size_t i = 0; i < angles.size(); i++)
        angles[i] = i / (s.dim / 2) % 2 ? sinf((float)i) : cosf((float)(i + s.dim / 2));
    dmat dx = {to_device(x), pitch, width, ELEMENT_F32};
    if (raw)
        dx = make_raw(x, T, pitch, true);
    dx.width = width;
    drope rope = {s.dim};
    rope.cos_sin = to_device(angles);
    dweight weight = {normed ? to_device(norm) : nullptr, s.dim, 1, ELEMENT_F32};
    dqkv a = {s.n_heads, s.n_kv, s.dim, s.dim, 1e-6f, false, normed};
    dprep prep = {a, turned ? rope.cos_sin : nullptr, dx, weight, weight};
    int n_blocks = 0;
    for (int len : s.lens)
        n_blocks += (len + s.n_slots - 1) / s.n_slots;
    size_t cache_bytes = n_blocks * block_bytes(s);
    TRY_CUDA(cudaMemcpy(w.caches[1].at, w.caches[0].at, cache_bytes, cudaMemcpyDeviceToDevice));
    w.q.element = ELEMENT_F32;
    launch_qkv_prep(&w.l, &a, turned ? &rope : nullptr, dx, weight, weight, w.caches[0], w.q);
    bool ok = attention_decode_prepares(&w.a, &prep, w.caches[1]);
    double worst = 0;
    std::vector<char> want(cache_bytes), got(cache_bytes);
    std::vector<uint32_t> most(T);
    w.out.absmax = device<uint32_t>(T);
    for (int again = 0; again < 3 && ok; again++) {
        TRY_CUDA(cudaMemsetAsync(w.out.at, 0xFF, (size_t)T * w.out.width * 4, w.l.stream));
        TRY_CUDA(cudaMemsetAsync(w.out.absmax, 0, T * 4, w.l.stream));
        launch_attention_parts(&w.l, &w.parts, 1, 1);
        launch_qkv_prep(&w.l, &a, turned ? &rope : nullptr, dx, weight, weight, w.caches[0],
                        w.q); // the list is there when the next begins
        launch_attention_decode_prepares(&w.l, &w.a, &w.parts, &prep, w.sinks, w.caches[1], w.out);
        launch_attention(&w.l, &w.a, w.q, w.sinks, w.caches[1], w.plain); // over the elements that were read
        cudaError_t code = cudaStreamSynchronize(w.l.stream);
        if (code != cudaSuccess) {
            printf("FAILED %s: %s\n", s.name, cudaGetErrorString(code));
            exit(1);
        }
        TRY_CUDA(cudaMemcpy(want.data(), w.caches[0].at, cache_bytes, cudaMemcpyDeviceToHost));
        TRY_CUDA(cudaMemcpy(got.data(), w.caches[1].at, cache_bytes, cudaMemcpyDeviceToHost));
        ok = ok && close_rows(want, got);
        std::vector<float> out = fetch(w, w.out), plain = fetch(w, w.plain);
        TRY_CUDA(cudaMemcpy(most.data(), w.out.absmax, T * 4, cudaMemcpyDeviceToHost));
        for (int t = 0; t < T; t++) {
            float largest = 0;
            for (int i = 0; i < w.out.width; i++)
                largest = std::max(largest, fabsf(out[(size_t)t * w.out.width + i]));
            ok = ok && memcmp(&largest, &most[t], 4) == 0;
        }
        for (int r = 0; r < T * s.n_heads; r++) {
            double size = 0, error = 0;
            for (int i = 0; i < s.dim; i++) {
                float g = out[(size_t)r * s.dim + i], v = plain[(size_t)r * s.dim + i];
                size = std::max(size, (double)fabsf(v));
                error = g == g && v == v ? std::max(error, (double)fabsf(g - v)) : INFINITY;
            }
            worst = std::max(worst, error / std::max(size, 1e-30));
        }
    }
    ok = ok && worst <= (s.e == ELEMENT_BF16 ? 0.03 : 0.006);
    printf("%s prepares %-24s %2d/%d x %d %-4s block %-3d%s%s%s: cache %s, %.2e\n", ok ? "ok    " : "FAILED", s.name,
           s.n_heads, s.n_kv, s.dim, element_name(s.e), s.n_slots, turned ? ", turned" : "", normed ? ", normed" : "",
           raw ? ", raw" : "",
           want == got             ? "the same"
           : close_rows(want, got) ? "close"
                                   : "DIFFERS",
           worst);
    for (const void *p : {(const void *)dx.at, (const void *)dx.row_scale, (const void *)dx.col_scale,
                          (const void *)dx.bias, (const void *)rope.cos_sin, weight.at, (const void *)w.out.absmax})
        cudaFree(const_cast<void *>(p));
    release(w);
    return ok;
}

/* The first sequence alone and among others. The fill depends on the sequence's number, so it stays the first. */
static bool check_alone(setup s) {
    if (!strstr("alone", only))
        return true;
    std::vector<float> many = result(s);
    setup one = s;
    one.lens.resize(1);
    one.queries.resize(1);
    std::vector<float> alone = result(one);
    bool ok = memcmp(many.data(), alone.data(), alone.size() * 4) == 0;
    printf("%s %s %d x %d %s alone as among others\n", ok ? "ok    " : "FAILED", s.name, s.lens[0], s.dim,
           element_name(s.e));
    return ok;
}

static std::vector<int> ones(size_t n) { return std::vector<int>(n, 1); }

/* Of heads that decode attention can make itself. */
static void check_preparing(int &failed, int &n) {
    {
        int dim = 128;
        element e = ELEMENT_E4M3;
        std::vector<int> lens = {272, 1, 63, 64, 65, 1000, 320, 321, 3000}, many;
        for (int i = 0; i < 300; i++)
            many.push_back(1 + (int)(rng() % 500));
        for (int k = 0; k < 8; k++) {
            bool turned = k & 1, normed = k & 2, raw = k & 4;
            failed += !check_prepares({"one token", 28, 4, dim, 0, 0, 0, false, e, 64, lens, ones(9), 8}, turned,
                                      normed, raw, 64);
            failed += !check_prepares({"alone", 28, 4, dim, 0, 0, 0, false, e, 64, {272}, {1}, 8}, turned, normed, raw);
            failed += !check_prepares({"two, few heads", 6, 2, dim, 0, 0, 0, false, e, 32, {129, 7000}, ones(2), 8},
                                      turned, normed, raw);
            failed +=
                !check_prepares({"many", 16, 8, dim, 0, 0, 0, false, e, 64, many, ones(300), 8}, turned, normed, raw);
            failed += !check_prepares({"window, sinks, softcap", 8, 4, dim, 100, 0, 20, true, e, 16, lens, ones(9), 8},
                                      turned, normed, raw);
            failed += !check_prepares({"8 columns", 32, 4, dim, 0, 0, 0, false, e, 64, lens, ones(9), 8}, turned,
                                      normed, raw);
            failed += !check_prepares({"5 columns, many", 10, 2, dim, 0, 0, 0, false, e, 64, many, ones(300), 8},
                                      turned, normed, raw);
            failed +=
                !check_prepares({"chunk", 3, 3, dim, 0, 256, 0, false, e, 64, lens, ones(9), 8}, turned, normed, raw);
            n += 8;
        }
    }
}
