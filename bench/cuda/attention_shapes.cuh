/* attention_shapes.cuh - of attention.cu: the shapes and elements that are checked. */
#pragma once

#include "attention_prepares.cuh"

/* Of heads of these sizes. */
static void check_attention(const std::vector<int> &dims, int &failed, int &n) {
    element elements[] = {ELEMENT_F16, ELEMENT_BF16, ELEMENT_E4M3, ELEMENT_I8};
    for (int dim : dims)
        for (element e : elements)
            for (int columns : {8, 16}) {
                std::vector<int> lens = {272, 1, 63, 64, 65, 1000, 320, 321, 3000};
                failed += !check({"one token", 28, 4, dim, 0, 0, 0, false, e, 64, lens, ones(9), columns});
                failed += !check({"window, softcap", 8, 4, dim, 100, 0, 20, false, e, 64, lens, ones(9), columns});
                failed += !check({"sinks, 1 to 8 tokens",
                                  16,
                                  1,
                                  dim,
                                  0,
                                  0,
                                  0,
                                  true,
                                  e,
                                  64,
                                  {300, 8, 1500, 70, 64, 512},
                                  {8, 8, 3, 2, 1, 5},
                                  columns});
                failed += !check({"chunk, blocks of 16",
                                  8,
                                  8,
                                  dim,
                                  0,
                                  256,
                                  0,
                                  false,
                                  e,
                                  16,
                                  {255, 256, 257, 700, 1023, 1030},
                                  {1, 1, 1, 4, 1, 8},
                                  columns});
                failed += !check({"window, sinks, blocks of 32",
                                  12,
                                  2,
                                  dim,
                                  129,
                                  0,
                                  0,
                                  true,
                                  e,
                                  32,
                                  {1000, 130, 400, 129},
                                  {1, 2, 8, 8},
                                  columns});
                failed += !check({"blocks of 256, prefill",
                                  6,
                                  2,
                                  dim,
                                  0,
                                  0,
                                  0,
                                  false,
                                  e,
                                  256,
                                  {200, 500},
                                  {200, 100},
                                  columns,
                                  1000});
                failed += !check({"prefill",
                                  14,
                                  2,
                                  dim,
                                  0,
                                  0,
                                  0,
                                  false,
                                  e,
                                  64,
                                  {700, 129, 64, 1, 1000, 9},
                                  {700, 65, 64, 1, 300, 9},
                                  columns});
                failed += !check({"prefill, window, sinks",
                                  4,
                                  4,
                                  dim,
                                  100,
                                  0,
                                  15,
                                  true,
                                  e,
                                  columns == 8 ? 64 : 16,
                                  {600, 129, 1000},
                                  {600, 40, 500},
                                  columns});
                failed += !check({"prefill, chunks",
                                  8,
                                  1,
                                  dim,
                                  0,
                                  200,
                                  0,
                                  false,
                                  e,
                                  columns == 8 ? 32 : 128,
                                  {600, 129, 1000},
                                  {600, 40, 500},
                                  columns});
                n += 9;
            }
    for (int dim : dims) { // one token of each of many
        element e = ELEMENT_E4M3;
        std::vector<int> many, mixed;
        for (int i = 0; i < 300; i++)
            many.push_back(1 + (int)(rng() % 500));
        for (int i = 0; i < 150; i++)
            mixed.push_back(i == 70 ? 9000 : 1 + (int)(rng() % (i % 3 ? 300 : 3000)));
        failed += !check({"many", 28, 4, dim, 0, 0, 0, false, e, 64, many, ones(300), 8});
        failed += !check({"many, window, sinks, softcap", 8, 8, dim, 100, 0, 20, true, e, 64, many, ones(300), 8});
        failed += !check({"many, chunk, blocks of 128", 20, 4, dim, 0, 200, 0, false, e, 128, many, ones(300), 8});
        failed += !check({"many, blocks of 32", 20, 4, dim, 0, 0, 0, false, e, 32, many, ones(300), 8});
        failed += !check({"mixed", 64, 8, dim, 0, 0, 0, true, e, 64, mixed, ones(150), 8});
        failed += !check({"mixed, window", 8, 8, dim, 1000, 0, 0, false, e, 256, mixed, ones(150), 8});
        many.resize(100), mixed.resize(100); // fewer than warps: teams
        failed += !check({"many, in teams", 28, 4, dim, 0, 0, 0, false, e, 64, many, ones(100), 8});
        failed += !check(
            {"mixed, in teams, window, sinks, softcap", 20, 4, dim, 2000, 0, 20, true, e, 32, mixed, ones(100), 8});
        failed += !check({"mixed, in teams, chunk", 5, 5, dim, 0, 700, 0, false, e, 128, mixed, ones(100), 8});
        n += 9;
    }
    for (int dim : dims)
        for (int window : {0, 300}) {
            failed += !check(
                {"prefill, long", 16, 2, dim, window, 0, 0, false, ELEMENT_E4M3, 64, {3000, 1500}, {60, 300}, 16});
            n++;
        }
    for (int dim : dims)
        for (element e : {ELEMENT_F16, ELEMENT_E4M3}) {
            setup s = {"", 28, 4, dim, 0, 0, 0, false, e, 64, {1700, 40, 900}, {1, 30, 1}, 8};
            failed += !check_alone(s);
            s.lens[0] = 200;
            failed += !check_alone(s);
            n += 2;
        }
}

static int check_all() {
    int failed = 0, n = 0;
    for (element e : {ELEMENT_F16, ELEMENT_BF16, ELEMENT_E4M3, ELEMENT_I8})
        for (int dim : {20, 48, 64, 96, 128, 256, 512}) {
            failed += !check_prep(6, 2, dim, dim, false, true, e, ELEMENT_F32, 64);
            failed += !check_prep(7, 1, dim, 16, false, false, e, ELEMENT_F16, 16);
            failed += !check_prep(3, 3, dim, 12, true, true, e, ELEMENT_BF16, 4);
            failed += !check_prep(14, 2, dim, dim, false, true, e, ELEMENT_F16, 32, RAW_BIASED);
            failed += !check_prep(160, 160, dim, dim, false, false, e, ELEMENT_F16, 64); // several rows a warp
            for (int heads : {14, 100, 160})
                for (bool normed : {false, true})
                    for (int raw : {RAW, RAW_BIASED})
                        failed += !check_prep(heads, heads == 14 ? 2 : heads, dim, dim, false, normed, e, ELEMENT_F16,
                                              64, raw, normed && raw == RAW);
            failed += !check_prep(14, 2, dim, 0, false, false, e, ELEMENT_F16, 64, RAW, true);
            n += 18;
        }
    check_preparing(failed, n);
    for (turned = 0; turned <= SHARED_KV_DIM; turned += SHARED_KV_DIM)
        check_attention(turned ? std::vector<int>{512} : std::vector<int>{64, 128, 256, 512}, failed, n);
    printf("%d of %d failed\n", failed, n);
    return failed > 0;
}
