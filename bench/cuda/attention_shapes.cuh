/* attention_shapes.cuh - of attention.cu: the shapes and elements that are checked. */
#pragma once

#include "attention_prepares.cuh"

static void count(bool ok, int &failed, int &n) { failed += !ok, n++; }

/* A setup for heads of any size and element; slots_16: of a block, with 16 columns in place of 8. */
struct few_case {
    const char *name;
    int n_heads, n_kv, window, chunk;
    float softcap;
    bool sinks;
    int n_slots, slots_16;
    std::vector<int> lens, queries;
    int most_decode = 8;
};
static const std::vector<int> FEW = {272, 1, 63, 64, 65, 1000, 320, 321, 3000};
static const few_case FEW_CASES[] = {
    {"one token", 28, 4, 0, 0, 0, false, 64, 64, FEW, ones(9)},
    {"window, softcap", 8, 4, 100, 0, 20, false, 64, 64, FEW, ones(9)},
    {"sinks, 1 to 8 tokens", 16, 1, 0, 0, 0, true, 64, 64, {300, 8, 1500, 70, 64, 512}, {8, 8, 3, 2, 1, 5}},
    {"chunk, blocks of 16", 8, 8, 0, 256, 0, false, 16, 16, {255, 256, 257, 700, 1023, 1030}, {1, 1, 1, 4, 1, 8}},
    {"window, sinks, blocks of 32", 12, 2, 129, 0, 0, true, 32, 32, {1000, 130, 400, 129}, {1, 2, 8, 8}},
    {"blocks of 256, prefill", 6, 2, 0, 0, 0, false, 256, 256, {200, 500}, {200, 100}, 1000},
    {"prefill", 14, 2, 0, 0, 0, false, 64, 64, {700, 129, 64, 1, 1000, 9}, {700, 65, 64, 1, 300, 9}},
    {"prefill, window, sinks", 4, 4, 100, 0, 15, true, 64, 16, {600, 129, 1000}, {600, 40, 500}},
    {"prefill, chunks", 8, 1, 0, 200, 0, false, 32, 128, {600, 129, 1000}, {600, 40, 500}},
};
static void check_few(int dim, element e, int columns, int &failed, int &n) {
    for (const few_case &c : FEW_CASES) {
        int n_slots = columns == 8 ? c.n_slots : c.slots_16;
        count(check({c.name, c.n_heads, c.n_kv, dim, c.window, c.chunk, c.softcap, c.sinks, e, n_slots, c.lens,
                     c.queries, columns, c.most_decode}),
              failed, n);
    }
}

/* One token of each of many. */
static void check_many(int dim, int &failed, int &n) {
    element e = ELEMENT_E4M3;
    std::vector<int> many, mixed;
    for (int i = 0; i < 300; i++)
        many.push_back(1 + (int)(rng() % 500));
    for (int i = 0; i < 150; i++)
        mixed.push_back(i == 70 ? 9000 : 1 + (int)(rng() % (i % 3 ? 300 : 3000)));
    auto one = [&](setup s) { count(check(s), failed, n); };
    one({"many", 28, 4, dim, 0, 0, 0, false, e, 64, many, ones(300), 8});
    one({"many, window, sinks, softcap", 8, 8, dim, 100, 0, 20, true, e, 64, many, ones(300), 8});
    one({"many, chunk, blocks of 128", 20, 4, dim, 0, 200, 0, false, e, 128, many, ones(300), 8});
    one({"many, blocks of 32", 20, 4, dim, 0, 0, 0, false, e, 32, many, ones(300), 8});
    one({"mixed", 64, 8, dim, 0, 0, 0, true, e, 64, mixed, ones(150), 8});
    one({"mixed, window", 8, 8, dim, 1000, 0, 0, false, e, 256, mixed, ones(150), 8});
    many.resize(100), mixed.resize(100); // fewer than warps: teams
    one({"many, in teams", 28, 4, dim, 0, 0, 0, false, e, 64, many, ones(100), 8});
    one({"mixed, in teams, window, sinks, softcap", 20, 4, dim, 2000, 0, 20, true, e, 32, mixed, ones(100), 8});
    one({"mixed, in teams, chunk", 5, 5, dim, 0, 700, 0, false, e, 128, mixed, ones(100), 8});
}

/* Of heads of these sizes. */
static void check_attention(const std::vector<int> &dims, int &failed, int &n) {
    for (int dim : dims)
        for (element e : {ELEMENT_F16, ELEMENT_BF16, ELEMENT_E4M3, ELEMENT_I8})
            for (int columns : {8, 16})
                check_few(dim, e, columns, failed, n);
    for (int dim : dims)
        check_many(dim, failed, n);
    for (int dim : dims)
        for (int window : {0, 300})
            count(
                check(
                    {"prefill, long", 16, 2, dim, window, 0, 0, false, ELEMENT_E4M3, 64, {3000, 1500}, {60, 300}, 16}),
                failed, n);
    for (int dim : dims)
        for (element e : {ELEMENT_F16, ELEMENT_E4M3}) {
            setup s = {"", 28, 4, dim, 0, 0, 0, false, e, 64, {1700, 40, 900}, {1, 30, 1}, 8};
            count(check_alone(s), failed, n);
            s.lens[0] = 200;
            count(check_alone(s), failed, n);
        }
}

static int check_all() {
    int failed = 0, n = 0;
    for (element e : {ELEMENT_F16, ELEMENT_BF16, ELEMENT_E4M3, ELEMENT_I8})
        for (int dim : {20, 48, 64, 96, 128, 256, 512}) {
            failed += !check_prep({6, 2, dim, dim, false, true, e, ELEMENT_F32, 64});
            failed += !check_prep({7, 1, dim, 16, false, false, e, ELEMENT_F16, 16});
            failed += !check_prep({3, 3, dim, 12, true, true, e, ELEMENT_BF16, 4});
            failed += !check_prep({14, 2, dim, dim, false, true, e, ELEMENT_F16, 32, RAW_BIASED});
            failed += !check_prep({160, 160, dim, dim, false, false, e, ELEMENT_F16, 64}); // several rows a warp
            for (int heads : {14, 100, 160})
                for (bool normed : {false, true})
                    for (int raw : {RAW, RAW_BIASED})
                        failed += !check_prep({heads, heads == 14 ? 2 : heads, dim, dim, false, normed, e, ELEMENT_F16,
                                               64, raw, normed && raw == RAW});
            failed += !check_prep({14, 2, dim, 0, false, false, e, ELEMENT_F16, 64, RAW, true});
            n += 18;
        }
    check_preparing(failed, n);
    for (turned = 0; turned <= SHARED_KV_DIM; turned += SHARED_KV_DIM)
        check_attention(turned ? std::vector<int>{512} : std::vector<int>{64, 128, 256, 512}, failed, n);
    printf("%d of %d failed\n", failed, n);
    return failed > 0;
}
