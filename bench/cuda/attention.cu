/* attention.cu - the attention kernels of the CUDA backend alone: checked against the plain kernel, and timed.
 *
 *   bench_attention check [WORD]     every shape and element against the plain kernel, over a poisoned cache; a
 *                                    sequence alone gives the bits that it gives among others; exit status 1 where one
 *                                    differs. Of those alone whose name has the word, or that have shared keys
 *                                    ("short")
 *   bench_attention decode [ELEMENT [MODEL [N LENGTH]]] one token a sequence: us, GB/s of keys and values, per cent of
 *                                    READ_RATE; of models whose name has MODEL in it, of N sequences of LENGTH tokens
 *                                    in place of the list
 *   bench_attention pair [ELEMENT]   QKV_PREP of unscaled products, with Gemma's norms, and both together as in a step
 *   bench_attention prefill [ELEMENT [MODEL]] prompts, whole and in chunks: us, TFLOP/s
 *
 * Times are medians of graphs of 20 launches over caches that together pass the L2. ELEMENT: f16 (default), bf16, e4m3,
 * int8. */
#include "attention_shapes.cuh"

struct shape_row {
    const char *name;
    int n_heads, n_kv, dim, window, turned;
};

/* Microseconds of one of n. */
static std::vector<double> time_graph(cudaStream_t stream, int n, const std::function<void(int)> &launch_one) {
    std::vector<double> times = replay_times(
        stream,
        [&] {
            for (int i = 0; i < n; i++)
                launch_one(i);
            return true;
        },
        7, 3);
    for (double &us : times)
        us /= n;
    return times;
}

static void time_decode(const shape_row &m, element e, int n_seqs, int len) {
    turned = m.turned;
    setup s = {m.name,
               m.n_heads,
               m.n_kv,
               m.dim,
               m.window,
               0,
               0,
               false,
               e,
               64,
               std::vector<int>(n_seqs, len),
               ones(n_seqs),
               m.n_heads / m.n_kv > 8 ? 16 : 8};
    int seen = m.window ? std::min(m.window, len) : len;
    double one = (double)n_seqs * seen * m.n_kv * (double)row_bytes(s);
    int n_caches = (int)std::min(20.0, std::max(1.0, ceil(200e6 / one)));
    world w = build(s, n_caches);
    if (e != ELEMENT_BF16)
        w.q.element = w.out.element = ELEMENT_F16; // as in a step
    launch_attention_parts(&w.l, &w.parts, 1, 1);
    auto one_launch = [&](int i) {
        launch_attention_decode(&w.l, &w.a, &w.parts, false, w.q, w.sinks, w.caches[i % n_caches], w.out);
    };
    one_launch(0); // sets the kernel's attributes, before the capture
    std::vector<double> times = time_graph(w.l.stream, 20, one_launch);
    double us = times[times.size() / 2], target = std::max(5.0, w.bytes / (0.85 * READ_RATE) * 1e6);
    printf("%-14s %-4s %4d x %-6d  %8.2f us  %7.1f GB/s  %5.1f %%  target %8.2f us  %.2f of it\n", m.name,
           element_name(e), n_seqs, len, us, w.bytes / us * 1e-3, w.bytes / us * 1e6 / READ_RATE * 100, target,
           us / target);
    fflush(stdout);
    release(w);
}

