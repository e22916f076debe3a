/* copy_later.cuh - copies of a thread from global to shared memory that go on while it computes (cp.async), an
 * instruction each. A thread waits for what it asked for itself: batches come in the order in which they were closed.
 */
#pragma once

#include "backend/cuda/value.h"

#include <stdint.h>

/* 16 bytes, or zeros. */
static __device__ __forceinline__ void copy_later(uint32_t to, const void *from, bool zeros, uint64_t policy) {
    asm volatile("{\n\t.reg .pred zeros;\n\tsetp.ne.b32 zeros, %2, 0;\n\t"
                 "cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, zeros, %3;\n\t}" ::"r"(to),
                 "l"(from), "r"((int)zeros), "l"(policy)
                 : "memory");
}
static __device__ __forceinline__ void copy_word_later(uint32_t to, const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
static __device__ __forceinline__ void close_batch() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> static __device__ __forceinline__ void wait_batches() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
