/* kernels.c - which set of kernels this processor runs. */
#include "backend/cpu/kernels/kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <stddef.h>
#include <string.h>

struct choice {
    const struct kernels *kernels;
    bool available;
};

#if defined(__x86_64__)
static bool has_f16c(void) { // clang 14's __builtin_cpu_supports does not know the word
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

const struct kernels *kernels_find(const char *name) {
#if defined(__x86_64__)
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    const struct kernels *tiles = avx512 ? kernels_amx() : NULL;
    const struct kernels *rounding = avx512 ? kernels_bf16() : NULL;
    const struct choice choices[] = {{tiles, tiles},
                                     {&kernels_avx512, avx512},
                                     {&kernels_avx2, avx2},
                                     {&kernels_portable, true},
                                     {rounding, rounding}};
#elif defined(__aarch64__)
    const struct choice choices[] = {{&kernels_neon, true}, {&kernels_portable, true}};
#else
    const struct choice choices[] = {{&kernels_portable, true}};
#endif
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++)
        if (choices[i].available && (!name || strcmp(choices[i].kernels->name, name) == 0))
            return choices[i].kernels;
    return NULL;
}
