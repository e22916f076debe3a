/* kernels.c - which set of kernels this processor runs. */
#include "backend/cpu/kernels.h"

#include <stddef.h>
#include <string.h>

struct choice {
    const struct kernels *kernels;
    bool available;
};

const struct kernels *kernels_find(const char *name) {
#if defined(__x86_64__)
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
    const struct choice choices[] = {{&kernels_avx512, avx512}, {&kernels_avx2, avx2}, {&kernels_portable, true}};
#else
    const struct choice choices[] = {{&kernels_portable, true}};
#endif
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++)
        if (choices[i].available && (!name || strcmp(choices[i].kernels->name, name) == 0))
            return choices[i].kernels;
    return NULL;
}
