/* histogram.c - see histogram.h. */
#include "base/histogram.h"

#include "base/status.h"

void histogram_init(struct histogram *h, const int64_t *bounds, int n) {
    BUG_IF(n < 1 || n > HISTOGRAM_MAX_BOUNDS);
    *h = (struct histogram){.bounds = bounds, .n = n};
}

/* The first bound that is not below the value. */
static int bucket_of(const struct histogram *h, int64_t value) {
    int low = 0, high = h->n; // [low, high]: where it can be
    while (low < high) {
        int mid = (low + high) / 2;
        if (value <= h->bounds[mid])
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

void histogram_add(struct histogram *h, int64_t value) {
    counter_add(&h->counts[bucket_of(h, value)], 1);
    counter_add(&h->sum, value);
}
