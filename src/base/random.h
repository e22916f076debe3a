/* random.h - counter-based random numbers: the value depends on (key, counter) alone, so a draw can be
 * repeated in any order, on any thread, in any batch.
 *
 * Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11). */
#pragma once

#include <stdint.h>

struct philox {
    uint32_t v[4];
};

static inline struct philox philox4x32(uint64_t key, uint64_t counter_lo, uint64_t counter_hi) {
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = (uint32_t)counter_lo, c1 = (uint32_t)(counter_lo >> 32), c2 = (uint32_t)counter_hi,
             c3 = (uint32_t)(counter_hi >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (struct philox){{c0, c1, c2, c3}};
}

static inline uint64_t philox_bits53(uint64_t key, uint64_t counter_lo, uint64_t counter_hi) {
    struct philox r = philox4x32(key, counter_lo, counter_hi);
    return (((uint64_t)r.v[0] << 32) | r.v[1]) >> 11;
}

/* Uniform in [0, 1), 53 bits. */
static inline double philox_uniform(uint64_t key, uint64_t counter_lo, uint64_t counter_hi) {
    return (double)philox_bits53(key, counter_lo, counter_hi) * 0x1p-53;
}
