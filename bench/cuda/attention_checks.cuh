/* attention_checks.cuh - of attention.cu: a setup against the plain kernel. */
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

/* Whether the rows' largest sizes that a kernel folded are those of what it wrote. */
static bool folded_right(const world &w, const std::vector<float> &out) {
    std::vector<uint32_t> most(w.n_tokens);
    TRY_CUDA(cudaMemcpy(most.data(), w.out.absmax, w.n_tokens * 4, cudaMemcpyDeviceToHost));
    bool same = true;
    for (int t = 0; t < w.n_tokens; t++) {
        float largest = 0;
        for (int i = 0; i < w.out.width; i++)
            largest = std::max(largest, fabsf(out[(size_t)t * w.out.width + i]));
        same = same && memcmp(&largest, &most[t], 4) == 0;
    }
    return same;
}

/* The largest error of a head, of its largest element. */
static double worst_of_heads(const world &w, const std::vector<float> &got, const std::vector<float> &want) {
    double worst = 0;
    for (int r = 0; r < w.n_tokens * w.s.n_heads; r++) {
        double size = 0, error = 0;
        for (int i = 0; i < w.s.dim; i++) {
            float g = got[(size_t)r * w.s.dim + i], x = want[(size_t)r * w.s.dim + i];
            size = std::max(size, (double)fabsf(x));
            error = g == g && x == x ? std::max(error, (double)fabsf(g - x)) : INFINITY;
        }
        worst = std::max(worst, error / std::max(size, 1e-30));
    }
    return worst;
}

/* Before a run: nothing of the one before counts. */
static void clear_out(const world &w) {
    TRY_CUDA(cudaMemsetAsync(w.out.at, 0xFF, (size_t)w.n_tokens * w.out.width * 4, w.l.stream));
    if (w.out.absmax)
        TRY_CUDA(cudaMemsetAsync(w.out.absmax, 0, w.n_tokens * 4, w.l.stream));
}
static void wait_for(const world &w) {
    cudaError_t code = cudaStreamSynchronize(w.l.stream);
    if (code == cudaSuccess)
        return;
    printf("FAILED %s: %s\n", w.s.name, cudaGetErrorString(code));
    exit(1);
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
    w.out.absmax = folds ? device<uint32_t>(w.n_tokens) : nullptr;
    for (int again = 0; again < 3; again++) {
        clear_out(w);
        run(w);
        wait_for(w);
        std::vector<float> got = fetch(w, w.out);
        same = same && (!folds || folded_right(w, got));
        worst = std::max(worst, worst_of_heads(w, got, fetch(w, w.plain)));
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
