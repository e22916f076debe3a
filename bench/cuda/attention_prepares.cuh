/* attention_prepares.cuh - of attention.cu: decode attention that takes QKV_PREP along against the two nodes. */
#pragma once

#include "attention_preps.cuh"

/* Caches that were written in two ways: an element may be rounded the other way where sums came in another order. */
static bool close_rows(const std::vector<char> &a, const std::vector<char> &b) {
    size_t n = 0;
    for (size_t i = 0; i < a.size(); i++)
        n += a[i] != b[i];
    return n * 2000 <= a.size();
}

/* What both ways read: of QKV_PREP, and what is told of it. */
struct prepares_inputs {
    dmat dx;
    drope rope;
    dweight weight;
    dqkv a;
    bool turned;

    const drope *rope_or_none() const { return turned ? &rope : nullptr; }
};
static prepares_inputs prepares_inputs_of(const setup &s, int n_tokens, bool turned, bool normed, bool raw, int pitch) {
    prepares_inputs in = {};
    int width = (s.n_heads + 2 * s.n_kv) * s.dim;
    std::vector<float> x((size_t)n_tokens * pitch), angles((size_t)n_tokens * s.dim), norm(s.dim);
    std::normal_distribution<float> normal;
    for (auto *v : {&x, &norm})
        for (float &f : *v)
            f = normal(rng);
    for (size_t i = 0; i < angles.size(); i++)
        angles[i] = i / (s.dim / 2) % 2 ? sinf((float)i) : cosf((float)(i + s.dim / 2));
    in.dx = raw ? make_raw(x, n_tokens, pitch, true) : dmat{to_device(x), pitch, width, ELEMENT_F32};
    in.dx.width = width;
    in.rope = {s.dim};
    in.rope.cos_sin = to_device(angles);
    in.weight = {normed ? to_device(norm) : nullptr, s.dim, 1, ELEMENT_F32};
    in.a = {s.n_heads, s.n_kv, s.dim, s.dim, 1e-6f, false, normed};
    in.turned = turned;
    return in;
}
static void release(const prepares_inputs &in) {
    for (const void *p : {(const void *)in.dx.at, (const void *)in.dx.row_scale, (const void *)in.dx.col_scale,
                          (const void *)in.dx.bias, (const void *)in.rope.cos_sin, (const void *)in.weight.at})
        cudaFree(const_cast<void *>(p));
}

/* Two nodes write cache 0, one cache 1. Plain attention reads the elements that the one node read. */
static void run_both_ways(world &w, const prepares_inputs &in, const dprep &prep) {
    clear_out(w);
    launch_attention_parts(&w.l, &w.parts, 1, 1);
    // The list is there when the next begins.
    launch_qkv_prep(&w.l, &in.a, in.rope_or_none(), in.dx, in.weight, in.weight, w.caches[0], w.q);
    launch_attention_decode_prepares(&w.l, &w.a, &w.parts, &prep, w.sinks, w.caches[1], w.out);
    launch_attention(&w.l, &w.a, w.q, w.sinks, w.caches[1], w.plain);
    wait_for(w);
}

static std::vector<char> bytes_of(const dcache &cache, size_t n) {
    std::vector<char> bytes(n);
    TRY_CUDA(cudaMemcpy(bytes.data(), cache.at, n, cudaMemcpyDeviceToHost));
    return bytes;
}

/* Decode attention that takes QKV_PREP along against the two nodes: the same bytes in the cache, and results as near as
 * queries are rounded. */
static bool check_prepares(setup s, bool turned, bool normed, bool raw, int width_more = 0) {
    if (!strstr("prepares", only))
        return true;
    world w = build(s, 2);
    prepares_inputs in =
        prepares_inputs_of(s, w.n_tokens, turned, normed, raw, (s.n_heads + 2 * s.n_kv) * s.dim + width_more);
    dprep prep = {in.a, turned ? in.rope.cos_sin : nullptr, in.dx, in.weight, in.weight};
    size_t cache_bytes = n_blocks_of(s) * block_bytes(s);
    TRY_CUDA(cudaMemcpy(w.caches[1].at, w.caches[0].at, cache_bytes, cudaMemcpyDeviceToDevice));
    w.q.element = ELEMENT_F32;
    launch_qkv_prep(&w.l, &in.a, in.rope_or_none(), in.dx, in.weight, in.weight, w.caches[0], w.q);
    bool ok = attention_decode_prepares(&w.a, &prep, w.caches[1]);
    double worst = 0;
    std::vector<char> want, got;
    w.out.absmax = device<uint32_t>(w.n_tokens);
    for (int again = 0; again < 3 && ok; again++) {
        run_both_ways(w, in, prep);
        want = bytes_of(w.caches[0], cache_bytes), got = bytes_of(w.caches[1], cache_bytes);
        std::vector<float> out = fetch(w, w.out);
        ok = ok && close_rows(want, got) && folded_right(w, out);
        worst = std::max(worst, worst_of_heads(w, out, fetch(w, w.plain)));
    }
    ok = ok && worst <= (s.e == ELEMENT_BF16 ? 0.03 : 0.006);
    printf("%s prepares %-24s %2d/%d x %d %-4s block %-3d%s%s%s: cache %s, %.2e\n", ok ? "ok    " : "FAILED", s.name,
           s.n_heads, s.n_kv, s.dim, element_name(s.e), s.n_slots, turned ? ", turned" : "", normed ? ", normed" : "",
           raw ? ", raw" : "",
           want == got             ? "the same"
           : close_rows(want, got) ? "close"
                                   : "DIFFERS",
           worst);
    cudaFree(w.out.absmax);
    release(in);
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
