/* histogram.h - counts of values in fixed buckets, as Prometheus reads them: one thread adds, any may read.
 *
 *     static const int64_t bounds[] = {100, 1000, 10000};                     // microseconds
 *     histogram_init(&h, bounds, ARRAY_LEN(bounds));
 *     histogram_add(&h, 250);                                                 // counts in (100, 1000]
 *
 * Adding is a search among the bounds and two plain stores, with no lock and no locked instruction, so the engine
 * thread can do it for every token. A reader may see a value that is counted and not yet summed; never a torn number.
 * Values are whole, in a unit of the caller's choice, so that the sum is exact. */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

enum { HISTOGRAM_MAX_BOUNDS = 40 };

/* A number that one thread changes and any may read. */
struct counter {
    _Atomic int64_t n;
};
static inline void counter_set(struct counter *c, int64_t n) { atomic_store_explicit(&c->n, n, memory_order_relaxed); }
static inline int64_t counter_get(const struct counter *c) { return atomic_load_explicit(&c->n, memory_order_relaxed); }
static inline void counter_add(struct counter *c, int64_t n) { counter_set(c, counter_get(c) + n); }

struct histogram {
    const int64_t *bounds; // [n], ascending, as long as the histogram
    int n;
    struct counter counts[HISTOGRAM_MAX_BOUNDS +
                          1]; // of bucket i: values in (bounds[i - 1], bounds[i]]; the last is past all bounds
    struct counter sum;
};

void histogram_init(struct histogram *h, const int64_t *bounds, int n);
void histogram_add(struct histogram *h, int64_t value);
