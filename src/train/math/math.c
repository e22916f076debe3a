/* math.c - which set of functions this processor runs. */
#include "train/math/math.h"

#include <string.h>

extern const struct math_f32 math_avx512, math_avx2, math_portable;

const struct math_f32 *math_find(const char *name) {
    const struct math_f32 *sets[3];
    int n = 0;
#if defined(__x86_64__)
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        sets[n++] = &math_avx512;
    if (avx2)
        sets[n++] = &math_avx2;
#endif
    sets[n++] = &math_portable;
    for (int i = 0; i < n; i++)
        if (!name || strcmp(sets[i]->name, name) == 0)
            return sets[i];
    return NULL;
}

/* As math_product.h and math_attention.h cut it, with the largest tiles. */
size_t math_scratch_bytes(int64_t rows, size_t real_bytes) {
    enum { PACKS = (8 * 12 + 512) * 128, QUERIES = 64, MOST_STEPS = 16 };
    return (PACKS + 2 * QUERIES * ((size_t)rows + MOST_STEPS)) * real_bytes;
}
