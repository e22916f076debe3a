/* late.cuh - loads that are waited for where their value is used. Of a value that it knows to be the same in all lanes
 * the compiler makes a register of the warp, which takes the value as soon as it is loaded: everything behind such a
 * load waits for memory. */
#pragma once

#include "backend/cuda/value.h"

#include <stdint.h>

/* Of 32 bits, from global memory that nodes write. */
template <class T> __device__ inline T load_late(const T *at) {
    static_assert(sizeof(T) == 4, "one register");
    uint32_t bits;
    asm volatile("ld.global.b32 %0, [%1];" : "=r"(bits) : "l"(at));
    return reinterpret_cast<T &>(bits);
}
