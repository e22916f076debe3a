/* measured.h - what is known of cards and links, each number with where it comes from: the one file to change when
 * something is measured anew (measured.c).
 *
 * A number is MEASURED on that card with this engine; PUBLISHED by the card's maker or by others; or ASSUMED. What is
 * predicted of a layout carries the worst of those that it was made of, so that a reader sees how far to trust it. */
#pragma once

#include <stddef.h>

enum basis { MEASURED, EXTRAPOLATED, PUBLISHED, ASSUMED }; // each worse than those before
const char *basis_name(enum basis b);                      // of a constant: "measured"
const char *basis_of_prediction(enum basis b); // of what was worked out from constants: "fitted", if all were measured

struct constant {
    double value;
    enum basis basis;
    const char *source; // where, on what, when
};

struct card {
    const char *name;
    int capability, n_multiprocessors; // as CUDA counts
    struct constant memory_bytes;
    struct constant read_bytes_per_s;
    struct constant narrow_flops_per_s, wide_flops_per_s; // large products of 8 and of 16 bits
};

/* How much of that steps reach, of all cards of the Hopper kind: fitted to the rows of docs/performance.md and
 * docs/scaling.md that ran on one card. */
struct reach {
    double linear_us, moe_us, delta_us;                 // that a node takes besides reading and multiplying
    double weights, experts, cache, state;              // of the read rate
    double products, expert_products, attention, delta; // of the products' rate, attention and delta of that of 16 bits
    double overlap; // of reading and computing the shorter adds this share of itself to the longer
    double serving; // of what steps alone would give, over HTTP
};

/* Between cards. A sum over n ranks of b bytes, beside the residual and norm behind it, which one card has too, is the
 * shorter of
 *     one-shot    latency(n) + b (n - 1) / rate
 *     two-shot    1.7 latency(n) + 2 b (n - 1) / n / rate
 * but where sums over two ranks were timed: then it is what was. */
struct link {
    const char *name;
    int cards; // that it joins, at most; 0: any number
    struct constant latency_us, bytes_per_s;
    double more_latency;           // each doubling of the ranks beyond two takes this times the latency more
    const struct timed_sum *timed; // [n_timed], ascending
    size_t n_timed;
    const char *timed_source;
};
struct timed_sum {
    double bytes, us;
};

const struct card *card_find(const char *name); // "H200"; NULL: not known
const char *const *card_names(size_t *n);
const struct link *link_find(const char *name); // "nvlink"
extern const struct reach reach_of_steps;
extern const char *const reach_source;

/* Microseconds of a sum of float32 values over n_ranks, and what that rests on. */
double link_sum_us(const struct link *l, int n_ranks, double bytes, enum basis *basis);
/* Of sending bytes to one other card. */
double link_send_us(const struct link *l, double bytes);
