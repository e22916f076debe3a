/* bulk.cuh - what Hopper's kernels move data and wait with, an instruction each: barriers in shared memory (mbarrier),
 * bulk copies of plain memory and of tensor maps, clusters (cluster.cuh).
 *
 * Shared memory is named by its address there (shared_address), 32 bits, which is the block's own in any of these.
 *
 * A barrier counts arrivals and bytes; a phase ends when all arrivals that barrier_init told and all bytes that
 * barrier_expect told have come. Waiting names the parity of the phase: 0 for the first, 1 for the second, and so on.
 * Between barrier_init and its first use by others stand barrier_init_done and a barrier of the block, or of the
 * cluster where others of it arrive or copy there.
 *
 * Who may end: a block whose memory others of its cluster still copy or arrive into must live, so the last that happens
 * in such a kernel is cluster_sync. That waits for threads, not for what they have told other blocks, which is on its
 * way for a while: where nobody waits for an arrival, none may go out right before it (a block that ends too soon ends
 * the kernel: "unspecified launch failure"). */
#pragma once

#include "backend/cuda/value.h"

#include <cuda.h>
#include <stdint.h>

__device__ __forceinline__ uint32_t shared_address(const void *p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// ---- barriers -------------------------------------------------------------------------------------------------------

__device__ __forceinline__ void barrier_init(uint32_t barrier, int n_arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(n_arrivals) : "memory");
}
__device__ __forceinline__ void barrier_init_done() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/* A warp arrives, as one: a lane does, behind what keeps lanes together (__syncwarp, a product of the warp). racecheck
 * does not follow what __syncwarp hands to the lane that arrives, so in a build for it (GYRE_RACECHECK) each lane does.
 */
#ifdef GYRE_RACECHECK
enum { WARP_ARRIVALS = 32 };
#else
enum { WARP_ARRIVALS = 1 };
#endif
__device__ __forceinline__ void barrier_arrive_warp(uint32_t barrier, int lane) {
    if (WARP_ARRIVALS > 1 || lane == 0)
        barrier_arrive(barrier);
}
__device__ __forceinline__ void barrier_expect(uint32_t barrier, int n_bytes) { // arrives too
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(n_bytes) : "memory");
}
__device__ __forceinline__ void barrier_expect_more(uint32_t barrier, int n_bytes) { // without arriving
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(n_bytes) : "memory");
}
__device__ __forceinline__ void barrier_expect_warp(uint32_t barrier, int n_bytes, int lane) { // as barrier_arrive_warp
    if (lane == 0)
        barrier_expect(barrier, n_bytes);
    else if (WARP_ARRIVALS > 1)
        barrier_arrive(barrier);
}
__device__ __forceinline__ bool barrier_passed(uint32_t barrier, int parity) { // waits some time itself
    uint32_t passed;
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(passed)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return passed;
}
/* Does not wait. */
__device__ __forceinline__ bool barrier_passed_already(uint32_t barrier, int parity) {
    uint32_t passed;
    asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(passed)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return passed;
}
/* Tests build with a limit: what waits for ever becomes a fault. */
__device__ __forceinline__ void barrier_wait(uint32_t barrier, int parity) {
#ifdef BARRIER_SPIN_LIMIT
    for (int64_t i = 0; !barrier_passed(barrier, parity); i++)
        if (i == BARRIER_SPIN_LIMIT)
            __trap();
#else
    while (!barrier_passed(barrier, parity))
        ;
#endif
}

/* As many threads as the barrier has arrivals come, and go on when all have. */
__device__ __forceinline__ void barrier_meet(uint32_t barrier) {
    uint64_t phase;
    uint32_t passed = 0;
    asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(phase) : "r"(barrier) : "memory");
    while (!passed)
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                     : "=r"(passed)
                     : "r"(barrier), "l"(phase)
                     : "memory");
}

/* Waits for `n_threads` threads that name the same barrier, 1 to 15; whole warps. */
__device__ __forceinline__ void threads_sync(int barrier, int n_threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(n_threads) : "memory");
}
/* Counts among those without waiting. */
__device__ __forceinline__ void threads_arrive(int barrier, int n_threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(n_threads) : "memory");
}

// ---- bulk copies: one thread asks; the barrier counts their bytes ---------------------------------------------------