/* QKV_PREP alone, and with the ATTENTION that follows it in a step. */
static void time_pair(const shape_row &m, element e, int n_seqs, int len, int queries) {
    turned = m.turned;
    setup s = {m.name,
               m.n_heads,
               m.n_kv,
               m.dim,
               m.window,
               0,
               0,
               false,
               e,
               64,
               std::vector<int>(n_seqs, len),
               std::vector<int>(n_seqs, queries),
               16};
    int n_caches = queries > 1 ? 1
                               : (int)std::min(20.0, std::max(1.0, ceil(200e6 / ((double)n_seqs * len * m.n_kv * 2.0 *
                                                                                 m.dim * kv_element_bytes(e)))));
    world w = build(s, n_caches);
    w.parts.columns = m.n_heads / m.n_kv > 8 ? 16 : 8;
    int width = (m.n_heads + (turned ? 1 : 2) * m.n_kv) * m.dim;
    dmat x = {device<__half>((size_t)w.n_tokens * width), width, width, ELEMENT_F16}; // unscaled products
    fill_queries<<<256, 256>>>(x, (int64_t)w.n_tokens * width, 5);
    x.row_scale = to_device(std::vector<float>(w.n_tokens, 1e-2f));
    x.col_scale = to_device(std::vector<float>(width, 1e-2f));
    drope rope = {m.dim};
    rope.cos_sin = device<float>((size_t)w.n_tokens * m.dim);
    TRY_CUDA(cudaMemset(rope.cos_sin, 0, (size_t)w.n_tokens * m.dim * 4));
    dqkv a = {m.n_heads, m.n_kv, m.dim, m.dim, 1e-6f};
    a.v_norm = m.dim >= 256; // of Gemma
    a.v_from_k = turned > 0;
    a.rotary_dim = turned;
    dweight norm = {m.dim >= 256 ? to_device(std::vector<float>(m.dim, 1.5f)) : nullptr, m.dim, 1, ELEMENT_F32};
    launch_attention_parts(&w.l, &w.parts, 1, 1);
    auto prep = [&](int i) { launch_qkv_prep(&w.l, &a, &rope, x, norm, norm, w.caches[i % n_caches], w.q); };
    auto both = [&](int i) {
        prep(i);
        launch_attention_decode(&w.l, &w.a, &w.parts, true, w.q, w.sinks, w.caches[i % n_caches], w.out);
    };
    both(0);
    dprep in_one = {a, rope.cos_sin, x, norm, norm};
    auto one = [&](int i) {
        launch_attention_decode_prepares(&w.l, &w.a, &w.parts, &in_one, w.sinks, w.caches[i % n_caches], w.out);
    };
    auto after = [&](int i) {
        launch_attention_decode(&w.l, &w.a, &w.parts, true, w.q, w.sinks, w.caches[i % n_caches], w.out);
    };
    bool can = queries == 1 && attention_decode_prepares(&w.a, &in_one, w.caches[0]);
    if (can)
        one(0);
    std::vector<double> alone = time_graph(w.l.stream, 20, prep), pair(1), single(1), plain(1);
    if (queries == 1) {
        plain = time_graph(w.l.stream, 20, after);
        pair = time_graph(w.l.stream, 20, both);
    }
    if (can)
        single = time_graph(w.l.stream, 20, one);
    printf("%-14s %-4s %4d x %-6d  qkv_prep of %4d tokens %7.2f us  attention %7.2f  both %7.2f us  in one %7.2f us\n",
           m.name, element_name(e), n_seqs, len, w.n_tokens, alone[alone.size() / 2], plain[plain.size() / 2],
           pair[pair.size() / 2], single[single.size() / 2]);
    fflush(stdout);
    for (const void *p : {(const void *)x.at, (const void *)x.row_scale, (const void *)x.col_scale,
                          (const void *)rope.cos_sin, norm.at})
        cudaFree(const_cast<void *>(p));
    release(w);
}

