/* measured.c - see measured.h. The formula of sums is that of the peers' one-shot and two-shot kernels. */
#include "sizing/measured.h"

#include "base/status.h"

#include <math.h>
#include <string.h>

#define H200_RUN "docs/performance.md: one H200, driver 580.159, 29 November 2026"
#define DATASHEET "the maker's data sheet, dense; never run here"

static const struct card cards[] = {
    {.name = "H200",
     .capability = 90,
     .n_multiprocessors = 132,
     .memory_bytes = {141e9, PUBLISHED, "the maker's data sheet"},
     .read_bytes_per_s = {4.65e12, MEASURED, H200_RUN},
     .narrow_flops_per_s = {1508e12, MEASURED, H200_RUN},
     .wide_flops_per_s = {790e12, MEASURED, "cuBLASLt, bfloat16, one H200, 20 November 2026"}},
    {.name = "H100",
     .capability = 90,
     .n_multiprocessors = 132,
     .memory_bytes = {80e9, PUBLISHED, "the maker's data sheet"},
     .read_bytes_per_s = {3.0e12, MEASURED, "docs/performance.md: one H100, 2.94 to 3.09 TB/s"},
     .narrow_flops_per_s = {1508e12, EXTRAPOLATED, "the same chip as H200's"},
     .wide_flops_per_s = {790e12, EXTRAPOLATED, "the same chip as H200's"}},
    {.name = "B200",
     .capability = 100,
     .n_multiprocessors = 148,
     .memory_bytes = {180e9, PUBLISHED, DATASHEET},
     .read_bytes_per_s = {7.7e12, PUBLISHED, DATASHEET},
     .narrow_flops_per_s = {4500e12, PUBLISHED, DATASHEET},
     .wide_flops_per_s = {2250e12, PUBLISHED, DATASHEET}},
};

/* float32, two H200: a sum and ADD_NORM behind it, less ADD_NORM alone (1.3 to 3.9, and 59), which a step of one card
 * has too: reach_of_steps holds it. */
static const struct timed_sum two_h200[] = {{16 << 10, 4.9 - 1.3}, {32 << 10, 5.1 - 1.4}, {256 << 10, 8.1 - 1.6},
                                            {512 << 10, 10.4 - 1.8}, {1 << 20, 14.0 - 2.4}, {4 << 20, 25.6 - 3.9},
                                            {64 << 20, 268 - 59}};

static const struct link links[] = {
    {.name = "nvlink",
     .cards = 8,
     .latency_us = {3.6, MEASURED, "docs/scaling.md: two H200, 18 links, 29 November 2026"},
     .bytes_per_s = {325e9, MEASURED, "docs/scaling.md: 65,536 KB in 207 us"},
     .more_latency = 0.3, // 3.7, 4.8 and 5.9 us of 512 bytes over 2, 4 and 8 cards, published of H100
     .timed = two_h200,
     .n_timed = ARRAY_LEN(two_h200),
     .timed_source = "docs/scaling.md: build/cuda/bench_meeting, 29 November 2026"},
    {.name = "ib400",
     .cards = 0,
     .latency_us = {12, ASSUMED, "no run over InfiniBand has been made"},
     .bytes_per_s = {45e9, PUBLISHED, "400 Gbit/s, nine tenths of it"},
     .more_latency = 0.5},
};

const char *const reach_source = "fitted to 30 rows of docs/performance.md and docs/scaling.md, FP8 on one H200: 5 % "
                                 "off at most; prompts: four rows";
const struct reach reach_of_steps = {
    .linear_us = 3.39,
    .moe_us = 12.9,
    .delta_us = 6.6,
    .weights = 0.918,
    .experts = 0.775,
    .cache = 0.797,
    .state = 0.684,
    .products = 0.943,
    .expert_products = 0.226,
    .attention = 0.323,
    .delta = 0.026,
    .overlap = 0.364,
    .serving = 0.98,
};

const char *basis_name(enum basis b) {
    static const char *const names[] = {"measured", "extrapolated", "published", "assumed"};
    return names[b];
}

const char *basis_of_prediction(enum basis b) { return b == MEASURED ? "fitted" : basis_name(b); }

const struct card *card_find(const char *name) {
    for (size_t i = 0; i < ARRAY_LEN(cards); i++)
        if (strcmp(cards[i].name, name) == 0)
            return &cards[i];
    return NULL;
}

const char *const *card_names(size_t *n) {
    static const char *names[ARRAY_LEN(cards)];
    for (size_t i = 0; i < ARRAY_LEN(cards); i++)
        names[i] = cards[i].name;
    *n = ARRAY_LEN(cards);
    return names;
}

const struct link *link_find(const char *name) {
    for (size_t i = 0; i < ARRAY_LEN(links); i++)
        if (strcmp(links[i].name, name) == 0)
            return &links[i];
    return NULL;
}

/* On a straight line between the neighbours, of logarithms; beyond the last by the rate. */
static double timed_us(const struct link *l, double bytes) {
    const struct timed_sum *t = l->timed, *last = &t[l->n_timed - 1];
    if (bytes <= t[0].bytes)
        return t[0].us;
    if (bytes >= last->bytes)
        return last->us * bytes / last->bytes;
    while (t[1].bytes < bytes)
        t++;
    double at = log(bytes / t[0].bytes) / log(t[1].bytes / t[0].bytes);
    return t[0].us * pow(t[1].us / t[0].us, at);
}

static enum basis worse(enum basis a, enum basis b) { return a > b ? a : b; }

double link_sum_us(const struct link *l, int n_ranks, double bytes, enum basis *basis) {
    if (n_ranks < 2)
        return 0;
    if (n_ranks == 2 && l->n_timed) {
        *basis = worse(*basis, MEASURED);
        return timed_us(l, bytes);
    }
    double latency = l->latency_us.value * (1 + l->more_latency * (log2(n_ranks) - 1));
    double one = latency + bytes * (n_ranks - 1) / l->bytes_per_s.value * 1e6;
    double two = 1.7 * latency + 2 * bytes * (n_ranks - 1) / n_ranks / l->bytes_per_s.value * 1e6;
    *basis = worse(*basis, worse(EXTRAPOLATED, worse(l->latency_us.basis, l->bytes_per_s.basis)));
    return fmin(one, two);
}

double link_send_us(const struct link *l, double bytes) {
    return l->latency_us.value + bytes / l->bytes_per_s.value * 1e6;
}