/* n_bytes and both addresses are multiples of 16. */
__device__ __forceinline__ void bulk_copy(uint32_t to, const void *from, int n_bytes, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(n_bytes), "r"(barrier)
                 : "memory");
}
/* Counted by a barrier of the block it goes to; addresses there as address_at_rank gives them. */
__device__ __forceinline__ void bulk_copy_to_rank(uint32_t there, uint32_t from, int n_bytes, uint32_t barrier_there) {
    asm volatile(
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(there),
        "r"(from), "r"(n_bytes), "r"(barrier_there)
        : "memory");
}
__device__ __forceinline__ void bulk_map_prefetch(const CUtensorMap *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
/* A box of a tensor map, its first element at these coordinates, innermost first; what lies outside counts as copied.
 * The map is a
 * __grid_constant__ parameter of the kernel. */
__device__ __forceinline__ void bulk_copy_box(uint32_t to, const CUtensorMap *map, int c0, int c1, uint32_t barrier,
                                              uint64_t policy) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
                 "[%1, {%2, %3}], "
                 "[%4], %5;" ::"r"(to),
                 "l"(map), "r"(c0), "r"(c1), "r"(barrier), "l"(policy)
                 : "memory");
}
__device__ __forceinline__ void bulk_copy_box(uint32_t to, const CUtensorMap *map, int c0, int c1, int c2, int c3,
                                              uint32_t barrier, uint64_t policy) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
                 "[%1, {%2, %3, %4, "
                 "%5}], [%6], %7;" ::"r"(to),
                 "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(barrier), "l"(policy)
                 : "memory");
}
__device__ __forceinline__ void bulk_copy_box(uint32_t to, const CUtensorMap *map, int c0, int c1, int c2, int c3,
                                              int c4, uint32_t barrier, uint64_t policy) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
                 "[%1, {%2, %3, %4, "
                 "%5, %6}], [%7], %8;" ::"r"(to),
                 "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "r"(barrier), "l"(policy)
                 : "memory");
}

/* A box to the same place in each block of the cluster whose rank's bit is set, and its bytes counted by the barrier
 * there. */
__device__ __forceinline__ void bulk_copy_box_to(int ranks, uint32_t to, const CUtensorMap *map, int c0, int c1, int c2,
                                                 int c3, uint32_t barrier, uint64_t policy) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::"
                 "cache_hint [%0], "
                 "[%1, {%2, %3, %4, %5}], [%6], %7, %8;" ::"r"(to),
                 "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(barrier), "h"((unsigned short)ranks), "l"(policy)
                 : "memory");
}

__device__ __forceinline__ void bulk_copy_box_to(int ranks, uint32_t to, const CUtensorMap *map, int c0, int c1,
                                                 uint32_t barrier, uint64_t policy) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::"
                 "cache_hint [%0], "
                 "[%1, {%2, %3}], [%4], %5, %6;" ::"r"(to),
                 "l"(map), "r"(c0), "r"(c1), "r"(barrier), "h"((unsigned short)ranks), "l"(policy)
                 : "memory");
}

__device__ __forceinline__ void bulk_copy_box_to(int ranks, uint32_t to, const CUtensorMap *map, int c0, int c1, int c2,
                                                 int c3, int c4, uint32_t barrier, uint64_t policy) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::"
                 "cache_hint [%0], "
                 "[%1, {%2, %3, %4, %5, %6}], [%7], %8, %9;" ::"r"(to),
                 "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "r"(barrier), "h"((unsigned short)ranks),
                 "l"(policy)
                 : "memory");
}

/* How the L2 keeps what is copied: weights are read once a step, tokens by every block. */
__device__ __forceinline__ uint64_t policy_read_once() {
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
/* By a few blocks, not all at the same time: what is read once leaves as soon as anything else comes. */
__device__ __forceinline__ uint64_t policy_read_again() {
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
__device__ __forceinline__ uint64_t policy_read_often() {
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

/* What this thread wrote to shared memory comes before bulk copies and tensor core products that others start once they
 * know of it. */
__device__ __forceinline__ void fence_bulk() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* Likewise what it wrote anywhere. */
__device__ __forceinline__ void fence_bulk_all() { asm volatile("fence.proxy.async;" ::: "memory"); }

#include "backend/cuda/ptx/cluster.cuh"