/* n_seqs prompts of len tokens, of which `queries` are computed in this step. FLOPs are of the keys that are seen. */
static void time_prefill(const shape_row &m, element e, int n_seqs, int len, int queries) {
    turned = m.turned;
    setup s = {m.name,
               m.n_heads,
               m.n_kv,
               m.dim,
               m.window,
               0,
               0,
               false,
               e,
               64,
               std::vector<int>(n_seqs, len),
               std::vector<int>(n_seqs, queries),
               16};
    world w = build(s, 1);
    w.out.element = ELEMENT_F16; // and queries are of 16 bits, as in a step
    double seen = 0;
    for (int i = len - queries; i < len; i++)
        seen += m.window ? std::min(m.window, i + 1) : i + 1;
    launch_attention_parts(&w.l, &w.long_parts, 1, 1);
    auto one_launch = [&](int) {
        launch_attention_prefill(&w.l, &w.a, &w.long_parts, w.q, w.sinks, w.caches[0], w.out);
    };
    one_launch(0);
    std::vector<double> times = time_graph(w.l.stream, 4, one_launch);
    double us = times[times.size() / 2];
    printf("%-14s %-4s %4d x %d of %-6d  %9.1f us  %6.1f TFLOP/s\n", m.name, element_name(e), n_seqs, queries, len, us,
           4.0 * seen * n_seqs * m.n_heads * m.dim / us * 1e-6);
    fflush(stdout);
    release(w);
}

static const shape_row qwen = {"qwen2.5-7b", 28, 4, 128, 0}, llama = {"llama-3.1-8b", 32, 8, 128, 0},
                       sliding = {"gemma sliding", 32, 16, 256, 1024}, global = {"gemma global", 32, 4, 512, 0},
                       shared_kv = {"gemma k = v", 32, 4, 512, 0, SHARED_KV_DIM};

static int decode_all(element e, const char *name, int n_seqs, int len) {
    for (const shape_row &m : {qwen, llama, sliding, global, shared_kv})
        if (n_seqs > 0 && strstr(m.name, name))
            time_decode(m, e, n_seqs, len);
    for (const shape_row &m : {qwen, llama, sliding, global, shared_kv})
        for (auto c : {std::pair<int, int>{1, 272},
                       {1, 528},
                       {1, 8192},
                       {1, 131072},
                       {8, 272},
                       {32, 272},
                       {128, 272},
                       {128, 528},
                       {256, 272},
                       {512, 272},
                       {128, 2048}})
            if (n_seqs == 0 && strstr(m.name, name))
                time_decode(m, e, c.first, c.second);
    return 0;
}

static int pair_all(element e) {
    for (const shape_row &m : {qwen, sliding, global, shared_kv}) {
        for (int n : {1, 8, 32, 128, 256, 512})
            for (int len : {80, 272, 528})
                time_pair(m, e, n, len, 1);
        time_pair(m, e, 1, 2048, 2048);
    }
    return 0;
}

static int prefill_all(element e, const char *name) {
    for (const shape_row &m : {qwen, llama, sliding, global, shared_kv}) {
        if (!strstr(m.name, name))
            continue;
        time_prefill(m, e, 1, 2048, 2048);
        time_prefill(m, e, 1, 8192, 8192);
        time_prefill(m, e, 1, 8192, 1024);
        time_prefill(m, e, 128, 16, 16);
        time_prefill(m, e, 8, 1024, 1024);
        time_prefill(m, e, 1, 65536, 8192);
    }
    return 0;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "check", *name = argc > 2 ? argv[2] : "f16";
    element e = strcmp(name, "bf16") == 0   ? ELEMENT_BF16
                : strcmp(name, "e4m3") == 0 ? ELEMENT_E4M3
                : strcmp(name, "int8") == 0 ? ELEMENT_I8
                                            : ELEMENT_F16;
    if (strcmp(what, "check") == 0) {
        only = argc > 2 ? name : "";
        return check_all();
    }
    if (strcmp(what, "decode") == 0)
        return decode_all(e, argc > 3 ? argv[3] : "", argc > 5 ? atoi(argv[4]) : 0, argc > 5 ? atoi(argv[5]) : 0);
    if (strcmp(what, "pair") == 0)
        return pair_all(e);
    if (strcmp(what, "prefill") == 0)
        return prefill_all(e, argc > 3 ? argv[3] : "");
    fprintf(stderr, "usage: bench_attention check [WORD] | decode | pair | prefill [f16|bf16|e4m3|int8]\n");
    return 2;
}
